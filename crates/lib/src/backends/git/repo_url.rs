//! The repository that a URL means, and the other spellings of the URL.

use std::path::{Path, PathBuf};

use crate::backends::mask::WEB;
use crate::text::MASK;

/// A repository, independent of the spelling of its URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RepoIdentity {
    /// On a server. The scheme does not matter; the port does, because another port may be another server.
    Host { host: String, port: Option<u16>, path: String },
    /// On this machine.
    Local(PathBuf),
}

impl RepoIdentity {
    /// Its path without `.git`, if it is on this machine.
    pub(super) fn local(&self) -> Option<&Path> {
        match self {
            Self::Local(path) => Some(path),
            Self::Host { .. } => None,
        }
    }
}

struct Parts<'a> {
    scheme: Option<&'a str>,
    user: Option<&'a str>,
    host: &'a str,
    port: Option<u16>,
    path: &'a str,
}

/// The prefix of the scheme of a URL with a secret; a helper has the same name. When git shows such a URL, it leaves out the
/// user and the password, as it does for plain HTTP. It would show them after `leasehold::`.
pub(super) const SECRET_PREFIX: &str = "leasehold-";
/// The schemes that have such a helper.
pub(super) const SECRET_SCHEMES: [&str; 4] = ["http", "https", "ssh", "git"];

/// A URL, or the first part of one, with the prefix; None if there is no helper for its scheme.
pub(super) fn with_secret_scheme(url: &str) -> Option<String> {
    let (scheme, _) = url.split_once("://")?;
    SECRET_SCHEMES.contains(&scheme).then(|| format!("{SECRET_PREFIX}{url}"))
}

/// The URL without the prefix.
pub(super) fn without_secret_scheme(url: &str) -> &str {
    url.strip_prefix(SECRET_PREFIX).filter(|bare| with_secret_scheme(bare).is_some()).unwrap_or(url)
}

/// The parts of a URL or of `user@host:path`; None if it is a path.
fn parts(url: &str) -> Option<Parts<'_>> {
    let (scheme, authority, path) = match url.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            (Some(scheme), authority, path)
        }
        None => {
            let (authority, path) = url.split_once(':')?;
            if authority.contains('/') || authority.is_empty() {
                return None;
            }
            (None, authority, path)
        }
    };
    let (user, host) =
        authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
    let (host, port) = match host.rsplit_once(':').map(|(host, port)| (host, port.parse().ok())) {
        Some((host, Some(port))) => (host, Some(port)),
        _ => (host, None),
    };
    let port = port.filter(|port| {
        !matches!(
            (scheme, port),
            (Some("https"), 443)
                | (Some("http"), 80)
                | (Some("ssh" | "git+ssh" | "ssh+git"), 22)
                | (Some("git"), 9418)
        )
    });
    Some(Parts { scheme, user, host, port, path: path.trim_start_matches('/') })
}

/// The URL without a slash or `.git` at its end.
fn stem(url: &str) -> &str {
    let url = url.trim_end_matches('/');
    url.strip_suffix(".git").unwrap_or(url).trim_end_matches('/')
}

/// The path of a URL on this machine.
pub(super) fn local(url: &str) -> Option<&str> {
    match parts(url) {
        Some(parts) if parts.scheme == Some("file") => {
            let path = url.strip_prefix("file://")?;
            Some(path.strip_prefix("localhost").filter(|path| path.starts_with('/')).unwrap_or(path))
        }
        Some(_) => None,
        None => Some(url),
    }
}

/// The repository that a URL means.
pub(super) fn identity(url: &str) -> RepoIdentity {
    if let Some(path) = local(url) {
        return RepoIdentity::Local(real(path));
    }
    match parts(url) {
        Some(parts) => RepoIdentity::Host {
            host: parts.host.to_ascii_lowercase(),
            port: parts.port,
            path: straight(stem(parts.path)),
        },
        None => RepoIdentity::Local(real(url)),
    }
}

/// A path without redundant steps: `a//b`, `a/./b`, `a/c/../b`.
fn straight(path: &str) -> String {
    let mut steps: Vec<&str> = Vec::new();
    for step in path.split('/').filter(|step| !matches!(*step, "" | ".")) {
        match (step, steps.last()) {
            ("..", Some(last)) if *last != ".." => drop(steps.pop()),
            _ => steps.push(step),
        }
    }
    steps.join("/")
}

/// Whether it is a relative path.
pub(super) fn is_relative(url: &str) -> bool {
    local(url).is_some_and(|path| !Path::new(path).is_absolute())
}

/// The relative path from one absolute path to another.
pub(super) fn way(from: &Path, to: &Path) -> PathBuf {
    let shared = from.components().zip(to.components()).take_while(|(a, b)| a == b).count();
    let up = from.components().skip(shared).map(|_| std::path::Component::ParentDir);
    up.chain(to.components().skip(shared)).collect()
}

/// The canonical path without `.git`.
fn real(path: &str) -> PathBuf {
    let stem = stem(path);
    let tries = [path.to_owned(), format!("{stem}.git"), stem.to_owned()];
    let found = tries.iter().find_map(|path| Path::new(path).canonicalize().ok());
    let absolute = || std::path::absolute(path).unwrap_or_else(|_| path.into());
    let found = found.unwrap_or_else(absolute);
    found.to_str().map_or_else(|| found.clone(), |text| PathBuf::from(self::stem(text)))
}

/// The spellings that a child may use, as prefixes, so that one without `.git` covers both.
pub(super) fn spellings(url: &str) -> Vec<String> {
    if is_relative(url) && !url.starts_with('.') {
        return vec![url.into()];
    }
    let mut all = vec![stem(url).to_owned()];
    match identity(url) {
        // A relative path means another place elsewhere, so it has no other spelling.
        _ if is_relative(url) => {}
        RepoIdentity::Local(path) => {
            let path = path.to_string_lossy().into_owned();
            all.extend([format!("file://{path}"), format!("file://localhost{path}"), path]);
        }
        RepoIdentity::Host { host, port: Some(port), path } => {
            if let Some(Parts { scheme: Some(scheme), .. }) = parts(url) {
                all.push(format!("{scheme}://{host}:{port}/{path}"));
            }
        }
        RepoIdentity::Host { host, port: None, path } => {
            let user =
                parts(url).and_then(|parts| parts.user).map(|user| user.split(':').next().unwrap_or(user));
            for (scheme, port) in [("https", 443), ("http", 80), ("ssh", 22), ("git", 9418)] {
                all.push(format!("{scheme}://{host}/{path}"));
                all.push(format!("{scheme}://{host}:{port}/{path}"));
            }
            // With and without the leading slash: the same on servers without home directories.
            for user in user.into_iter().chain(["git"]) {
                let at = format!("{user}@{host}");
                all.extend([format!("{at}:{path}"), format!("{at}:/{path}")]);
                let over = ["ssh", "git+ssh", "ssh+git"].map(|scheme| format!("{scheme}://{at}/{path}"));
                all.extend(over);
                all.push(format!("ssh://{at}:22/{path}"));
            }
            all.push(format!("{host}:/{path}"));
            all.push(format!("{host}:{path}"));
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    all.retain(|spelling| !spelling.is_empty() && seen.insert(spelling.clone()));
    // Git uses the longest match, and of two equal ones the first. So the full spelling is added too.
    all.into_iter().flat_map(|short| [format!("{short}.git"), short]).collect()
}

/// Whether git reaches it over HTTP.
pub(super) fn is_http(url: &str) -> bool {
    url.starts_with("http://") || url.starts_with("https://")
}

/// The user and password in a URL, if they may be secret: over HTTP a user alone may be a token.
fn secret(url: &str) -> Option<&str> {
    if !url.contains("://") {
        return None;
    }
    let parts = parts(url)?;
    parts.user.filter(|user| is_http(url) || user.contains(':'))
}

/// The part of a spelling of `url` before its secret, if it has one.
pub(super) fn before_secret<'a>(spelling: &'a str, url: &str) -> Option<&'a str> {
    let secret = secret(url)?;
    let at = spelling.find(&format!("{secret}@"))?;
    let name = secret.split_once(':').map_or(0, |(name, _)| name.len() + 1);
    Some(&spelling[..at + name])
}

/// As people may see it.
pub(super) fn shown(url: &str) -> String {
    hidden(url, url)
}

/// The secret in `user:password@host/path`, which git takes for a path on the host `user`.
fn without_scheme(url: &str) -> Option<&str> {
    let (user, rest) = url.split_once(':').filter(|(user, _)| !user.contains(['/', '@']))?;
    let at = rest.rfind('@').filter(|_| !rest.starts_with("//"))?;
    Some(&url[..=user.len() + at])
}

/// A text without the secrets of `url`.
pub(super) fn hidden(text: &str, url: &str) -> String {
    let mut text = text.to_owned();
    if let (Some((_, query)), shown) = (url.split_once('?'), WEB.shown(url))
        && let Some((_, masked)) = shown.split_once('?')
    {
        text = text.replace(query, masked);
    }
    let Some(secret) = secret(url).or_else(|| without_scheme(url)) else { return text };
    let text = text.replace(&format!("{secret}@"), &format!("{MASK}@"));
    match secret.split_once(':') {
        Some((_, password)) if password.len() > 3 => text.replace(password, MASK),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_repository_in_many_spellings() {
        let one = identity("https://Example.test/o/r.git");
        for same in [
            "http://example.test/o/r",
            "ssh://git@example.test/o/r.git/",
            "git@example.test:o/r.git",
            "https://x:y@example.test:443/o/r",
            "example.test:o/r",
            "git+ssh://deploy@EXAMPLE.test:22/o//./x/../r",
            "git://example.test:9418//o/r.git",
        ] {
            assert_eq!(identity(same), one, "{same}");
        }
        for other in
            ["https://example.test/o/r2", "https://example.test:8443/o/r", "/o/r", "https://b.test/o/r"]
        {
            assert_ne!(identity(other), one, "{other}");
        }
        assert_eq!(identity("/nowhere/r.git/"), identity("file:///nowhere/r"));
        assert_eq!(identity("/nowhere/r"), identity("file://localhost/nowhere/r.git"));
    }

    #[test]
    fn every_spelling_is_covered() {
        let keys = spellings("git@example.test:o/r.git");
        for url in ["https://example.test/o/r.git", "ssh://git@example.test/o/r", "git@example.test:o/r.git"]
        {
            assert!(keys.iter().any(|key| key == url), "{url} in {keys:?}");
        }
        assert!(spellings("http://127.0.0.1:8080/r.git").contains(&"http://127.0.0.1:8080/r".to_owned()));
        assert!(spellings("/nowhere/r").contains(&"file:///nowhere/r.git".to_owned()));
    }

    #[test]
    fn spellings_end_before_their_secret() {
        assert_eq!(before_secret("https://u:s3cret@h/r", "https://u:s3cret@h/r"), Some("https://u:"));
        assert_eq!(before_secret("https://s3cret@h/r", "https://s3cret@h/r"), Some("https://"));
        for spelling in spellings("https://u:s3cret@h/r") {
            let secret = before_secret(&spelling, "https://u:s3cret@h/r").is_some();
            assert_eq!(secret, spelling.contains("s3cret"), "{spelling}");
        }
        assert_eq!(before_secret("git@h:r", "git@h:r"), None);
    }

    #[test]
    fn the_scheme_for_secrets_is_put_on_and_taken_off() {
        for url in ["http://u:s3cret@h/r", "https://", "ssh://u:s3cret@h/r"] {
            assert_eq!(without_secret_scheme(&with_secret_scheme(url).unwrap()), url);
        }
        for bare in ["/leasehold-x", "leasehold-host:r", "leasehold-x://h/r"] {
            assert_eq!(without_secret_scheme(bare), bare);
        }
        assert_eq!(with_secret_scheme("u@h:r"), None);
    }

    #[test]
    fn the_way_from_here_to_there() {
        let way = |from: &str, to: &str| way(Path::new(from), Path::new(to)).display().to_string();
        assert_eq!(way("/w/c", "/w/r.git"), "../r.git");
        assert_eq!(way("/w/c", "/w/c/x/r.git"), "x/r.git");
        assert_eq!(way("/a/b", "/c"), "../../c");
        assert_eq!(spellings("../r.git"), ["../r.git", "../r"]);
        assert_eq!(spellings("r.git"), ["r.git"]);
    }

    #[test]
    fn secrets_are_not_shown() {
        assert_eq!(shown("https://u:s3cret@h/r"), "https://***@h/r");
        assert_eq!(shown("https://s3cret@h/r"), "https://***@h/r");
        assert_eq!(shown("git@h:o/r"), "git@h:o/r");
        assert_eq!(shown("bot:s3cret@h/r.git"), "***@h/r.git");
        assert_eq!(shown("https://h/r.git?private_token=s3cret"), "https://h/r.git?private_token=***");
        assert_eq!(shown("https://u:s3cret@h/r?t=s3cret"), "https://***@h/r?t=***");
        let said = "fatal: unable to access 'https://h/r?t=tok3n/': no";
        assert_eq!(hidden(said, "https://h/r?t=tok3n"), "fatal: unable to access 'https://h/r?t=***/': no");
        assert_eq!(shown("ssh://git@h/r"), "ssh://git@h/r");
        let said = "fatal: cannot read 'https://u:s3cret@h/r': s3cret";
        assert_eq!(hidden(said, "https://u:s3cret@h/r"), "fatal: cannot read 'https://***@h/r': ***");
    }
}
