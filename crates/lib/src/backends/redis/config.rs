//! Reads a `redis:` or `rediss:` URL.

use redis::{Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, TlsCertificates};

use super::shown;
use crate::backends::remote::is_here;
use crate::text::percent_decoded;

/// The default prefix.
const PREFIX: &str = "main";
/// The longest prefix.
const LONGEST_PREFIX: usize = 100;
/// The parameters of the URL.
const PARAMETERS: &str = "prefix, cacert, cert and key";
/// The variable from which `redis-cli` reads the password.
const PASSWORD_VARIABLE: &str = "REDISCLI_AUTH";

/// A server, its credentials, and the prefix of our keys.
pub(super) struct Config {
    /// The URL as it may be shown.
    pub url: String,
    pub client: Client,
    /// Never shown. Kept to remove it from the server's messages.
    pub password: Option<String>,
    /// The password crosses the network without encryption.
    pub exposed: bool,
    /// As the URL names it.
    pub prefix: Option<String>,
}

impl Config {
    /// Reads a whole URL. The error does not repeat it, because a password with special characters can look like any
    /// part of it.
    pub fn parse(url: &str) -> Result<Self, String> {
        if url.contains('#') {
            return Err("The redis: URL has a part after \"#\", which means nothing here: certificates are always \
                        checked. Name the right authority with ?cacert=FILE, or write a \"#\" in the password as %23."
                .into());
        }
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let wishes = UrlParams::parse(query)?;
        let info = info(base)?;
        let password = info.redis_settings().password().map(str::to_owned);
        let host = match info.addr() {
            ConnectionAddr::Tcp(host, _) => Some(host.as_str()),
            _ => None,
        };
        let exposed = password.is_some() && host.is_some_and(|host| !is_here(host));
        let client = client(info, &wishes)?;
        Ok(Self { url: shown(url), client, password, exposed, prefix: wishes.prefix })
    }

    /// The key of a record. All keys of one store have the same hash tag, so that a cluster keeps them together
    /// and one script can use several.
    pub fn record(&self, key: &str) -> String {
        format!("leasehold:{{{}}}/{key}", self.tag())
    }

    /// The sorted set of all names.
    pub fn index(&self) -> String {
        format!("leasehold:{{{}}}:index", self.tag())
    }

    fn tag(&self) -> &str {
        self.prefix.as_deref().unwrap_or(PREFIX)
    }
}

/// The parameters.
#[derive(Default)]
struct UrlParams {
    prefix: Option<String>,
    cacert: Option<String>,
    cert: Option<String>,
    key: Option<String>,
}

impl UrlParams {
    fn parse(query: &str) -> Result<Self, String> {
        let mut wishes = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = percent_decoded(value)
                .filter(|value| !value.is_empty())
                .ok_or("A parameter of the redis: URL has no value. Write it as NAME=VALUE.")?;
            match name {
                "prefix" => wishes.prefix = Some(value),
                "cacert" => wishes.cacert = Some(value),
                "cert" => wishes.cert = Some(value),
                "key" => wishes.key = Some(value),
                // Never ignored, because a mistyped prefix= would be another store.
                _ => {
                    return Err(format!("The redis: URL has an unknown parameter. Known: {PARAMETERS}."));
                }
            }
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/".contains(c);
        let allowed = |prefix: &str| prefix.len() <= LONGEST_PREFIX && prefix.chars().all(plain);
        if !wishes.prefix.as_deref().is_none_or(allowed) {
            return Err(format!(
                "The prefix in the redis: URL is not allowed. Use up to {LONGEST_PREFIX} letters, digits and - _ . : /"
            ));
        }
        if wishes.cert.is_some() != wishes.key.is_some() {
            return Err(
                "The redis: URL has only one of cert and key. A client certificate needs both files.".into(),
            );
        }
        Ok(wishes)
    }

    fn wants_files(&self) -> bool {
        self.cacert.is_some() || self.cert.is_some()
    }
}

fn info(base: &str) -> Result<ConnectionInfo, String> {
    let unreadable = || {
        "The redis: URL cannot be read. Write redis://USER:PASSWORD@HOST:PORT/DB?prefix=NAME, of which only the host \
         is required. Write special characters in the password as %XX."
            .to_owned()
    };
    let info = base.into_connection_info().map_err(|_| unreadable())?;
    if info.redis_settings().db() < 0 || matches!(info.addr(), ConnectionAddr::Unix(_)) {
        return Err(unreadable());
    }
    let mut settings = info.redis_settings().clone().set_skip_set_lib_name();
    if settings.password().is_none() {
        let given = std::env::var(PASSWORD_VARIABLE).ok().filter(|password| !password.is_empty());
        match given {
            Some(password) => settings = settings.set_password(password),
            None if settings.username().is_some() => {
                return Err(format!(
                    "The redis: URL has a user and no password. Write redis://USER:PASSWORD@HOST, redis://:PASSWORD@HOST, \
                     or put the password in {PASSWORD_VARIABLE}."
                ));
            }
            None => {}
        }
    }
    Ok(info.set_redis_settings(settings))
}

fn client(info: ConnectionInfo, wishes: &UrlParams) -> Result<Client, String> {
    let unusable =
        |e: redis::RedisError| format!("The TLS files named in the redis: URL cannot be used: {e}.");
    if !wishes.wants_files() {
        return Client::open(info).map_err(unusable);
    }
    if !matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
        return Err("The redis: URL names certificates, and only rediss: uses TLS. Write rediss://...".into());
    }
    let file = |path: &Option<String>| -> Result<Option<Vec<u8>>, String> {
        let Some(path) = path else { return Ok(None) };
        let bytes = std::fs::read(path)
            .map_err(|e| format!("The file {path:?} named in the redis: URL cannot be read: {e}."))?;
        Ok(Some(bytes))
    };
    let client_tls = match (file(&wishes.cert)?, file(&wishes.key)?) {
        (Some(client_cert), Some(client_key)) => Some(redis::ClientTlsConfig { client_cert, client_key }),
        _ => None,
    };
    let root_cert = file(&wishes.cacert)?;
    if root_cert.as_ref().is_some_and(|pem| !pem.windows(10).any(|w| w == b"-----BEGIN")) {
        return Err("The file that cacert= names in the redis: URL holds no certificate in PEM form.".into());
    }
    Client::build_with_tls(info, TlsCertificates { client_tls, root_cert }).map_err(unusable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str) -> String {
        Config::parse(url).err().unwrap_or_else(|| panic!("{url} was accepted"))
    }

    #[test]
    fn keys_have_one_hash_tag() {
        let config = Config::parse("redis://127.0.0.1:6379/2?prefix=team-a").unwrap();
        assert_eq!(config.record("leases/x{y}"), "leasehold:{team-a}/leases/x{y}");
        assert_eq!(config.index(), "leasehold:{team-a}:index");
        assert_eq!(config.client.get_connection_info().redis_settings().db(), 2);
        let plain = Config::parse("redis://h").unwrap();
        assert_eq!(plain.record("k"), "leasehold:{main}/k");
    }

    #[test]
    fn passwords_are_read_and_not_shown() {
        let config = Config::parse("redis://ops:s3cr%2Fet@h:1/0?prefix=a").unwrap();
        assert_eq!(config.password.as_deref(), Some("s3cr/et"));
        assert_eq!(config.url, "redis://ops:***@h:1/0?prefix=a");
        assert!(config.exposed);
        assert!(!Config::parse("redis://:s@127.0.0.1").unwrap().exposed);
        assert!(!Config::parse("rediss://:s@h").unwrap().exposed);
    }

    #[test]
    fn what_is_wrong_is_said_without_the_password() {
        for url in [
            "redis://u:s3cret/x@h",
            "redis://:s3cret/x@h",
            "redis://u:12/s3cret@h",
            "redis://u:12?s3cret@h",
            "redis://u:12?s3cret=1@h",
            "redis://u:12#s3cret@h",
            "redis://s3cret@h",
            "redis://u:s3cret@h:99999",
            "redis://u:s3cret@h/minus",
            "redis://u:s3cret@h/-1",
            "redis://u:s3cret@",
            "redis://u:s3cret@h?prefix=a{b}",
            "redis://u:s3cret@h?prefix=",
            "redis://u:s3cret@h?prefix=%zz",
            "redis://u:s3cret@h?prefix=a%20b",
            "redis://u:s3cret@h?prefx=a",
            "rediss://u:s3cret@h#insecure",
            "rediss://u:s3cret@h?cert=/x",
            "redis://u:s3cret@h?cacert=/x",
            "rediss://u:s3cret@h?cacert=/nowhere/at/all",
            "redis:s3cret",
            "redis:///",
        ] {
            let said = refused(url);
            assert!(!said.contains("s3cret"), "{url}: {said}");
            assert!(said.ends_with('.') || said.ends_with('/'), "{url}: {said}");
        }
    }
}
