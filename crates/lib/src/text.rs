//! Small help with what people type.

/// The known word that `typed` was probably meant to be.
pub fn did_you_mean<'a>(typed: &str, known: &[&'a str]) -> Option<&'a str> {
    let typed = typed.to_lowercase();
    let near = known.iter().map(|word| (distance(&typed, word), *word));
    near.filter(|(distance, word)| *distance <= word.len().div_ceil(2)).min().map(|(_, word)| word)
}

/// How many letters to change, add or drop to get from one to the other.
fn distance(from: &str, to: &str) -> usize {
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
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let path = masked_parameters(path);
    match authority.rsplit_once('@').map(|(user, host)| (user.split_once(':'), host)) {
        Some((Some((name, _)), host)) => format!("{scheme}://{name}:{MASK}@{host}{path}"),
        _ => format!("{scheme}://{authority}{path}"),
    }
}

fn masked_parameters(path: &str) -> String {
    let Some((path, query)) = path.split_once('?') else { return path.into() };
    let secret = |key: &str| {
        let key = key.to_ascii_lowercase();
        ["password", "passwd", "secret", "token", "signature"].iter().any(|word| key.contains(word))
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

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(masked("pg://db/a?password=s3cret&x=1"), "pg://db/a?password=***&x=1");
        assert_eq!(masked("https://h/l?access_TOKEN=s3cret"), "https://h/l?access_TOKEN=***");
        for plain in ["sqlite:/a/b@c:d", "dir:/x", "postgres://db/ops", "postgres://ops@db/a:b@c"] {
            assert_eq!(masked(plain), plain);
        }
    }
}
