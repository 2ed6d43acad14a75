//! S3 and compatible servers, Google Cloud Storage, Azure Blob Storage: a store with one object for each record, and targets
//! that are objects.

mod bucket;
mod client;
mod config;
mod envelope;
mod erase;
mod response;
mod store;
mod target;
mod wire;

pub use self::config::Provider;
use self::config::S3_ENDPOINTS;
pub use self::store::{ObjectBucket, open, with_vars};
pub use self::target::{LARGEST, ObjectTarget, READER_GRACE};
use super::mask::Masking;
use super::{AsStore, AsTarget, Backend, OpenError, Scheme};
use crate::stores::Examine;
use crate::targets::{Target, TargetError};

/// The entry of S3 in the list of backends.
pub(super) const S3: Backend = backend(
    &S3_ENDPOINTS,
    AsStore::new(&[Scheme { name: Provider::S3.scheme(), example: "s3://BUCKET/PREFIX" }], |url, _, _| {
        stored(Provider::S3, url)
    }),
    AsTarget::new(&[Scheme { name: Provider::S3.scheme(), example: "s3://BUCKET/KEY" }], |url, _| {
        fenced(Provider::S3, url)
    }),
);

/// The entry of Google Cloud Storage in the list of backends.
pub(super) const GOOGLE: Backend = backend(
    &["GOOGLE_BASE_URL"],
    AsStore::new(
        &[Scheme { name: Provider::Google.scheme(), example: "gs://BUCKET/PREFIX" }],
        |url, _, _| stored(Provider::Google, url),
    ),
    AsTarget::new(&[Scheme { name: Provider::Google.scheme(), example: "gs://BUCKET/KEY" }], |url, _| {
        fenced(Provider::Google, url)
    }),
);

/// The entry of Azure Blob Storage in the list of backends.
pub(super) const AZURE: Backend = backend(
    &[
        "AZURE_STORAGE_ACCOUNT",
        "AZURE_STORAGE_ACCOUNT_NAME",
        "AZURE_STORAGE_ENDPOINT",
        "AZURE_STORAGE_USE_EMULATOR",
    ],
    AsStore::new(
        &[Scheme { name: Provider::Azure.scheme(), example: "az://CONTAINER/PREFIX" }],
        |url, _, _| stored(Provider::Azure, url),
    ),
    AsTarget::new(&[Scheme { name: Provider::Azure.scheme(), example: "az://CONTAINER/KEY" }], |url, _| {
        fenced(Provider::Azure, url)
    }),
);

const fn backend(variables: &'static [&'static str], store: AsStore, target: AsTarget) -> Backend {
    Backend { show: shown, variables, store: Some(store), target: Some(target) }
}

fn stored(provider: Provider, url: &str) -> Result<Box<dyn Examine>, OpenError> {
    Ok(Box::new(open(provider, url).map_err(OpenError::Url)?))
}

fn fenced(provider: Provider, url: &str) -> Result<Box<dyn Target>, TargetError> {
    Ok(Box::new(ObjectTarget::open(provider, url)?))
}

fn shown(url: &str) -> String {
    Masking { harmless: &["account", "endpoint", "region", "style"], user_is_secret: false }.shown(url)
}
