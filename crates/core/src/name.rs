//! The grammar of the names of leases and jobs.

use alloc::string::String;
use core::fmt;

/// Longest name, in bytes.
pub const NAME_MAX: usize = 128;

/// The name of a lease or a job: `[a-z0-9][a-z0-9._/-]{0,127}`, without `..`.
///
/// Such a name is safe as a path, a key and a metric label.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

impl Name {
    /// Checks the grammar. The error says what is wrong, and suggests a name.
    pub fn new(text: &str) -> Result<Self, NameError> {
        match problem(text) {
            None => Ok(Self(text.into())),
            Some(problem) => Err(NameError { text: text.into(), problem, suggestion: suggestion(text) }),
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl serde::Serialize for Name {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.0)
    }
}

impl<'de> serde::Deserialize<'de> for Name {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        Self::new(&text).map_err(serde::de::Error::custom)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

/// Why a text is not a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameError {
    text: String,
    problem: &'static str,
    suggestion: Option<String>,
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is not a valid name ({}). Use a-z 0-9 . _ / -, starting with a letter or digit, at most {NAME_MAX}",
            self.text, self.problem
        )?;
        match &self.suggestion {
            Some(good) => write!(f, ", for example: {good}"),
            None => Ok(()),
        }
    }
}

impl core::error::Error for NameError {}

fn allowed(c: char) -> bool {
    matches!(c, 'a'..='z' | '0'..='9' | '.' | '_' | '/' | '-')
}

fn problem(text: &str) -> Option<&'static str> {
    let first = text.chars().next();
    if first.is_none() {
        Some("it is empty")
    } else if text.len() > NAME_MAX {
        Some("it is too long")
    } else if text.chars().any(char::is_whitespace) {
        Some("it contains a space")
    } else if text.chars().any(char::is_uppercase) {
        Some("upper case")
    } else if !text.chars().all(allowed) {
        Some("a character that is not allowed")
    } else if text.contains("..") {
        Some("it contains \"..\"")
    } else if !first.is_some_and(|c| c.is_ascii_alphanumeric()) {
        Some("it starts with a punctuation mark")
    } else {
        None
    }
}

/// A valid name in lower case and with dashes, if that makes one.
fn suggestion(text: &str) -> Option<String> {
    let mut good = String::new();
    for c in text.chars().flat_map(char::to_lowercase) {
        let c = if allowed(c) { c } else { '-' };
        let doubled = (c == '-' || c == '.') && good.ends_with(c);
        let leading = good.is_empty() && !c.is_ascii_alphanumeric();
        if !doubled && !leading && good.len() < NAME_MAX {
            good.push(c);
        }
    }
    let good = good.trim_end_matches('-');
    problem(good).is_none().then(|| good.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn names_that_are_accepted() {
        let longest = "a".repeat(128);
        for good in ["a", "0", "gemilab", "repo/main", "a.b_c-d/e", longest.as_str()] {
            assert!(Name::new(good).is_ok(), "{good}");
        }
    }

    #[test]
    fn names_that_are_refused() {
        let long = "a".repeat(129);
        for bad in
            ["", "A", "a b", "../x", "a..b", ".a", "-a", "/a", "_a", "ä", "a\n", "a\0", "a%b", long.as_str()]
        {
            assert!(Name::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_error_suggests_a_name_that_works() {
        let error = Name::new("Gemi Lab").unwrap_err().to_string();
        assert!(error.contains("for example: gemi-lab"), "{error}");
        let error = Name::new("../escaped").unwrap_err().to_string();
        assert!(error.contains("for example: escaped"), "{error}");
    }
}
