//! Runs the user's script, statement by statement, in one transaction.

use rusqlite::fallible_iterator::FallibleIterator;
use rusqlite::{Batch, Connection};

use super::errors;
use crate::targets::sql::not_one_transaction;
use crate::targets::{TargetAction, TargetError};

/// Statements that begin or end a transaction. After one, a failure would not undo the statements before it.
const TRANSACTIONS: [&str; 6] = ["BEGIN", "COMMIT", "END", "ROLLBACK", "SAVEPOINT", "RELEASE"];

/// Runs it in the open transaction. If it fails, the caller rolls the transaction back.
pub(super) fn run(db: &Connection, target: &str, script: &str) -> Result<(), TargetError> {
    let said = |e: rusqlite::Error| errors::said(target, "write", &e);
    let mut batch = Batch::new(db, script);
    while let Some(mut statement) = batch.next().map_err(said)? {
        let text = statement.expanded_sql().unwrap_or_default();
        let word = first_word(&text);
        if word.is_empty() || TRANSACTIONS.contains(&word.as_str()) {
            return Err(not_one_transaction(target, &format!("it contains {word}")));
        }
        let mut rows = statement.raw_query();
        while rows.next().map_err(said)?.is_some() {}
        drop(rows);
        if db.is_autocommit() {
            let why = format!("a statement that begins with {word} ended the transaction");
            return Err(TargetError::InDoubt { target: target.into(), asked: TargetAction::Write, why });
        }
    }
    Ok(())
}

/// The first word of a statement in capitals, after spaces and comments.
fn first_word(text: &str) -> String {
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\n', '\r', '\x0c', ';', '\u{feff}']);
        rest = if let Some(comment) = rest.strip_prefix("--") {
            comment.split_once('\n').map_or("", |(_, rest)| rest)
        } else if let Some(comment) = rest.strip_prefix("/*") {
            comment.split_once("*/").map_or("", |(_, rest)| rest)
        } else {
            break;
        };
    }
    rest.chars().take_while(char::is_ascii_alphabetic).collect::<String>().to_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_is_found_behind_comments() {
        for text in ["commit", " ;; Commit;", "--x\n/* y; */\tCOMMIT", "\u{feff}/**/commit transaction"] {
            assert_eq!(first_word(text), "COMMIT", "{text:?}");
        }
        assert_eq!(first_word("-- commit"), "");
        assert_eq!(first_word("UPDATE t SET x = 'COMMIT'"), "UPDATE");
    }
}
