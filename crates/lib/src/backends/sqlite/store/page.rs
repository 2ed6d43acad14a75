//! One page of a listing.

use rusqlite::{Connection, Row, StatementStatus};

/// Calls `each` with the rows whose key has the prefix and comes after `after`, in order, at most `limit` of them.
/// Returns the number of steps that the database took.
///
/// SQLite seeks to one lower bound, and compares each row with a second one. So it gets only the larger of the two:
/// with both, each page would step over all pages before it.
pub(super) fn each(
    db: &Connection,
    prefix: &str,
    after: &str,
    limit: usize,
    mut each: impl FnMut(String, &Row<'_>) -> rusqlite::Result<()>,
) -> rusqlite::Result<i32> {
    let (sql, from) = match after < prefix {
        true => ("SELECT key, version, body, stamp FROM records WHERE key >= ?1 ORDER BY key", prefix),
        false => ("SELECT key, version, body, stamp FROM records WHERE key > ?1 ORDER BY key", after),
    };
    let mut statement = db.prepare(sql)?;
    let mut rows = statement.query([from])?;
    for _ in 0..limit {
        let Some(row) = rows.next()? else { break };
        let key: String = row.get(0)?;
        // The keys with the prefix are next to each other.
        if !key.starts_with(prefix) {
            break;
        }
        each(key, row)?;
    }
    drop(rows);
    Ok(statement.get_status(StatementStatus::VmStep))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 100;

    /// 10,000 keys of each of three prefixes.
    fn full() -> Connection {
        let db = Connection::open_in_memory().unwrap();
        db.execute_batch(super::super::CREATE).unwrap();
        for prefix in ["a/", "b/", "c/"] {
            let sql = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 9999) \
                       INSERT INTO records SELECT ?1 || printf('%06d', i), '', '', '' FROM n";
            db.execute(sql, [prefix]).unwrap();
        }
        db.execute_batch("COMMIT").unwrap();
        db
    }

    /// The keys of a page, and what it cost.
    fn page(db: &Connection, prefix: &str, after: &str) -> (Vec<String>, i32) {
        let mut keys = Vec::new();
        let steps = each(db, prefix, after, PAGE, |key, _| {
            keys.push(key);
            Ok(())
        });
        (keys, steps.unwrap())
    }

    #[test]
    fn a_late_page_costs_as_much_as_the_first() {
        let db = full();
        let (_, first) = page(&db, "b/", "");
        let (mut keys, mut after) = (Vec::new(), String::new());
        loop {
            let (found, steps) = page(&db, "b/", &after);
            assert!(steps <= first + 10, "after {after}: {steps} steps, and the first page took {first}");
            let Some(last) = found.last() else { break };
            after.clone_from(last);
            keys.extend(found);
        }
        let all: Vec<String> = (0..10_000).map(|i| format!("b/{i:06}")).collect();
        assert_eq!(keys, all, "each key once, in order, and no other");
    }

    #[test]
    fn a_page_begins_after_the_larger_bound() {
        let db = full();
        db.execute_batch("INSERT INTO records VALUES ('b/', '', '', '')").unwrap();
        assert_eq!(page(&db, "b/", "").0[0], "b/", "a key that is the prefix itself");
        assert_eq!(page(&db, "b/", "b/").0[0], "b/000000");
        assert_eq!(page(&db, "b/", "a/zzz").0[0], "b/");
        assert_eq!(page(&db, "b/", "b/009998").0, ["b/009999"]);
        assert!(page(&db, "b/", "c/000001").0.is_empty());
        assert!(page(&db, "d/", "").0.is_empty());
    }
}
