//! The password, if the URL has none: from `PGPASSWORD`, then from the password file, as with libpq.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::config::{Config, Host};

/// The password for this server, if there is one.
pub(super) fn find(config: &Config, host: &Host, env: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    if let Some(given) = &config.password {
        return Some(given.clone());
    }
    if let Some(given) = env("PGPASSWORD").filter(|p| !p.is_empty()) {
        return Some(given);
    }
    let home = || env("HOME").map(|home| PathBuf::from(home).join(".pgpass"));
    let file = config.passfile.clone().or_else(|| env("PGPASSFILE").map(PathBuf::from)).or_else(home)?;
    let user = config.user.as_deref().unwrap_or_default();
    let wanted = [
        // In the password file, a socket in the default directory is called localhost.
        if host.name == "/var/run/postgresql" { "localhost" } else { &host.name },
        &host.port.to_string(),
        config.dbname.as_deref().unwrap_or(user),
        user,
    ];
    lookup(&private(&file)?, wanted)
}

/// The file's text, unless other users may read the file; then it is ignored, as by libpq.
fn private(file: &Path) -> Option<String> {
    let about = fs::metadata(file).ok()?;
    let shared = about.permissions().mode() & 0o077 != 0;
    if shared || !about.is_file() { None } else { fs::read_to_string(file).ok() }
}

/// The password of the first line that matches host, port, database and user.
fn lookup(text: &str, wanted: [&str; 4]) -> Option<String> {
    let matching = |line: &str| {
        let fields = fields(line);
        let fits = fields.len() >= 5 && fields.iter().zip(wanted).all(|(f, w)| f == "*" || f == w);
        fits.then(|| fields[4].clone())
    };
    text.lines().filter(|line| !line.starts_with('#')).find_map(matching)
}

/// The fields of one line; a backslash takes the next character as it is.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        let last = fields.len() - 1;
        match letter {
            '\\' => fields[last].extend(letters.next()),
            ':' if last < 4 => fields.push(String::new()),
            letter => fields[last].push(letter),
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let text = "# a comment\nh:5432:ops:me:one\n*:*:*:me:t\\:w\\\\o:x\nother:1:d:*:\n";
        assert_eq!(lookup(text, ["h", "5432", "ops", "me"]).as_deref(), Some("one"));
        assert_eq!(lookup(text, ["h", "5433", "ops", "me"]).as_deref(), Some("t:w\\o:x"));
        assert_eq!(lookup(text, ["h", "5432", "ops", "you"]), None);
        assert_eq!(lookup("short:line", ["short", "line", "", ""]), None);
    }

    #[test]
    fn where_it_is_looked_for() {
        let dir = std::env::temp_dir().join(format!("leasehold-pgpass-{}", crate::random::seed()));
        fs::write(&dir, "*:*:*:*:from file").unwrap();
        let env = |name: &str| (name == "PGPASSFILE").then(|| dir.display().to_string());
        let find = |url: &str, env: &dyn Fn(&str) -> Option<String>| {
            let config = Config::parse(url, env).ok().unwrap();
            super::find(&config, &config.hosts[0], env)
        };
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(find("postgres://u@h/d", &env), None);
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(find("postgres://u@h/d", &env).as_deref(), Some("from file"));
        assert_eq!(find("postgres://u:own@h/d", &env).as_deref(), Some("own"));
        let named = format!("postgres://u@h/d?passfile={}", dir.display());
        assert_eq!(find(&named, &|_| None).as_deref(), Some("from file"));
        let both = |name: &str| (name == "PGPASSWORD").then(|| "from env".into()).or_else(|| env(name));
        assert_eq!(find("postgres://u@h/d", &both).as_deref(), Some("from env"));
        fs::remove_file(&dir).unwrap();
    }
}
