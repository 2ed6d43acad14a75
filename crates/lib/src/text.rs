//! Small help with what people type.

/// The known word that `typed` was probably meant to be.
pub fn did_you_mean<'a>(typed: &str, known: &[&'a str]) -> Option<&'a str> {
    let typed = typed.to_lowercase();
    let near = known.iter().map(|word| (distance(&typed, word), *word));
    near.filter(|(distance, word)| *distance <= word.len().div_ceil(2)).min().map(|(_, word)| word)
}

/// How many letters to change, add or drop to get from one to the other.
pub(crate) fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let change = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

/// What a password is shown as.
pub const MASK: &str = "***";

/// A URL as it may be shown: passwords are masked, before the host and among the parameters.
pub fn masked(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.into() };
    let (place, query) = rest.split_at(rest.find('?').unwrap_or(rest.len()));
    // What stands before a `@` in the first parameter's name was meant to be a password with a `?` in it.
    let astray = query.split('=').next().is_some_and(|name| name.contains('@'));
    let (place, query) = if astray { (rest, "") } else { (place, query) };
    let query = masked_parameters(query);
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

fn masked_parameters(path: &str) -> String {
    let Some((path, query)) = path.split_once('?') else { return path.into() };
    let secret = |key: &str| {
        let key = key.to_ascii_lowercase();
        // An escaped name is nothing that people write: it is not worth reading.
        key.contains('%')
            || ["password", "passwd", "secret", "token", "signature"].iter().any(|word| key.contains(word))
    };
    let shown: Vec<String> = query
        .split('&')
        .map(|pair| match pair.split_once('=') {
            Some((key, _)) if secret(key) => format!("{key}={MASK}"),
            _ => pair.into(),
        })
        .collect();
    format!("{path}?{}", shown.join("&"))
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

/// Text of somebody else as it may be shown: nothing in it moves the cursor, colours or turns what follows.
pub fn harmless(text: &str) -> String {
    let turns = |c| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let shown = |c: char| !turns(c) && (!c.is_control() || c == '\n' || c == '\t');
    text.replace("\r\n", "\n")
        .chars()
        .map(|c| if shown(c) { c } else { char::REPLACEMENT_CHARACTER })
        .collect()
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
    }

    #[test]
    fn distances() {
        assert_eq!(distance("dir", "dir"), 0);
        assert_eq!(distance("", "dir"), 3);
        assert_eq!(distance("sqllite", "sqlite"), 1);
        assert_eq!(distance("dri", "dir"), 2);
        assert_eq!(did_you_mean("Stor", &["store", "ttl"]), Some("store"));
        assert_eq!(did_you_mean("zzzzzz", &["store", "ttl"]), None);
    }

    #[test]
    fn passwords_are_not_shown() {
        assert_eq!(masked("postgres://ops:s3cret@db/ops"), "postgres://ops:***@db/ops");
        assert_eq!(masked("postgres://ops:p@ss@db:5432/ops?x=1"), "postgres://ops:***@db:5432/ops?x=1");
        assert_eq!(masked("redis://:s3cret@h"), "redis://:***@h");
        for odd in ["p#s3cret", "12?s3cret", "a/s3cret", "a@s3cret", "?s3cret", "a@b/s3cret", "#s3cret?x@"] {
            assert_eq!(masked(&format!("postgres://ops:{odd}@db/ops")), "postgres://ops:***@db/ops", "{odd}");
        }
        assert_eq!(masked("postgres://db/a?pass%77ord=s3cret"), "postgres://db/a?pass%77ord=***");
        assert_eq!(masked("s3://b/p?endpoint=http://h:1/x"), "s3://b/p?endpoint=http://h:1/x");
        assert_eq!(masked("pg://db/a?password=s3cret&x=1"), "pg://db/a?password=***&x=1");
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
