//! Reads the URL and the bearer token.

use std::path::Path;

use reqwest::Url;
use reqwest::header::HeaderValue;

use crate::backends::mask::WEB;
use crate::backends::remote::is_here;
use crate::stores::{Failure, FailureKind};

/// A server of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Config {
    /// The part of the URL before `/v1/`.
    pub(super) base: String,
    /// The URL as people may see it.
    pub(super) shown: String,
    /// The connection uses TLS.
    pub(super) encrypted: bool,
    /// The server is on this machine.
    pub(super) loopback: bool,
}

impl Config {
    /// Reads a URL. The error is a sentence that says what to write.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let shown = WEB.shown(text);
        // Not repeated, because any part of it may be secret.
        let url = Url::parse(text)
            .map_err(|e| format!("The store's address is not a valid URL ({e}). Write https://HOST."))?;
        if !url.username().is_empty() || url.password().is_some() {
            let host = url.host_str().unwrap_or("HOST");
            return Err(format!(
                "The URL has a user or password before {host}, which this store does not use. Put the bearer token into a \
                 file, and name the file in LEASEHOLD_AUTH_FILE."
            ));
        }
        let mut insecure = false;
        for (key, value) in url.query_pairs() {
            if key != "insecure" || value != "yes" {
                return Err(format!(
                    "{shown} has the parameter {key:?}, which means nothing here. Only insecure=yes is known. A \
                     token belongs in the file that LEASEHOLD_AUTH_FILE names."
                ));
            }
            insecure = true;
        }
        if url.fragment().is_some() {
            return Err(format!("{shown} has a part after #, which means nothing here. Leave it out."));
        }
        let Some(host) = url.host_str() else {
            return Err(format!("{shown} names no host. Write https://HOST."));
        };
        let loopback = is_here(host);
        let encrypted = url.scheme() == "https";
        if !encrypted && !loopback && !insecure {
            return Err(format!(
                "{shown} is not encrypted, so others on the network could read the bearer token. Use https, or add \
                 ?insecure=yes if you trust the network."
            ));
        }
        let mut base = url.clone();
        base.set_query(None);
        let base = base.as_str().trim_end_matches('/').to_owned();
        Ok(Self { base, shown, encrypted, loopback })
    }
}

/// The header with the token in a file.
pub(super) fn bearer(path: &Path) -> Result<HeaderValue, Failure> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => failure(
            FailureKind::Unusable,
            format!("LEASEHOLD_AUTH_FILE names {shown}, which does not exist. Write the bearer token there."),
        ),
        std::io::ErrorKind::PermissionDenied => failure(
            FailureKind::Denied,
            format!(
                "LEASEHOLD_AUTH_FILE names {shown}, which this user may not read. Change its permissions."
            ),
        ),
        _ => failure(
            FailureKind::Unusable,
            format!(
                "LEASEHOLD_AUTH_FILE names {shown}, which cannot be read ({}). Check the file.",
                e.kind()
            ),
        ),
    })?;
    header(text.trim()).map_err(|f| Failure { message: format!("{shown}: {}", f.message), ..f })
}

/// The header with `token`, marked as sensitive, so that it is never printed.
pub(super) fn header(token: &str) -> Result<HeaderValue, Failure> {
    let good = !token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic());
    let value = HeaderValue::try_from(format!("Bearer {token}")).ok().filter(|_| good);
    let mut value = value.ok_or_else(|| {
        let message = "this is not a bearer token, which is one line of visible ASCII characters.";
        failure(FailureKind::Unusable, message.into())
    })?;
    value.set_sensitive(true);
    Ok(value)
}

fn failure(kind: FailureKind, message: String) -> Failure {
    Failure::new(kind, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_that_do() {
        let base = |url: &str| Config::parse(url).map(|p| (p.base, p.encrypted, p.loopback)).unwrap();
        assert_eq!(base("https://l.example"), ("https://l.example".into(), true, false));
        assert_eq!(base("https://l.example:8443/a/b/"), ("https://l.example:8443/a/b".into(), true, false));
        for local in ["http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1", "http://127.9.9.9:1"] {
            assert_eq!(base(local), (local.into(), false, true));
        }
        assert_eq!(base("http://h:1/?insecure=yes"), ("http://h:1".into(), false, false));
    }

    #[test]
    fn urls_that_do_not() {
        let bad = [
            ("http://l.example", "not encrypted"),
            ("http://127.0.0.1.example", "not encrypted"),
            ("http://localhost.example", "not encrypted"),
            ("http://l.example?insecure=no", "insecure=yes"),
            ("https://ops:s3cret@l.example", "LEASEHOLD_AUTH_FILE"),
            ("https://s3cret@l.example", "LEASEHOLD_AUTH_FILE"),
            ("https://l.example?token=s3cret", "LEASEHOLD_AUTH_FILE"),
            ("https://l.example#x", "after #"),
            ("https://", "not a valid URL"),
            ("https:", "not a valid URL"),
        ];
        for (url, says) in bad {
            let message = Config::parse(url).unwrap_err();
            assert!(message.contains(says) && message.ends_with('.'), "{url}: {message}");
            assert!(!message.contains("s3cret"), "{message}");
        }
    }

    #[test]
    fn tokens_are_one_line_and_never_shown() {
        for bad in ["", "two words", "line\nbreak", "é"] {
            assert_eq!(header(bad).unwrap_err().kind, FailureKind::Unusable);
        }
        assert!(!format!("{:?}", header("s3cret").unwrap()).contains("s3cret"));
    }
}
