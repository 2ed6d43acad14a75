//! Reads a URL: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX`, with parameters.

use std::time::Duration;

use object_store::path::Path;

use super::shown;
use crate::text::{did_you_mean, percent_decoded};

/// The longest prefix. It leaves room for the longest key in the 1024 bytes of a name.
const PREFIX_MAX: usize = 400;

/// The variables for an endpoint of S3, in the library's order of preference.
pub(super) const S3_ENDPOINTS: [&str; 3] = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];

/// The provider, with its protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    /// Amazon S3 and compatible servers.
    S3,
    /// Google Cloud Storage.
    Google,
    /// Azure Blob Storage.
    Azure,
}

impl Provider {
    /// The scheme of its URLs.
    pub const fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Google => "gs",
            Self::Azure => "az",
        }
    }

    /// Its name for people.
    pub fn title(self) -> &'static str {
        match self {
            Self::S3 => "S3",
            Self::Google => "Google Cloud Storage",
            Self::Azure => "Azure Blob Storage",
        }
    }

    /// Its word for a bucket.
    pub fn bucket(self) -> &'static str {
        if self == Self::Azure { "container" } else { "bucket" }
    }

    /// The shortest time between two writes of one object: Google allows about one each second.
    pub fn spacing(self) -> Duration {
        if self == Self::Google { Duration::from_secs(1) } else { Duration::ZERO }
    }

    /// A sentence that says how to give credentials.
    pub fn credentials(self) -> &'static str {
        match self {
            Self::S3 => {
                "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run where a role gives credentials"
            }
            Self::Google => {
                "Set GOOGLE_APPLICATION_CREDENTIALS to a key file, or run where a service account gives credentials"
            }
            Self::Azure => {
                "Set AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_KEY, or run where an identity gives credentials"
            }
        }
    }

    /// A version that no object has, in the provider's format: an ETag, or a generation before the first.
    pub fn no_version(self) -> &'static str {
        match self {
            Self::S3 => "\"00000000000000000000000000000000\"",
            Self::Google => "1",
            Self::Azure => "\"0x000000000000000\"",
        }
    }

    fn parameters(self) -> &'static [&'static str] {
        match self {
            Self::S3 => &["endpoint", "region", "style"],
            Self::Google => &["endpoint"],
            Self::Azure => &["account", "endpoint"],
        }
    }
}

/// A bucket and a prefix in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The provider.
    pub provider: Provider,
    /// The URL as it may be shown.
    pub shown: String,
    /// The bucket or container.
    pub bucket: String,
    /// The prefix of every name: empty, or ends in a slash.
    pub base: String,
    /// The endpoint, if it is not the provider's usual one.
    pub endpoint: Option<String>,
    /// The region, on S3.
    pub region: Option<String>,
    /// The bucket is part of the host name, on S3.
    pub virtual_host: bool,
    /// The account, on Azure.
    pub account: Option<String>,
}

impl Config {
    /// Reads a URL. The error is a sentence that repeats nothing that may be secret.
    pub fn parse(provider: Provider, url: &str) -> Result<Self, String> {
        let scheme = provider.scheme();
        let what = provider.bucket().to_uppercase();
        let usage = format!("Write {scheme}://{what}/PREFIX.");
        let rest = url.strip_prefix(scheme).and_then(|rest| rest.strip_prefix("://"));
        let rest = rest.ok_or_else(|| format!("This URL names no {}. {usage}", provider.bucket()))?;
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (bucket, prefix) = path.split_once('/').unwrap_or((path, ""));
        if bucket.contains(['@', ':']) {
            return Err(format!(
                "Credentials and hosts do not belong in a {scheme}: URL. {}. {usage}",
                provider.credentials()
            ));
        }
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '$');
        if bucket.is_empty() || !bucket.chars().all(good) {
            return Err(format!("{bucket:?} cannot be the name of a {}. {usage}", provider.bucket()));
        }
        let mut config = Self {
            provider,
            shown: shown(url),
            bucket: bucket.into(),
            base: base(prefix)?,
            endpoint: None,
            region: None,
            virtual_host: false,
            account: None,
        };
        query.split('&').filter(|pair| !pair.is_empty()).try_for_each(|pair| config.set(pair))?;
        Ok(config)
    }

    /// Adds the endpoint that the library takes from the variables, so that error messages can name it.
    pub fn with_endpoint_of(mut self, vars: &[(String, String)]) -> Self {
        if self.provider == Provider::S3 && self.endpoint.is_none() {
            let set = |name: &&str| vars.iter().find(|(other, _)| other == name).map(|(_, value)| value);
            self.endpoint = S3_ENDPOINTS.iter().find_map(set).and_then(|value| checked_endpoint(value).ok());
        }
        self
    }

    fn set(&mut self, pair: &str) -> Result<(), String> {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let known = self.provider.parameters();
        if !known.contains(&name) {
            let meant = did_you_mean(name, known).map(|name| format!(" Did you mean {name}?"));
            return Err(format!(
                "{name:?} is not a parameter of {} URLs.{} Known: {}.",
                self.provider.title(),
                meant.unwrap_or_default(),
                known.join(", ")
            ));
        }
        let value = percent_decoded(value).filter(|v| !v.is_empty() && !v.chars().any(char::is_control));
        let value = value.ok_or_else(|| {
            format!("The parameter {name:?} of the URL has no usable value. Write {name}=VALUE.")
        })?;
        match name {
            "endpoint" => self.endpoint = Some(checked_endpoint(&value)?),
            "region" => self.region = Some(value),
            "account" => self.account = Some(value),
            _ => self.virtual_host = match value.as_str() {
                "path" => false,
                "virtual" => true,
                _ => return Err(
                    "The parameter \"style\" is neither path nor virtual. Write style=path or style=virtual."
                        .into(),
                ),
            },
        }
        Ok(())
    }
}

/// An endpoint without a slash at its end; an error if it may contain a secret.
pub fn checked_endpoint(text: &str) -> Result<String, String> {
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    match host {
        Some(host) if !host.is_empty() && !host.starts_with('/') && !host.contains(['@', '?', '#', ' ']) => {
            Ok(text.trim_end_matches('/').into())
        }
        _ => Err("The endpoint is not a plain address. Write http://HOST or https://HOST, without a user or parameters.".into()),
    }
}

/// The prefix before every key.
fn base(prefix: &str) -> Result<String, String> {
    let prefix = prefix.trim_matches('/');
    if prefix.is_empty() {
        return Ok(String::new());
    }
    if prefix.len() > PREFIX_MAX {
        return Err(format!("The prefix is longer than {PREFIX_MAX} bytes. Use a shorter one."));
    }
    let ends = |part: &str| part.ends_with('.') || part.contains('\\');
    if Path::parse(prefix).is_err() || prefix.split('/').any(ends) {
        return Err(
            "The prefix has a part that not every provider allows: an empty one, one that ends in a dot, \
             or one with a backslash or a control character. Use another prefix."
                .into(),
        );
    }
    Ok(format!("{prefix}/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s3(url: &str) -> Result<Config, String> {
        Config::parse(Provider::S3, url)
    }

    #[test]
    fn a_bucket_and_a_corner_of_it() {
        let config = s3("s3://b.u-c_k/a b/ä%20?endpoint=http%3A%2F%2F127.0.0.1:9000/&region=auto").unwrap();
        assert_eq!((config.bucket.as_str(), config.base.as_str()), ("b.u-c_k", "a b/ä%20/"));
        assert_eq!(config.endpoint.as_deref(), Some("http://127.0.0.1:9000"));
        assert_eq!(config.region.as_deref(), Some("auto"));
        assert_eq!(s3("s3://b").unwrap().base, "");
        assert_eq!(s3("s3://b/x/").unwrap(), Config { shown: "s3://b/x/".into(), ..s3("s3://b/x").unwrap() });
        assert!(s3("s3://b?style=virtual").unwrap().virtual_host);
        let azure = Config::parse(Provider::Azure, "az://box/x?account=ops").unwrap();
        assert_eq!(azure.account.as_deref(), Some("ops"));
    }

    #[test]
    fn nonsense_is_refused_without_repeating_secrets() {
        for url in [
            "s3:",
            "s3:b",
            "s3://",
            "s3:///x",
            "s3://b b",
            "s3://b/a//b",
            "s3://b/..",
            "s3://b/a./b",
            "s3://b/a\\b",
            "s3://b/\u{1}",
            "s3://KEY:s3cret@b/x",
            "s3://b?secret_key=s3cret",
            "s3://b?s3cret",
            "s3://b?endpoint=",
            "s3://b?endpoint=http://u:s3cret@h",
            "s3://b?endpoint=ftp://h",
            "s3://b?endpoint=http://",
            "s3://b?region=%zz",
            "s3://b?style=odd",
        ] {
            let why = s3(url).unwrap_err();
            assert!(
                why.ends_with('.') && !why.contains("s3cret=") && !why.contains(":s3cret"),
                "{url}: {why}"
            );
        }
        assert!(s3("s3://b?regoin=x").unwrap_err().contains("Did you mean region?"));
        assert!(s3(&format!("s3://b/{}", "x".repeat(401))).is_err());
    }
}
