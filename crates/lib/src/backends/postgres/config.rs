//! Reads a `postgres://` URL as libpq does. Contacts nothing.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::params::refuse_misspelt;
use crate::backends::remote::is_here;
use crate::text::percent_decoded;

/// The directory of the socket if no host is named, as in libpq.
const SOCKET_DIR: &str = "/var/run/postgresql";

/// The settings in a URL, with defaults for the others.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Config {
    /// The hosts, tried in this order.
    pub hosts: Vec<Host>,
    pub user: Option<String>,
    pub password: Option<String>,
    pub dbname: Option<String>,
    pub application: Option<String>,
    pub options: Option<String>,
    pub connect_timeout: Option<Duration>,
    /// Another password file than the usual one.
    pub passfile: Option<PathBuf>,
    pub tls: Tls,
    pub binding: Binding,
    /// Parameters without effect.
    pub unused: Vec<String>,
}

/// One place a server may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    /// A name, an address, or the directory of a socket.
    pub name: String,
    /// The address to connect to, if it was given.
    pub address: Option<String>,
    pub port: u16,
}

impl Host {
    /// A socket in the file system, which no other machine can listen to.
    pub fn is_socket(&self) -> bool {
        self.name.starts_with(['/', '@'])
    }

    /// The connection stays on this machine.
    pub fn is_near(&self) -> bool {
        let there = self.address.as_deref().unwrap_or(&self.name);
        self.is_socket() || is_here(there)
    }

    /// The name that people see.
    pub fn shown(&self) -> String {
        match self.name.contains(':') {
            true => format!("[{}]:{}", self.name, self.port),
            false => format!("{}:{}", self.name, self.port),
        }
    }
}

/// The TLS settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tls {
    pub mode: TlsMode,
    pub root: Option<Root>,
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

/// `sslmode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TlsMode {
    Disable,
    Allow,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

/// `sslrootcert`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Root {
    System,
    File(PathBuf),
}

/// `channel_binding`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binding {
    Disable,
    Prefer,
    Require,
}

impl Config {
    /// Reads `url`. The error is a sentence that repeats no secret.
    pub fn parse(url: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Self, String> {
        let rest = url.split_once("://").map(|(_, rest)| rest).ok_or(
            "a PostgreSQL URL has // after the colon. Write postgres://USER@HOST/DATABASE.".to_owned(),
        )?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, dbname) = rest.split_once('/').unwrap_or((rest, ""));
        if dbname.contains('@') {
            return Err(
                "there is an @ after the first /. If the password contains a /, write it as %2F; in the name \
                 of a database, write @ as %40."
                    .into(),
            );
        }
        if query.split('&').any(|pair| pair.split('=').next().is_some_and(|name| name.contains('@'))) {
            return Err("there is an @ after the ?. If the password contains a ?, write it as %3F.".into());
        }
        let (who, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = who.split_once(':').map_or((who, None), |(u, p)| (u, Some(p)));
        let mut given = parameters(query)?;
        let mut said = |name: &str| given.remove(name).filter(|v| !v.is_empty());
        let hosts = named_hosts(hosts, said("host"), said("hostaddr"), said("port"))?;
        let user = said("user").or(non_empty(decoded(user)?)).or_else(|| env("PGUSER"));
        let password = match said("password") {
            None => password.map(decoded).transpose()?.filter(|p| !p.is_empty()),
            some => some,
        };
        let mode = said("sslmode").or_else(|| env("PGSSLMODE"));
        let root = said("sslrootcert").or_else(|| env("PGSSLROOTCERT"));
        let binding = said("channel_binding").or_else(|| env("PGCHANNELBINDING"));
        let timeout = said("connect_timeout");
        session_wanted(said("target_session_attrs").as_deref())?;
        let mut config = Self {
            hosts,
            user,
            password,
            dbname: said("dbname").or(non_empty(decoded(dbname)?)),
            application: said("application_name"),
            options: said("options"),
            connect_timeout: seconds(timeout.as_deref())?,
            passfile: said("passfile").map(PathBuf::from),
            tls: Tls {
                mode: mode_of(mode.as_deref())?,
                root: root.map(|r| if r == "system" { Root::System } else { Root::File(r.into()) }),
                cert: said("sslcert").map(PathBuf::from),
                key: said("sslkey").map(PathBuf::from),
            },
            binding: binding_of(binding.as_deref())?,
            unused: Vec::new(),
        };
        config.unused = given.into_keys().collect();
        config.unused.iter().try_for_each(|name| refuse_misspelt(name))?;
        config.tls.settle()?;
        Ok(config)
    }

    /// Warnings: what the connection does not protect from, and the parameters without effect.
    pub fn caution(&self) -> Option<String> {
        let far = self.hosts.iter().any(|h| !h.is_near());
        let tls = match self.tls.mode {
            _ if !far => None,
            TlsMode::Disable => Some("the connection to PostgreSQL is not encrypted (sslmode=disable)".into()),
            TlsMode::Allow | TlsMode::Prefer => Some(format!(
                "the connection to PostgreSQL is encrypted only if the server offers it, and the server is not \
                 verified (sslmode={}): use sslmode=verify-full",
                if self.tls.mode == TlsMode::Allow { "allow" } else { "prefer" }
            )),
            TlsMode::Require => Some(
                "the connection to PostgreSQL is encrypted and the server is not verified (sslmode=require): \
                 use sslmode=verify-full"
                    .to_owned(),
            ),
            TlsMode::VerifyCa => Some(
                "the name of the PostgreSQL server is not verified (sslmode=verify-ca, or require with a root \
                 certificate): use sslmode=verify-full"
                    .into(),
            ),
            TlsMode::VerifyFull => None,
        };
        let said: Vec<String> = tls.into_iter().chain(self.ignored()).collect();
        (!said.is_empty()).then(|| said.join("; "))
    }

    /// A sentence about the parameters without effect.
    pub fn ignored(&self) -> Option<String> {
        let shown: Vec<String> = self.unused.iter().map(|name| name.escape_debug().to_string()).collect();
        (!shown.is_empty()).then(|| {
            format!("these parameters of the PostgreSQL URL have no effect here: {}", shown.join(", "))
        })
    }
}

impl Tls {
    /// Combines the settings as libpq does.
    fn settle(&mut self) -> Result<(), String> {
        match (&self.root, self.mode) {
            (Some(Root::System), mode) if mode < TlsMode::Require => {
                return Err("sslrootcert=system needs sslmode=verify-full.".into());
            }
            // Without a check of the name, any certificate of a public authority would do.
            (Some(Root::System), _) => self.mode = TlsMode::VerifyFull,
            (Some(Root::File(_)), TlsMode::Require) => self.mode = TlsMode::VerifyCa,
            _ => {}
        }
        match (&self.cert, &self.key) {
            (Some(_), None) | (None, Some(_)) => {
                Err("sslcert and sslkey belong together: give both or none.".into())
            }
            _ => Ok(()),
        }
    }
}

fn mode_of(text: Option<&str>) -> Result<TlsMode, String> {
    Ok(match text {
        None | Some("prefer") => TlsMode::Prefer,
        Some("disable") => TlsMode::Disable,
        Some("allow") => TlsMode::Allow,
        Some("require") => TlsMode::Require,
        Some("verify-ca") => TlsMode::VerifyCa,
        Some("verify-full") => TlsMode::VerifyFull,
        Some(other) => {
            return Err(format!(
                "sslmode={other:?} is none of disable, allow, prefer, require, verify-ca, verify-full."
            ));
        }
    })
}

fn binding_of(text: Option<&str>) -> Result<Binding, String> {
    match text {
        None | Some("prefer") => Ok(Binding::Prefer),
        Some("disable") => Ok(Binding::Disable),
        Some("require") => Ok(Binding::Require),
        Some(other) => Err(format!("channel_binding={other:?} is none of disable, prefer, require.")),
    }
}

/// A lease needs a server that can be written. With `any`, the first read refuses a replica.
fn session_wanted(text: Option<&str>) -> Result<(), String> {
    match text {
        None | Some("any" | "read-write" | "primary") => Ok(()),
        Some(other) => Err(format!(
            "target_session_attrs={other:?} would lead to a server that cannot write. Write \
             target_session_attrs=read-write or leave it out."
        )),
    }
}

fn seconds(text: Option<&str>) -> Result<Option<Duration>, String> {
    let Some(text) = text else { return Ok(None) };
    let seconds: i64 = text.parse().map_err(|_| "connect_timeout is not a number of seconds.".to_owned())?;
    Ok(u64::try_from(seconds).ok().filter(|s| *s > 0).map(Duration::from_secs))
}

fn parameters(query: &str) -> Result<BTreeMap<String, String>, String> {
    let mut found = BTreeMap::new();
    for pair in query.split('&').filter(|p| !p.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        found.insert(decoded(name)?, decoded(value)?);
    }
    // The parameter of other clients.
    if let Some(value) = found.remove("ssl") {
        found.entry("sslmode".into()).or_insert(if value == "true" { "require" } else { "prefer" }.into());
    }
    Ok(found)
}

fn named_hosts(
    authority: &str,
    host: Option<String>,
    address: Option<String>,
    port: Option<String>,
) -> Result<Vec<Host>, String> {
    let mut names = Vec::new();
    let mut ports = Vec::new();
    for one in authority.split(',') {
        let (name, port) = split_port(one)?;
        names.push(decoded(name)?);
        ports.push(port.to_owned());
    }
    let list = |text: String| text.split(',').map(str::to_owned).collect::<Vec<_>>();
    names = host.map_or(names, list);
    let addresses = address.map(list).unwrap_or_default();
    if names.iter().all(String::is_empty) && !addresses.is_empty() {
        names.clone_from(&addresses);
    }
    ports = port.map_or(ports, list);
    let mut hosts = Vec::new();
    for (i, name) in names.into_iter().enumerate() {
        let port = ports.get(i).or(if ports.len() == 1 { ports.first() } else { None });
        let port = port.filter(|p| !p.is_empty()).map_or("5432", |p| p);
        // Not repeated, because a part of a password with a slash may be here.
        let port = port.parse().map_err(|_| {
            "the port is not a number from 1 to 65535. If the password contains / ? # @ or :, write them as \
             %2F %3F %23 %40 %3A."
                .to_owned()
        })?;
        let address = addresses.get(i).filter(|a| !a.is_empty()).cloned();
        let name = if name.is_empty() { SOCKET_DIR.to_owned() } else { name };
        hosts.push(Host { name, address, port });
    }
    Ok(hosts)
}

fn split_port(one: &str) -> Result<(&str, &str), String> {
    if let Some(v6) = one.strip_prefix('[') {
        let (name, rest) =
            v6.split_once(']').ok_or("an IPv6 address begins with [ and must end with ].".to_owned())?;
        return Ok((name, rest.strip_prefix(':').unwrap_or("")));
    }
    Ok(one.split_once(':').unwrap_or((one, "")))
}

fn non_empty(text: String) -> Option<String> {
    Some(text).filter(|t| !t.is_empty())
}

/// The text without percent encoding.
fn decoded(text: &str) -> Result<String, String> {
    let decoded = percent_decoded(text).ok_or(
        "the URL has a % that is not followed by two hexadecimal digits, or whose digits are not UTF-8. Write \
         a plain % as %25.",
    )?;
    if decoded.contains('\0') {
        return Err("the URL has a %00, which is not allowed.".into());
    }
    Ok(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Config {
        Config::parse(url, &|_| None).unwrap_or_else(|e| panic!("{url}: {e}"))
    }

    fn refused(url: &str) -> String {
        Config::parse(url, &|_| None).err().unwrap_or_else(|| panic!("{url} was taken"))
    }

    fn host(name: &str, port: u16) -> Host {
        Host { name: name.into(), address: None, port }
    }

    #[test]
    fn parts() {
        let t =
            read("postgres://op%40s:p%2Fw%3a@db.example:6543/o%20ps?application_name=x&schema=public&pool=3");
        assert_eq!(t.hosts, [host("db.example", 6543)]);
        assert_eq!(t.user.as_deref(), Some("op@s"));
        assert_eq!(t.password.as_deref(), Some("p/w:"));
        assert_eq!(t.dbname.as_deref(), Some("o ps"));
        assert_eq!(t.unused, ["pool", "schema"]);
        assert!(t.caution().unwrap().contains("pool, schema"));
        assert_eq!(read("postgresql://h").hosts, [host("h", 5432)]);
        assert_eq!(read("postgres://u:p@ss@h/d").password.as_deref(), Some("p@ss"));
        assert_eq!(
            read("postgres:///d?user=a&password=b%26&host=/run/pg&port=7").hosts,
            [host("/run/pg", 7)]
        );
        assert_eq!(read("postgres://%2Frun%2Fpg:7/d").hosts, [host("/run/pg", 7)]);
        assert_eq!(read("postgres:///d").hosts, [host("/var/run/postgresql", 5432)]);
        assert_eq!(read("postgres://[::1]:7/d").hosts, [host("::1", 7)]);
        assert_eq!(read("postgres://a:1,b/d").hosts, [host("a", 1), host("b", 5432)]);
        assert_eq!(read("postgres://h?hostaddr=127.0.0.1").hosts[0].address.as_deref(), Some("127.0.0.1"));
        assert_eq!(read("postgres://h?connect_timeout=3").connect_timeout, Some(Duration::from_secs(3)));
    }

    #[test]
    fn tls_as_libpq_means_it() {
        let mode = |q: &str| read(&format!("postgres://h/d?{q}")).tls.mode;
        assert_eq!(mode(""), TlsMode::Prefer);
        assert_eq!(mode("sslmode=require"), TlsMode::Require);
        assert_eq!(mode("sslmode=require&sslrootcert=/x"), TlsMode::VerifyCa);
        assert_eq!(mode("sslmode=require&sslrootcert=system"), TlsMode::VerifyFull);
        assert_eq!(mode("ssl=true"), TlsMode::Require);
        assert!(refused("postgres://h?sslmode=strict").contains("verify-full"));
        assert!(refused("postgres://h?sslrootcert=system").contains("verify-full"));
        assert!(refused("postgres://h?sslcert=/x").contains("sslkey"));
        let env = |name: &str| (name == "PGSSLMODE").then(|| "verify-full".to_owned());
        assert_eq!(Config::parse("postgres://h", &env).ok().unwrap().tls.mode, TlsMode::VerifyFull);
    }

    #[test]
    fn what_is_not_verified_is_said() {
        let caution = |q: &str| read(q).caution().unwrap_or_default();
        for near in ["postgres://127.0.0.1/d", "postgres://localhost", "postgres://[::1]", "postgres:///d"] {
            assert_eq!(caution(near), "", "{near}");
        }
        assert!(caution("postgres://db").contains("not verified (sslmode=prefer)"));
        assert!(caution("postgres://db?sslmode=disable").contains("not encrypted"));
        assert!(caution("postgres://db?sslmode=require").contains("not verified"));
        assert!(caution("postgres://db?sslmode=verify-ca&sslrootcert=/x").contains("name"));
        assert_eq!(caution("postgres://db?sslmode=verify-full"), "");
    }

    #[test]
    fn a_wrong_url_repeats_no_secret() {
        for url in [
            "postgres:h",
            "postgres://u:canary/x@h/d",
            "postgres://u:12/canary@h/d",
            "postgres://u:canary@h:99999/d",
            "postgres://u:canary%zz@h",
            "postgres://u:canary%00@h",
            "postgres://[::1/d",
            "postgres://h?connect_timeout=canary",
            "postgres://h?target_session_attrs=standby",
        ] {
            let said = refused(url);
            assert!(!said.contains("canary") && said.ends_with('.'), "{url}: {said}");
        }
    }
}
