//! The bearer tokens of clients, and what each may do.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use leasehold::core::write_policy::Rights;
use sha2::{Digest, Sha256};

use crate::cmd::item_args::quoted;
use crate::exit::{FailKind, Failed};
use crate::messages::serve as say;

/// Shorter ones can be guessed.
const SHORTEST: usize = 16;

type Hash = [u8; 32];

/// The clients that are served.
#[derive(Debug)]
pub enum Tokens {
    /// Every client, with or without a token.
    Anybody(Rights),
    /// Clients with one of these tokens.
    Known(Vec<(Hash, Rights)>),
}

impl Tokens {
    /// Reads lines of `TOKEN PREFIX [admin]`; `*` is every name.
    pub fn read(path: &Path) -> Result<Self, Failed> {
        let shown = path.display();
        let cannot = |e: std::io::Error| {
            let denied = e.kind() == std::io::ErrorKind::PermissionDenied;
            let (kind, word) =
                if denied { (FailKind::Denied, "denied") } else { (FailKind::Config, "config") };
            Failed::new(kind, word, say::unread_tokens(&shown, e))
        };
        let meta = std::fs::metadata(path).map_err(cannot)?;
        if meta.mode() & 0o077 != 0 {
            return Err(say::readable_tokens(&shown, quoted(&shown.to_string())));
        }
        let text = std::fs::read_to_string(path).map_err(cannot)?;
        Self::parse(&text).map_err(|(line, why)| say::bad_tokens(&shown, line, why))
    }

    fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut known: Vec<(Hash, Rights)> = Vec::new();
        let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
        for (at, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (token, prefix, admin) = match words[..] {
                [token, prefix] => (token, prefix, false),
                [token, prefix, "admin"] => (token, prefix, true),
                _ => return Err((at, say::not_a_token_line())),
            };
            if token.len() < SHORTEST {
                return Err((at, say::short_token(SHORTEST)));
            }
            let prefix = if prefix == "*" { String::new() } else { prefix.into() };
            let hash = hash(token);
            if known.iter().any(|(other, _)| *other == hash) {
                return Err((at, say::token_twice()));
            }
            known.push((hash, Rights { prefix, admin }));
        }
        match known.is_empty() {
            true => Err((1, say::no_token())),
            false => Ok(Self::Known(known)),
        }
    }

    /// What the bearer of this header may do; `None` for an unknown bearer.
    pub fn rights(&self, authorization: Option<&[u8]>) -> Option<&Rights> {
        let known = match self {
            // Where no token is needed, any token will do.
            Self::Anybody(rights) => return Some(rights),
            Self::Known(known) => known,
        };
        let text = std::str::from_utf8(authorization?).ok()?;
        let (scheme, token) = text.split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let sent = hash(token.trim());
        // Every entry is compared to its end, so that the time taken gives nothing away.
        let mut found = None;
        for (hash, rights) in known {
            let differ = hash.iter().zip(sent).fold(0_u8, |all, (a, b)| all | (a ^ b));
            if std::hint::black_box(differ) == 0 {
                found = Some(rights);
            }
        }
        found
    }
}

fn hash(token: &str) -> Hash {
    Sha256::digest(token.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_opens_its_own_names() {
        let text = "# mine\nabcdefghijklmnop team-a/\n\nqrstuvwxyz0123456 * admin\n";
        let tokens = Tokens::parse(text).unwrap();
        let rights = |header: &str| tokens.rights(Some(header.as_bytes())).cloned();
        assert_eq!(
            rights("Bearer abcdefghijklmnop"),
            Some(Rights { prefix: "team-a/".into(), admin: false })
        );
        assert_eq!(rights("bearer qrstuvwxyz0123456"), Some(Rights { prefix: String::new(), admin: true }));
        for bad in
            ["", "Bearer", "Bearer ", "Bearer abcdefghijklmno", "Basic abcdefghijklmnop", "abcdefghijklmnop"]
        {
            assert_eq!(rights(bad), None, "{bad}");
        }
        assert_eq!(tokens.rights(None), None);
    }

    #[test]
    fn a_bad_file_is_named_by_its_line() {
        for (text, line) in [
            ("", 1),
            ("# only\n", 1),
            ("short *\n", 1),
            ("# x\nabcdefghijklmnop\n", 2),
            ("abcdefghijklmnop * boss\n", 1),
            ("abcdefghijklmnop *\nabcdefghijklmnop a\n", 2),
        ] {
            let (at, why) = Tokens::parse(text).unwrap_err();
            assert_eq!(at, line, "{text:?}: {why}");
            assert!(!why.contains("abcdef"));
        }
    }
}
