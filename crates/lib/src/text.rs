//! Text that people type, and text that is shown to them.

use percent_encoding::percent_decode_str;
use sha2::{Digest, Sha256};
use strsim::levenshtein;

/// The known word that `typed` was probably meant to be.
pub fn did_you_mean<'a>(typed: &str, known: &[&'a str]) -> Option<&'a str> {
    let typed = typed.to_lowercase();
    let near = known.iter().map(|word| (levenshtein(&typed, word), *word));
    near.filter(|(distance, word)| *distance <= word.len().div_ceil(2)).min().map(|(_, word)| word)
}

/// Shown in place of a password.
pub const MASK: &str = "***";

/// Whether this can be the word before a colon, and not a part of a password or a connection string.
pub fn is_word(text: &str) -> bool {
    !text.contains(|c: char| "=@".contains(c) || c.is_whitespace() || c.is_control())
}

/// A part of a URL with its %XX decoded; nothing if a % stands alone, or the result is not UTF-8.
pub fn percent_decoded(text: &str) -> Option<String> {
    let escaped = |rest: &str| rest.len() >= 2 && rest.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
    // The decoder would leave such a % as it is. It may be part of a password that was not escaped.
    let whole = text.split('%').skip(1).all(escaped);
    let decoded = percent_decode_str(text).decode_utf8().ok().filter(|_| whole)?;
    Some(decoded.into_owned())
}

/// The first half of a text's SHA-256, as 32 hexadecimal digits.
pub fn short_digest(text: impl AsRef<[u8]>) -> String {
    Sha256::digest(text).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// A text as one word of a shell.
pub fn shell_quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._/@:=+-".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.into(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// Whether a character moves the cursor, ends a line, sets a colour, or changes the direction of the text.
fn is_harmful(c: char) -> bool {
    let turns =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns || matches!(c, '\u{2028}' | '\u{2029}')
}

/// The text as one line that does nothing to a terminal.
pub fn one_line(text: &str) -> String {
    text.chars().map(|c| if is_harmful(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// JSON with the same value that does nothing to a terminal: harmful characters are escaped.
pub fn escaped(json: &str) -> String {
    let shown = |c: char| match is_harmful(c) {
        true => format!("\\u{:04x}", u32::from(c)),
        false => c.into(),
    };
    json.chars().map(shown).collect()
}

/// The text without harmful characters. Line ends and tabs stay.
pub fn harmless(text: &str) -> String {
    let stays = |c| c == '\n' || c == '\t' || !is_harmful(c);
    let shown = |c| if stays(c) { c } else { char::REPLACEMENT_CHARACTER };
    text.replace("\r\n", "\n").chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes() {
        assert_eq!(percent_decoded("a%20b%2Fc%c3%a4").as_deref(), Some("a b/cä"));
        for wrong in ["%", "%2", "%zz", "%+f", "%c3"] {
            assert_eq!(percent_decoded(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_shown_does_nothing() {
        assert_eq!(harmless("a\tb\r\nc ä 🦀"), "a\tb\nc ä 🦀");
        assert_eq!(
            harmless("\u{1b}[2J\r\u{9b}1m\u{7f}\u{202e}"),
            "\u{fffd}[2J\u{fffd}\u{fffd}1m\u{fffd}\u{fffd}"
        );
        assert_eq!(
            one_line("a\tb\r\nc\u{85}\u{2028}ä 🦀"),
            "a\u{fffd}b\u{fffd}\u{fffd}c\u{fffd}\u{fffd}ä 🦀"
        );
    }

    #[test]
    fn escaped_json_is_the_same() {
        let text = "a\x1b\x7f\u{9b}\u{202e}\n\"ä🦀";
        let json = escaped(&serde_json::json!({ text: text }).to_string());
        assert!(!json.contains(is_harmful), "{json}");
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&json).unwrap(),
            serde_json::json!({ text: text })
        );
    }

    #[test]
    fn a_shell_takes_it_as_one_word() {
        for (text, word) in [("a/b@1", "a/b@1"), ("it's $x", r"'it'\''s $x'"), ("", "''")] {
            assert_eq!(shell_quoted(text), word);
        }
    }

    #[test]
    fn near_words() {
        assert_eq!(did_you_mean("sqllite", &["dir", "sqlite"]), Some("sqlite"));
        assert_eq!(did_you_mean("Stor", &["store", "ttl"]), Some("store"));
        assert_eq!(did_you_mean("zzzzzz", &["store", "ttl"]), None);
    }
}
