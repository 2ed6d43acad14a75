//! Makes a client of object_store from a configuration and environment variables.

use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::client::HttpConnector;
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::list::PaginatedListStore;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};

use super::config::{Config, Provider, checked_endpoint};
use super::erase::{Eraser, Signer};
use super::wire::{CallNote, Connector};
use crate::stores::{Failure, FailureKind};

/// Environment variables.
pub type Vars = Vec<(String, String)>;

/// The operations that are needed of the client library.
pub trait ListableStore: ObjectStore + PaginatedListStore {}
impl<T: ObjectStore + PaginatedListStore> ListableStore for T {}

/// The clients, which the first call makes.
pub struct Client {
    /// Reads, writes and lists.
    pub bucket: Arc<dyn ListableStore>,
    /// Removes marks.
    pub eraser: Eraser,
}

/// The variables of this process that are UTF-8.
pub fn environment() -> Vars {
    std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?))).collect()
}

/// Makes a client; `credentials` notes the requests for credentials. Contacts nothing yet.
pub fn connect(config: &Config, vars: &Vars, credentials: &CallNote) -> Result<Client, Failure> {
    match config.provider {
        Provider::S3 => s3(config, vars, credentials),
        Provider::Google => google(config, vars, credentials),
        Provider::Azure => azure(config, vars, credentials),
    }
}

fn client(
    config: &Config,
    connector: &Connector,
    bucket: impl ListableStore,
    signer: Signer,
    address: String,
) -> Result<Client, Failure> {
    let options = ClientOptions::new().with_allow_http(connector.http);
    let http = connector.connect(&options).map_err(|_| unbuilt(config))?;
    Ok(Client { bucket: Arc::new(bucket), eraser: Eraser { http, bucket: address, signer } })
}

/// No retries: a repeated write would find its own first attempt and report a conflict.
fn never_again() -> RetryConfig {
    RetryConfig { backoff: BackoffConfig::default(), max_retries: 0, ..RetryConfig::default() }
}

fn connector(endpoint: Option<&String>, credentials: &CallNote) -> Result<Connector, Failure> {
    let endpoint = endpoint.map(|e| checked_endpoint(e)).transpose();
    let endpoint = endpoint.map_err(|message| Failure::new(FailureKind::Unusable, message))?;
    let http = endpoint.is_some_and(|e| e.starts_with("http://"));
    Ok(Connector { http, credentials: credentials.clone() })
}

/// The variables with one prefix that the library knows, with the library's key for each.
fn settings<K: std::str::FromStr>(vars: &Vars, prefix: &str) -> Vec<(K, String)> {
    let ours = vars.iter().filter(|(name, _)| name.starts_with(prefix));
    ours.filter_map(|(name, value)| Some((name.to_ascii_lowercase().parse().ok()?, value.clone()))).collect()
}

fn s3(config: &Config, vars: &Vars, credentials: &CallNote) -> Result<Client, Failure> {
    let mut builder = AmazonS3Builder::new();
    for (key, value) in settings::<AmazonS3ConfigKey>(vars, "AWS_") {
        builder = builder.with_config(key, value);
    }
    if let Some(region) = &config.region {
        builder = builder.with_region(region);
    }
    if let Some(endpoint) = &config.endpoint {
        // The more specific of two settings, so that a variable does not override the URL.
        builder = builder.with_config(AmazonS3ConfigKey::S3Endpoint, endpoint);
    }
    let endpoint = builder.get_config_value(&AmazonS3ConfigKey::S3Endpoint);
    let endpoint = endpoint.or_else(|| builder.get_config_value(&AmazonS3ConfigKey::Endpoint));
    if config.virtual_host {
        builder = builder.with_virtual_hosted_style_request(true);
        if let Some((scheme, host)) = endpoint.as_ref().and_then(|e| e.split_once("://")) {
            let host = format!("{scheme}://{}.{host}", config.bucket);
            builder = builder.with_config(AmazonS3ConfigKey::S3Endpoint, host);
        }
    }
    let one_key_only = [AmazonS3ConfigKey::AccessKeyId, AmazonS3ConfigKey::SecretAccessKey]
        .map(|key| builder.get_config_value(&key).is_some());
    if one_key_only[0] != one_key_only[1] {
        return Err(denied(config, "Only one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY is set"));
    }
    if metadata_disabled(vars) && !has_credentials(&builder) {
        return Err(denied(
            config,
            "No credentials for S3 were found, and AWS_EC2_METADATA_DISABLED forbids Leasehold to ask the \
             machine's metadata service",
        ));
    }
    let connector = connector(endpoint.as_ref(), credentials)?;
    let region = builder.get_config_value(&AmazonS3ConfigKey::Region).unwrap_or_else(|| "us-east-1".into());
    let virtual_host = builder.get_config_value(&AmazonS3ConfigKey::VirtualHostedStyleRequest);
    let virtual_host = virtual_host.as_deref() == Some("true");
    let bucket = builder
        .with_bucket_name(&config.bucket)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_retry(never_again())
        .with_allow_http(connector.http)
        .with_http_connector(connector.clone())
        .build()
        .map_err(|_| unbuilt(config))?;
    let host = match (endpoint, config.virtual_host) {
        (Some(endpoint), true) => endpoint.replacen("://", &format!("://{}.", config.bucket), 1),
        (Some(endpoint), false) if virtual_host => endpoint,
        (Some(endpoint), false) => format!("{}/{}", endpoint.trim_end_matches('/'), config.bucket),
        (None, _) => format!("https://s3.{region}.amazonaws.com/{}", config.bucket),
    };
    let signer = Signer::S3(Arc::clone(bucket.credentials()), region);
    client(config, &connector, bucket, signer, host.trim_end_matches('/').into())
}

/// Whether the metadata service must not be used. Amazon's tools know this setting, the library does not.
fn metadata_disabled(vars: &Vars) -> bool {
    let set = |(name, value): &(String, String)| {
        name == "AWS_EC2_METADATA_DISABLED" && value.trim().eq_ignore_ascii_case("true")
    };
    vars.iter().any(set)
}

/// Whether there are credentials that the library uses before the metadata service.
fn has_credentials(builder: &AmazonS3Builder) -> bool {
    use AmazonS3ConfigKey::{
        AccessKeyId, ContainerAuthorizationTokenFile, ContainerCredentialsFullUri,
        ContainerCredentialsRelativeUri, RoleArn, SkipSignature, WebIdentityTokenFile,
    };
    let set = |key: AmazonS3ConfigKey| builder.get_config_value(&key).is_some();
    set(AccessKeyId)
        || (set(WebIdentityTokenFile) && set(RoleArn))
        || set(ContainerCredentialsRelativeUri)
        || (set(ContainerCredentialsFullUri) && set(ContainerAuthorizationTokenFile))
        || builder.get_config_value(&SkipSignature).as_deref() == Some("true")
}

fn google(config: &Config, vars: &Vars, credentials: &CallNote) -> Result<Client, Failure> {
    let mut builder = GoogleCloudStorageBuilder::new();
    for (key, value) in settings::<GoogleConfigKey>(vars, "GOOGLE_") {
        builder = builder.with_config(key, value);
    }
    if let Some(endpoint) = &config.endpoint {
        builder = builder.with_base_url(endpoint);
    }
    let endpoint = builder.get_config_value(&GoogleConfigKey::BaseUrl);
    let connector = connector(endpoint.as_ref(), credentials)?;
    let bucket = builder
        .with_bucket_name(&config.bucket)
        .with_retry(never_again())
        .with_client_options(ClientOptions::new().with_allow_http(connector.http))
        .with_http_connector(connector.clone())
        .build()
        .map_err(|_| unbuilt(config))?;
    let endpoint = endpoint.unwrap_or_else(|| "https://storage.googleapis.com".into());
    let signer = Signer::Google(Arc::clone(bucket.credentials()));
    let address = format!("{}/{}", endpoint.trim_end_matches('/'), config.bucket);
    client(config, &connector, bucket, signer, address)
}

fn azure(config: &Config, vars: &Vars, credentials: &CallNote) -> Result<Client, Failure> {
    let mut builder = MicrosoftAzureBuilder::new();
    let also = |name: &str| vars.iter().find(|(n, _)| n == name).map(|(_, value)| value);
    // Variables of Azure's command line that the library does not know.
    if let Some(account) = also("AZURE_STORAGE_ACCOUNT") {
        builder = builder.with_account(account);
    }
    if let Some(key) = also("AZURE_STORAGE_KEY") {
        builder = builder.with_access_key(key);
    }
    for (key, value) in settings::<AzureConfigKey>(vars, "AZURE_") {
        builder = builder.with_config(key, value);
    }
    if let Some(account) = &config.account {
        builder = builder.with_account(account);
    }
    if let Some(endpoint) = &config.endpoint {
        builder = builder.with_endpoint(endpoint.clone());
    }
    let Some(account) = builder.get_config_value(&AzureConfigKey::AccountName) else {
        return Err(Failure::new(
            FailureKind::Unusable,
            "No storage account was named: add ?account=NAME to the URL, or set \
                      AZURE_STORAGE_ACCOUNT_NAME.",
        ));
    };
    let endpoint = builder.get_config_value(&AzureConfigKey::Endpoint);
    let connector = connector(endpoint.as_ref(), credentials)?;
    let bucket = builder
        .with_container_name(&config.bucket)
        .with_retry(never_again())
        .with_allow_http(connector.http)
        .with_http_connector(connector.clone())
        .build()
        .map_err(|_| unbuilt(config))?;
    let endpoint = endpoint.unwrap_or_else(|| format!("https://{account}.blob.core.windows.net"));
    let address = format!("{}/{}", endpoint.trim_end_matches('/'), config.bucket);
    let signer = Signer::Azure(Arc::clone(bucket.credentials()), account);
    client(config, &connector, bucket, signer, address)
}

fn denied(config: &Config, what: &str) -> Failure {
    Failure::not_written(FailureKind::Denied, format!("{what}. {}.", config.provider.credentials()))
}

/// The library's message is not repeated, because it may quote a secret setting.
fn unbuilt(config: &Config) -> Failure {
    Failure::new(
        FailureKind::Unusable,
        format!(
            "The settings for {} in the environment cannot be used: a key file is missing or damaged, or a value \
             is wrong. {}.",
            config.provider.title(),
            config.provider.credentials()
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s3(vars: &[(&str, &str)]) -> Result<Client, Failure> {
        let config = Config::parse(Provider::S3, "s3://leases/x").unwrap();
        let vars = vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        connect(&config, &vars, &CallNote::default())
    }

    /// Contacts nothing: a client is made, or not.
    #[test]
    fn nobody_is_asked_for_credentials_who_must_not_be() {
        const OFF: &str = "AWS_EC2_METADATA_DISABLED";
        for value in ["true", "TRUE"] {
            let Err(refused) = s3(&[(OFF, value)]) else { panic!("{value}: the metadata would be asked") };
            assert_eq!(refused.kind, FailureKind::Denied);
            assert!(refused.message.starts_with("No credentials for S3 were found"), "{}", refused.message);
        }
        for others in [
            &[("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b")][..],
            &[("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/a")],
            &[("AWS_WEB_IDENTITY_TOKEN_FILE", "/a"), ("AWS_ROLE_ARN", "b")],
            &[("AWS_SKIP_SIGNATURE", "true")],
        ] {
            let vars: Vec<_> = others.iter().copied().chain([(OFF, "true")]).collect();
            assert!(s3(&vars).is_ok(), "{others:?}");
        }
        assert!(s3(&[]).is_ok() && s3(&[(OFF, "false")]).is_ok());
    }
}
