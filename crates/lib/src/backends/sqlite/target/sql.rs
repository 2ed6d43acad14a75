//! The statements that install a guard, and those that change it.

use crate::targets::guard::Others;
use crate::targets::sql::PREFIX;

/// The function that a connection must define: it returns the text that the run shows, or NULL.
pub const FUNCTION: &str = "leasehold_grant";

pub(super) const TABLE: &str = "CREATE TABLE leasehold_fences (
    guarded TEXT PRIMARY KEY,
    others TEXT NOT NULL CHECK (others IN ('allow', 'refuse')),
    mode TEXT NOT NULL DEFAULT 'enforce' CHECK (mode IN ('enforce', 'observe')),
    lease TEXT, token INTEGER, generation INTEGER, epoch TEXT, grant_id TEXT, carrier TEXT,
    let_in INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID";

pub(super) const EVENTS: [&str; 3] = ["INSERT", "UPDATE", "DELETE"];

pub(super) fn trigger_name(event: &str, table: &str) -> String {
    format!("leasehold_guard_{}_{table}", event.to_lowercase())
}

/// The trigger, as SQLite stores its text. The rule must not change, because [`same_rule`] compares an installed trigger
/// with it. The messages may.
///
/// The rule is `leasehold_core::fence::verdict`, whose table the tests replay against it. The messages are constant:
/// versions of SQLite before 3.47 allow no others, and could not open a database with such a trigger at all.
pub(super) fn trigger(event: &str, table: &str) -> String {
    let name = quoted(&trigger_name(event, table));
    let (on, guarded) = (quoted(table), literal(table));
    let say = |words: &str| literal(&format!("leasehold: write to {table} refused: {words}"));
    let start = PREFIX.len() + 1;
    format!(
        "CREATE TRIGGER {name} BEFORE {event} ON {on}
WHEN NOT EXISTS (SELECT 1 FROM leasehold_fences WHERE guarded = {guarded} AND carrier = {FUNCTION}())
BEGIN
    SELECT CASE
        WHEN f.guarded IS NULL THEN RAISE(ABORT, {gone})
        WHEN f.mode = 'observe' OR mine IS NULL AND f.others = 'allow' THEN NULL
        WHEN mine IS NULL THEN RAISE(ABORT, {nobody})
        WHEN mine NOT GLOB '{PREFIX}[1-9]*:??????????????????????:??????:??????' THEN RAISE(ABORT, {garbled})
        WHEN f.carrier IS NULL THEN RAISE(ABORT, {never})
        WHEN substr(mine, -13, 6) <> substr(f.carrier, -13, 6) THEN RAISE(ABORT, {lease})
        WHEN substr(mine, -6) <> substr(f.carrier, -6) THEN RAISE(ABORT, {epoch})
        WHEN CAST(substr(mine, {start}) AS INTEGER) < f.token THEN RAISE(ABORT, {stale})
        WHEN CAST(substr(mine, {start}) AS INTEGER) > f.token THEN RAISE(ABORT, {ahead})
        ELSE RAISE(ABORT, {fork})
    END FROM (SELECT {FUNCTION}() AS mine) LEFT JOIN leasehold_fences f ON f.guarded = {guarded};
    UPDATE leasehold_fences SET let_in = let_in + 1
        WHERE guarded = {guarded} AND mode = 'observe' AND ({FUNCTION}() IS NOT NULL OR others = 'refuse');
END",
        gone = say(
            "its guard has no fence (LH007). Nothing was written. Restore leasehold_fences, or: leasehold guard remove"
        ),
        nobody = say(
            "this connection belongs to no run (LH002). Nothing was written. Use: leasehold run NAME --fence TARGET"
        ),
        garbled = say(
            "the text that leasehold_grant() returns names no run (LH008). Nothing was written. Return the value of LEASEHOLD_SQL_GRANT, unchanged"
        ),
        never = say(
            "no run has fenced it (LH003). Nothing was written. Name it when you start the run: --fence TARGET"
        ),
        lease =
            say("it belongs to another lease (LH006). Nothing was written. See: leasehold fence ls TARGET"),
        epoch = say(
            "your token cannot be compared with the fence: it comes from another store, or the record of the lease was deleted (LH005). Nothing was written. See: leasehold fence ls TARGET"
        ),
        stale = say(
            "your token is older than the newest one here (LH001). Nothing was written. This run lost its lease while it was paused; run it again. Both tokens: LEASEHOLD_TOKEN, and SELECT token FROM leasehold_fences"
        ),
        ahead = say(
            "this run did not name it (LH003). Nothing was written. Name the target when you start the run: --fence TARGET"
        ),
        fork = say(
            "another run used your token here (LH004). Nothing was written. Two runs got one token: look at the lease store before you run again"
        ),
    )
}

/// Whether two triggers are equal but for their messages. So a guard with the words of another version is accepted.
pub(super) fn same_rule(one: &str, other: &str) -> bool {
    without_messages(one) == without_messages(other)
}

/// A trigger without the texts between the quotes of its refusals.
fn without_messages(trigger: &str) -> String {
    const REFUSAL: &str = "RAISE(ABORT, '";
    let (mut rule, mut rest) = (String::new(), trigger);
    while let Some((before, message)) = rest.split_once(REFUSAL) {
        rule.push_str(before);
        rule.push_str(REFUSAL);
        rest = message;
        // A quote in the message is doubled.
        while let Some((_, after)) = rest.split_once('\'') {
            rest = after;
            let Some(more) = after.strip_prefix('\'') else { break };
            rest = more;
        }
    }
    rule + rest
}

pub(super) fn fence(table: &str, others: Others) -> String {
    format!("INSERT INTO leasehold_fences (guarded, others) VALUES ({}, '{}')", literal(table), others.word())
}

pub(super) fn others(table: &str, others: Others) -> String {
    format!("UPDATE leasehold_fences SET others = '{}' WHERE guarded = {}", others.word(), literal(table))
}

pub(super) fn forget(table: &str) -> String {
    format!("DELETE FROM leasehold_fences WHERE guarded = {}", literal(table))
}

/// Removes the triggers.
pub(super) fn uncover(table: &str) -> Vec<String> {
    EVENTS.map(|event| format!("DROP TRIGGER IF EXISTS {}", quoted(&trigger_name(event, table)))).into()
}

/// The table's name, from a name in SQL that may be quoted and have a schema.
pub(super) fn plain_name(written: &str) -> String {
    let main = written.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("main."));
    let name = if main { &written[5..] } else { written };
    let quoted = name.strip_prefix('"').and_then(|name| name.strip_suffix('"'));
    quoted.map_or_else(|| name.to_owned(), |name| name.replace("\"\"", "\""))
}

/// A name, quoted for SQL.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text as an SQL literal.
fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_not_compared_and_the_rule_is() {
        for table in ["plain", "it's", "RAISE(ABORT, 'x')"] {
            let ours = trigger("INSERT", table);
            let others = ours.replace("no run has fenced it", "it isn''t fenced");
            assert!(others != ours && same_rule(&others, &ours), "{table}");
            for (from, to) in [
                ("ELSE RAISE(ABORT, ", "ELSE RAISE(IGNORE, "),
                ("f.carrier IS NULL THEN RAISE", "f.carrier IS NULL AND 0 THEN RAISE"),
                ("let_in + 1", "let_in + 0"),
            ] {
                let weaker = ours.replace(from, to);
                assert!(weaker != ours && !same_rule(&weaker, &ours), "{table}: {to}");
            }
        }
    }
}
