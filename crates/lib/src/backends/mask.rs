//! Masks passwords and tokens in URLs that are shown.

use crate::text::{MASK, is_word};

/// The parts of a URL that are not secret.
pub(super) struct Masking {
    /// Parameters that may be shown. Any other may be a secret: a signature, a token, a password.
    pub harmless: &'static [&'static str],
    /// A user name without a password may be a secret: over HTTP a token is written that way. A password is never shown.
    pub user_is_secret: bool,
}

/// For URLs over HTTP.
pub(super) const WEB: Masking = Masking { harmless: &["insecure"], user_is_secret: true };

impl Masking {
    /// The URL without its secrets.
    pub fn shown(&self, url: &str) -> String {
        let Some((scheme, rest)) = url.split_once("://") else { return without_host(url) };
        let (place, query) = rest.split_at(rest.find('?').unwrap_or(rest.len()));
        // An `@` in the first parameter's name: the `?` is part of a password.
        let in_password = query.split('=').next().is_some_and(|name| name.contains('@'));
        let (place, query) = if in_password { (rest, "") } else { (place, query) };
        let query = self.parameters(query);
        let host = place.split(['/', '#']).next().and_then(|authority| authority.rfind('@'));
        if let Some(at) = host.filter(|_| self.user_is_secret) {
            return format!("{scheme}://{MASK}{}{query}", &place[at..]);
        }
        // From the first colon to the last `@`: a password may contain both, and `/` and `#`, without escapes. A user
        // name without a password comes before the first `@`.
        let secret = place.rfind('@').zip(place.find(':')).filter(|(at, colon)| colon < at);
        match secret.filter(|(_, colon)| place.find('@').is_some_and(|first| *colon < first)) {
            Some((at, colon)) => format!("{scheme}://{}:{MASK}{}{query}", &place[..colon], &place[at..]),
            None => format!("{scheme}://{place}{query}"),
        }
    }

    /// The part from the `?`.
    fn parameters(&self, query: &str) -> String {
        let Some(query) = query.strip_prefix('?') else { return query.into() };
        let shown = |pair: &str| match pair.split_once('=') {
            Some(("endpoint", url)) if self.harmless.contains(&"endpoint") => {
                format!("endpoint={}", WEB.shown(url))
            }
            Some((key, _)) if !self.harmless.contains(&key) => format!("{key}={MASK}"),
            // A parameter without a value may be the secret itself.
            None if !pair.is_empty() && !self.harmless.contains(&pair) => MASK.into(),
            _ => pair.to_owned(),
        };
        format!("?{}", query.split('&').map(shown).collect::<Vec<_>>().join("&"))
    }
}

/// A URL without `//`. A password may be anywhere in it.
fn without_host(url: &str) -> String {
    match url.split_once(':') {
        Some((_, rest)) if rest.contains(['@', '=']) => hidden(url),
        _ => url.into(),
    }
}

/// A text without a known scheme. Any part of it may be secret.
pub(super) fn hidden(url: &str) -> String {
    match url.split_once(':') {
        Some((scheme, _)) if is_word(scheme) => format!("{scheme}:…"),
        _ => "…".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::shown as masked;

    #[test]
    #[cfg(all(
        feature = "firestore",
        feature = "http",
        feature = "object",
        feature = "postgres",
        feature = "redis",
        feature = "sqlite"
    ))]
    fn passwords_are_not_shown() {
        assert_eq!(masked("postgres://ops:s3cret@db/ops"), "postgres://ops:***@db/ops");
        assert_eq!(masked("postgres://ops:p@ss@db:5432/ops?x=1"), "postgres://ops:***@db:5432/ops?x=***");
        assert_eq!(masked("redis://:s3cret@h"), "redis://:***@h");
        for odd in ["p#s3cret", "12?s3cret", "a/s3cret", "a@s3cret", "?s3cret", "a@b/s3cret", "#s3cret?x@"] {
            assert_eq!(masked(&format!("postgres://ops:{odd}@db/ops")), "postgres://ops:***@db/ops", "{odd}");
        }
        assert_eq!(masked("postgres://db/a?pass%77ord=s3cret"), "postgres://db/a?pass%77ord=***");
        assert_eq!(masked("s3://b/p?endpoint=http://h:1/x"), "s3://b/p?endpoint=http://h:1/x");
        assert_eq!(masked("pg://db/a?password=s3cret&user=a"), "pg://db/a?password=***&user=a");
        assert_eq!(masked("az://box/key?sig=s3cret&account=a"), "az://box/key?sig=***&account=a");
        assert_eq!(masked("s3://b/p?endpoint=http://u:s3cret@h"), "s3://b/p?endpoint=http://***@h");
        assert_eq!(masked("git:https://h/r?private_token=s3cret"), "git:https://h/r?private_token=***");
        assert_eq!(masked("git:https://h/r.git?glpat-s3cret"), "git:https://h/r.git?***");
        assert_eq!(masked("postgres://db/a?s3cret&user=a"), "postgres://db/a?***&user=a");
        assert_eq!(masked("s3://b/p?"), "s3://b/p?");
        assert_eq!(masked("rediss://h?cert=a&key=b"), "rediss://h?cert=a&key=b");
        assert_eq!(masked("az://box?key=s3cret"), "az://box?key=***");
        assert_eq!(masked("https://h/l?access_TOKEN=s3cret"), "https://h/l?access_TOKEN=***");
        for secret in ["s3cret", "s3cret:x-oauth-basic", "x:s3cret", "a@s3cret"] {
            assert_eq!(masked(&format!("git:https://{secret}@host/r")), "git:https://***@host/r", "{secret}");
            assert_eq!(masked(&format!("http://{secret}@host")), "http://***@host", "{secret}");
            assert_eq!(masked(&format!("HTTP://{secret}@host")), "HTTP:…", "{secret}");
        }
        assert_eq!(masked("https://ops:a/s3cret@db/ops"), "https://ops:***@db/ops");
        assert_eq!(masked("https://host/@scope/r"), "https://host/@scope/r");
        for plain in ["sqlite:/a/b@c:d", "postgres://db/ops", "postgres://ops@db/a:b@c"] {
            assert_eq!(masked(plain), plain);
        }
    }

    #[test]
    #[cfg(all(feature = "object", feature = "postgres", feature = "redis", feature = "sqlite"))]
    fn a_mask_is_known_where_a_secret_may_be() {
        use super::super::is_masked;

        for secret in [
            "postgres://ops:s3cret@db/ops",
            "postgres://db/a?password=s3cret",
            "redis://:s3cret@h#k",
            "s3://b/p?endpoint=http://u:s3cret@h",
            "git:https://s3cret@h/r?token=s3cret",
        ] {
            assert!(is_masked(&masked(secret)) && !is_masked(secret), "{secret}");
        }
        for plain in ["file:/a/***/b", "sqlite:/a***", "s3://b/***", "***", "zoo:***"] {
            assert!(!is_masked(plain), "{plain}");
        }
    }

    #[test]
    fn nothing_is_repeated_of_what_is_not_known() {
        for (given, shown) in [("s3cret", "…"), ("host=h password=s3cret:x", "…"), ("zoo:s3cret", "zoo:…")]
        {
            assert_eq!(masked(given), shown);
        }
    }
}
