//! Buckets: S3 on ministack, Azure on Azurite, Google on a double of our own.

mod conformance;
mod faults;
pub mod gcs_double;
mod manners;
mod marks;
mod races;
mod traps;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold::backends::object::{Provider, with_vars};
use leasehold::stores::Examine;
use leasehold::stores::conformance::Harness;

pub use self::gcs_double::GcsDouble;

/// Public: every copy of Azurite has it.
const AZURITE_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// A bucket at an endpoint.
pub type Maker = fn(&str) -> Spot;

/// Which bucket, with which variables.
#[derive(Clone)]
pub struct Spot {
    pub provider: Provider,
    pub scheme: &'static str,
    pub bucket: String,
    pub parameters: String,
    pub vars: Vec<(String, String)>,
}

impl Spot {
    pub fn s3(endpoint: &str) -> Self {
        let vars = [("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test")];
        Self::new(Provider::S3, "s3", format!("endpoint={endpoint}&region=us-east-1"), &vars)
    }

    pub fn azure(endpoint: &str) -> Self {
        let vars = [("AZURE_STORAGE_ACCOUNT_KEY", AZURITE_KEY)];
        Self::new(Provider::Azure, "az", format!("endpoint={endpoint}&account=devstoreaccount1"), &vars)
    }

    /// The double must live as long as the handles.
    pub fn google(double: &GcsDouble) -> Self {
        Self::google_at(&double.endpoint())
    }

    pub fn google_at(endpoint: &str) -> Self {
        let vars = [("GOOGLE_BEARER_TOKEN", "test")];
        Self::new(Provider::Google, "gs", format!("endpoint={endpoint}"), &vars)
    }

    fn new(provider: Provider, scheme: &'static str, parameters: String, vars: &[(&str, &str)]) -> Self {
        let vars = vars.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        Self { provider, scheme, bucket: "leases".into(), parameters, vars }
    }

    /// A handle on one corner of the bucket.
    pub fn open(&self, prefix: &str) -> Box<dyn Examine> {
        let url = format!("{}://{}/{prefix}?{}", self.scheme, self.bucket, self.parameters);
        Box::new(with_vars(self.provider, &url, self.vars.clone()).unwrap())
    }

    /// A corner that nobody used before.
    pub fn harness(&self) -> Harness {
        let (spot, prefix) = (self.clone(), fresh_prefix());
        Harness::new(move || spot.open(&prefix))
    }
}

/// Odd on purpose: a prefix is whatever a user likes.
pub fn fresh_prefix() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("tests of/ä+%41&=~'()/{:032x}-{next}", leasehold::random::seed())
}

/// What keeps a server busy for long is done one after the other, so that each gets its answers in time.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
