//! Small help with what people type.

use strsim::levenshtein;

/// The known word that `typed` was probably meant to be.
pub fn did_you_mean<'a>(typed: &str, known: &[&'a str]) -> Option<&'a str> {
    let typed = typed.to_lowercase();
    let near = known.iter().map(|word| (levenshtein(&typed, word), *word));
    near.filter(|(distance, word)| *distance <= word.len().div_ceil(2)).min().map(|(_, word)| word)
}

/// What a password is shown as.
pub const MASK: &str = "***";

/// Parameters of URLs that may be shown. Any other may be a secret: a signature, a token, a password.
const HARMLESS: [&str; 28] = [
    "account",
    "application_name",
    "cacert",
    "cert",
    "channel_binding",
    "client_encoding",
    "connect_timeout",
    "database",
    "dbname",
    "endpoint",
    "gssencmode",
    "host",
    "hostaddr",
    "insecure",
    "keepalives",
    "options",
    "passfile",
    "port",
    "prefix",
    "region",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslnegotiation",
    "sslrootcert",
    "style",
    "target_session_attrs",
    "user",
];

/// Whether it can be a word before a colon, and no part of a password or a connection string.
pub fn is_word(text: &str) -> bool {
    !text.contains(|c: char| "=@".contains(c) || c.is_whitespace() || c.is_control())
}

/// A URL as it may be shown: passwords are masked before the host, and every parameter that is not known to be
/// harmless.
pub fn masked(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.into() };
    let (place, query) = rest.split_at(rest.find('?').unwrap_or(rest.len()));
    // What stands before a `@` in the first parameter's name was meant to be a password with a `?` in it.
    let astray = query.split('=').next().is_some_and(|name| name.contains('@'));
    let (place, query) = if astray { (rest, "") } else { (place, query) };
    let query = masked_parameters(scheme, query);
    // Over HTTP a name alone may be the secret: tokens are written that way. `git:https` is HTTP too.
    let web =
        scheme.rsplit(':').next().is_some_and(|s| ["http", "https"].contains(&&*s.to_ascii_lowercase()));
    let host = place.split(['/', '#']).next().and_then(|authority| authority.rfind('@'));
    if let Some(at) = host.filter(|_| web) {
        return format!("{scheme}://{MASK}{}{query}", &place[at..]);
    }
    // From the first colon to the last `@`: a password may contain either, and `/` and `#`, unescaped. A
    // user's name without a password comes before the first `@`.
    let secret = place.rfind('@').zip(place.find(':')).filter(|(at, colon)| colon < at);
    match secret.filter(|(_, colon)| place.find('@').is_some_and(|first| *colon < first)) {
        Some((at, colon)) => format!("{scheme}://{}:{MASK}{}{query}", &place[..colon], &place[at..]),
        None => format!("{scheme}://{place}{query}"),
    }
}

/// What begins with a `?`.
fn masked_parameters(scheme: &str, query: &str) -> String {
    let Some(query) = query.strip_prefix('?') else { return query.into() };
    let shown = |pair: &str| match pair.split_once('=') {
        Some(("endpoint", url)) => format!("endpoint={}", masked(url)),
        // Of Redis it is the name of a file.
        Some(("key", _)) if scheme.starts_with("redis") => pair.into(),
        Some((key, _)) if !HARMLESS.contains(&key) => format!("{key}={MASK}"),
        // Without a value it may be the secret itself.
        None if !pair.is_empty() && !HARMLESS.contains(&pair) => MASK.into(),
        _ => pair.to_owned(),
    };
    format!("?{}", query.split('&').map(shown).collect::<Vec<_>>().join("&"))
}

/// A part of a URL without its %XX; nothing where a % stands alone or spells no UTF-8.
pub fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|d| char::from(d).to_digit(16));
        let (high, low) = digit().zip(digit())?;
        bytes.push(u8::try_from(high * 16 + low).ok()?);
    }
    String::from_utf8(bytes).ok()
}

/// Whether a character moves the cursor, ends a line, colours, or turns the direction of what follows.
fn is_harmful(c: char) -> bool {
    let turns =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns || matches!(c, '\u{2028}' | '\u{2029}')
}

/// Text as it may be shown to people: it is one line, and does nothing to a terminal.
pub fn one_line(text: &str) -> String {
    text.chars().map(|c| if is_harmful(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// JSON as it may be shown: the same value, with the same characters escaped.
pub fn escaped(json: &str) -> String {
    let shown = |c: char| match is_harmful(c) {
        true => format!("\\u{:04x}", u32::from(c)),
        false => c.into(),
    };
    json.chars().map(shown).collect()
}

/// The same of a text with lines and tabs of its own, which stay.
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
    fn near_words() {
        assert_eq!(did_you_mean("sqllite", &["dir", "sqlite"]), Some("sqlite"));
        assert_eq!(did_you_mean("Stor", &["store", "ttl"]), Some("store"));
        assert_eq!(did_you_mean("zzzzzz", &["store", "ttl"]), None);
    }

    #[test]
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
        assert_eq!(masked("s3://b/p?insecure&region=a"), "s3://b/p?insecure&region=a");
        assert_eq!(masked("s3://b/p?"), "s3://b/p?");
        assert_eq!(masked("rediss://h?cert=a&key=b"), "rediss://h?cert=a&key=b");
        assert_eq!(masked("az://box?key=s3cret"), "az://box?key=***");
        assert_eq!(masked("https://h/l?access_TOKEN=s3cret"), "https://h/l?access_TOKEN=***");
        for secret in ["s3cret", "s3cret:x-oauth-basic", "x:s3cret", "a@s3cret"] {
            assert_eq!(masked(&format!("git:https://{secret}@host/r")), "git:https://***@host/r", "{secret}");
            assert_eq!(masked(&format!("HTTP://{secret}@host")), "HTTP://***@host", "{secret}");
        }
        assert_eq!(masked("https://ops:a/s3cret@db/ops"), "https://ops:***@db/ops");
        assert_eq!(masked("https://host/@scope/r"), "https://host/@scope/r");
        for plain in ["sqlite:/a/b@c:d", "dir:/x", "postgres://db/ops", "postgres://ops@db/a:b@c"] {
            assert_eq!(masked(plain), plain);
        }
    }
}
