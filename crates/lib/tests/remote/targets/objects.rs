//! Objects: S3 on ministack, Azure on Azurite, Google's protocol on a double of our own.

mod control;
mod sweeping;

use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use leasehold::backends::object::ObjectTarget;
use leasehold::backends::object::Provider;
use leasehold::core::fence::{Fence, FenceMode};
use leasehold::core::fence_record::FenceRecord;
use leasehold::core::store::{FailureKind, Landed};
use leasehold::targets::conformance::{OLD, TargetBench, replay, some_of_each_kind, whole};
use leasehold::targets::{Target, TargetError};
use leasehold_testkit::proxy::Fault;
use leasehold_testkit::{count, server};
use object_store::aws::{AmazonS3Builder, S3ConditionalPut};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{ClientOptions, ObjectStore, ObjectStoreExt};
use tokio::runtime::{Builder, Runtime};

use super::kit::{Maker, Site, at, bearer, seal};
use super::{examined, manners, zombies};
use crate::object::{GcsDouble, Spot, fresh_prefix};

/// One object, and the bucket behind its back.
pub struct Bucket {
    make: fn(&str) -> Spot,
    endpoint: String,
    pub name: String,
    pub raw: Arc<dyn ObjectStore>,
    pub runtime: Runtime,
}

impl Bucket {
    pub fn new(make: fn(&str) -> Spot, endpoint: &str) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let name = format!("{}/today.json", fresh_prefix());
        let raw = raw(&make(endpoint), endpoint);
        Self { make, endpoint: endpoint.into(), name, raw, runtime }
    }

    fn object(&self, server: &str) -> ObjectTarget {
        let spot = (self.make)(server);
        let url = format!("{}://{}/{}?{}", spot.scheme, spot.bucket, self.name, spot.parameters);
        ObjectTarget::with_vars(spot.provider, &url, spot.vars).unwrap_or_else(|e| panic!("{e}"))
    }

    pub fn get(&self, name: &str) -> Option<Vec<u8>> {
        let path = Path::parse(name).unwrap();
        self.runtime.block_on(async {
            match self.raw.get(&path).await {
                Ok(got) => Some(got.bytes().await.unwrap().into()),
                Err(object_store::Error::NotFound { .. }) => None,
                Err(e) => panic!("{e}"),
            }
        })
    }

    pub fn put(&self, name: &str, bytes: &[u8]) {
        let path = Path::parse(name).unwrap();
        self.runtime.block_on(self.raw.put(&path, bytes.to_vec().into())).unwrap();
    }

    pub fn delete(&self, name: &str) {
        let path = Path::parse(name).unwrap();
        let _ = self.runtime.block_on(self.raw.delete(&path));
    }

    /// The names of all payloads, without the folder.
    pub fn payloads(&self) -> Vec<String> {
        let folder = format!("{}.leasehold", self.name);
        let path = Path::parse(&folder).unwrap();
        let listed: Vec<_> = self.runtime.block_on(self.raw.list(Some(&path)).try_collect()).unwrap();
        let mut names: Vec<String> =
            listed.iter().map(|o| o.location.as_ref().strip_prefix(&folder).unwrap()[1..].into()).collect();
        names.sort();
        names
    }

    /// What the pointer names, as a reader in any language finds it.
    fn current(&self) -> Option<String> {
        let pointer = String::from_utf8(self.get(&self.name)?).unwrap();
        let json: serde_json::Value = serde_json::from_str(pointer.split_once('\n')?.1).unwrap();
        Some(json["payload"].as_str()?.to_owned())
    }
}

fn raw(spot: &Spot, endpoint: &str) -> Arc<dyn ObjectStore> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let var = |name: &str| spot.vars.iter().find(|(k, _)| k == name).unwrap().1.clone();
    match spot.provider {
        Provider::S3 => Arc::new(
            AmazonS3Builder::new()
                .with_endpoint(endpoint)
                .with_allow_http(true)
                .with_region("us-east-1")
                .with_bucket_name(&spot.bucket)
                .with_conditional_put(S3ConditionalPut::ETagMatch)
                .with_access_key_id(var("AWS_ACCESS_KEY_ID"))
                .with_secret_access_key(var("AWS_SECRET_ACCESS_KEY"))
                .build()
                .unwrap(),
        ),
        Provider::Azure => Arc::new(
            MicrosoftAzureBuilder::new()
                .with_endpoint(endpoint.into())
                .with_allow_http(true)
                .with_account("devstoreaccount1")
                .with_access_key(var("AZURE_STORAGE_ACCOUNT_KEY"))
                .with_container_name(&spot.bucket)
                .build()
                .unwrap(),
        ),
        Provider::Google => Arc::new(
            GoogleCloudStorageBuilder::new()
                .with_base_url(endpoint)
                .with_config("google_bearer_token".parse().unwrap(), "test")
                .with_client_options(ClientOptions::new().with_allow_http(true))
                .with_bucket_name(&spot.bucket)
                .build()
                .unwrap(),
        ),
    }
}

impl Site for Bucket {
    fn name(&self) -> &'static str {
        (self.make)(&self.endpoint).provider.title()
    }

    fn server(&self) -> String {
        self.endpoint.clone()
    }

    fn open_with(&self, server: &str, each: Duration, all: Duration) -> Box<dyn Target> {
        Box::new(self.object(server).with_patience(each, all))
    }

    fn swap_mark(&self) -> &'static [u8] {
        b"leasehold record "
    }

    fn fence(&self) -> Option<Vec<u8>> {
        self.get(&self.name)
    }

    fn set_fence(&self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.put(&self.name, bytes),
            None => self.delete(&self.name),
        }
    }

    fn content(&self) -> Option<Vec<u8>> {
        let pointer = self.get(&self.name).filter(|p| FenceRecord::decode(after_line(p)).is_ok())?;
        drop(pointer);
        self.get(&format!("{}.leasehold/{}", self.name, self.current()?))
    }
}

fn after_line(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|b| *b == b'\n').map_or(0, |at| at + 1);
    &bytes[end..]
}

/// The table, with contents published before.
struct Replayed {
    bucket: Bucket,
    target: ObjectTarget,
}

impl TargetBench for Replayed {
    fn install(&mut self, stored: Option<&FenceRecord>, content: &str) -> Option<Fence> {
        let Some(record) = stored else {
            self.bucket.delete(&self.bucket.name);
            return None;
        };
        let fence = &record.fence;
        let digest = leasehold::backends::file::digest(content.as_bytes());
        let payload = format!("00000001.{}.{}.{}", fence.token, fence.seq, &digest["sha256:".len()..]);
        let folder = format!("{}.leasehold", self.bucket.name);
        self.bucket.put(&format!("{folder}/{payload}"), content.as_bytes());
        let record = record.clone().with_payload(Some(payload)).encode();
        let line = format!("leasehold record {:032x}\n", leasehold::random::seed());
        self.bucket.put(&self.bucket.name, &[line.as_bytes(), &record].concat());
        Some(fence.clone())
    }

    fn content(&mut self) -> String {
        self.bucket.text().unwrap_or_else(|| OLD.into())
    }

    fn target(&mut self) -> &mut dyn Target {
        &mut self.target
    }
}

/// Of the kinds of cases, one in so many; all cases where there is time.
fn replays(bucket: Bucket, one_in: usize) {
    let cases =
        if count(0, 1) == 1 { whole() } else { some_of_each_kind(1).into_iter().step_by(one_in).collect() };
    let target = bucket.object(&bucket.endpoint);
    let name = bucket.name();
    let replayed = replay(&mut Replayed { bucket, target }, &cases);
    println!("{name}: {replayed} cases of the table");
    assert!(replayed > 60, "{replayed}");
}

/// The dead are kept out, and what was lost on the way is found.
fn keeps_zombies_out(make: Maker<'_>) {
    zombies::are_refused(make);
    zombies::whose_answers_are_lost_say_so(make);
    zombies::lost_answers_are_found_again(make);
}

/// Everything else that every target must do.
fn has_manners(make: Maker<'_>) {
    manners::two_writes_at_once_take_turns(make);
    manners::an_unreadable_fence_lets_nobody_in(make);
    manners::another_lease_is_refused_by_name(make);
    manners::a_silent_server_ends_the_seal(make);
    manners::watching_lets_in_and_counts(make);
    manners::what_was_not_answered_is_told_unknown(make);
    manners::a_watched_write_is_not_done_twice(make);
}

fn s3_bucket() -> Bucket {
    Bucket::new(Spot::s3, &server("S3"))
}

fn azure_bucket() -> Bucket {
    Bucket::new(Spot::azure, &server("AZURE"))
}

/// s3rver, which heeds no conditions.
fn lying_bucket() -> Bucket {
    fn spot(endpoint: &str) -> Spot {
        let vars = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"].map(|name| (name.into(), "S3RVER".into()));
        Spot { vars: vars.into(), ..Spot::s3(endpoint) }
    }
    // It does not take the odd names that others do.
    let name = format!("targets/{:032x}/today.json", leasehold::random::seed());
    Bucket { name, ..Bucket::new(spot, &server("S3RVER")) }
}

#[test]
fn honest_buckets_pass_whoever_else_seals() {
    let double = GcsDouble::start();
    let endpoint = double.endpoint();
    examined::honest_servers_pass(&s3_bucket());
    examined::honest_servers_pass(&azure_bucket());
    examined::honest_servers_pass(&Bucket::new(Spot::google_at, &endpoint));
}

#[test]
fn a_bucket_that_heeds_no_conditions_is_refused() {
    examined::liars_are_refused(&|| Box::new(lying_bucket()));
}

#[test]
fn s3_keeps_zombies_out() {
    keeps_zombies_out(&|| Box::new(s3_bucket()));
}

#[test]
fn azure_keeps_zombies_out() {
    keeps_zombies_out(&|| Box::new(azure_bucket()));
}

#[test]
fn google_protocol_keeps_zombies_out() {
    let double = GcsDouble::start();
    let endpoint = double.endpoint();
    keeps_zombies_out(&|| Box::new(Bucket::new(Spot::google_at, &endpoint)));
}

#[test]
fn s3_has_manners() {
    has_manners(&|| Box::new(s3_bucket()));
}

#[test]
fn azure_has_manners() {
    has_manners(&|| Box::new(azure_bucket()));
}

/// Azure writes no blob that has an Azure lease: that is told at once, and is no doubt.
#[test]
fn a_blob_with_an_azure_lease_is_surely_not_written() {
    let bucket = azure_bucket();
    seal(bucket.open().as_mut(), 33);
    let proxy = bucket.proxy();
    let body = "<Error><Code>LeaseIdMissing</Code></Error>";
    let leased = Fault::Answer { status: 412, after_landing: false, content_type: "application/xml", body };
    let strike = proxy.arm_on(bucket.swap_mark(), leased);
    let mut target = bucket.open_at(&proxy.url(&bucket.server()));
    let error = target.seal(&bearer(34), FenceMode::Enforce).unwrap_err();
    let TargetError::Remote { failure, .. } = &error else { panic!("{error}") };
    assert!(strike.struck() && failure.landed == Landed::No, "{failure:?}");
    assert_eq!(failure.kind, FailureKind::Unusable);
    assert_eq!(at(bucket.open().as_mut()), (33, 0));
}

#[test]
fn google_protocol_has_manners() {
    let double = GcsDouble::start();
    let endpoint = double.endpoint();
    has_manners(&|| Box::new(Bucket::new(Spot::google_at, &endpoint)));
}

#[test]
fn s3_replays_the_table() {
    replays(s3_bucket(), 12);
}

#[test]
fn azure_replays_the_table() {
    replays(azure_bucket(), 12);
}

#[test]
fn google_protocol_replays_the_table() {
    let double = GcsDouble::start();
    replays(Bucket::new(Spot::google_at, &double.endpoint()), 1);
}
