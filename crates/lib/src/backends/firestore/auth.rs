//! Access to the server: an HTTP client, and Google's credentials if they are needed.

use std::error::Error;
use std::io;
use std::time::Duration;

use object_store::gcp::{GcpCredentialProvider, GoogleCloudStorageBuilder};
use object_store::{BackoffConfig, ClientOptions, RetryConfig};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Client, Method};
use serde_json::Value;

use super::config::Config;
use super::response::FirestoreAnswer;
use crate::stores::{Failure, FailureKind};

/// How long a connection may take. Calls have their own limit.
const CONNECT: Duration = Duration::from_secs(5);

/// The bearer token of an administrator for the emulator.
const EMULATOR_BEARER: &str = "owner";

/// A client and its credentials. The first call makes it.
pub(super) struct Access {
    client: Client,
    /// None for the emulator. The provider keeps a token until shortly before it expires.
    credentials: Option<GcpCredentialProvider>,
    /// A call with these credentials succeeded before.
    accepted: bool,
}

impl Access {
    /// Reads credential files. Contacts nothing yet.
    pub fn new(config: &Config) -> Result<Self, Failure> {
        let mut client = Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            // A repeated write would find its own first attempt and report a conflict.
            .retry(reqwest::retry::never())
            .connect_timeout(CONNECT)
            .pool_max_idle_per_host(1)
            .user_agent(concat!("leasehold/", env!("CARGO_PKG_VERSION")));
        if config.emulator {
            client = client.no_proxy();
        }
        if config.endpoint.starts_with("http://") {
            // The system's certificates are not needed, and reading them takes longer than a call.
            client = client.tls_certs_only([]);
        }
        let client = client.build().map_err(|e| {
            Failure::new(
                FailureKind::Unusable,
                format!(
                    "No HTTPS client could be set up ({}). Check the certificates installed on this machine.",
                    cause(&e)
                ),
            )
        })?;
        let credentials = if config.emulator { None } else { Some(credentials()?) };
        Ok(Self { client, credentials, accepted: false })
    }

    /// Records that a call with these credentials succeeded.
    pub fn accepted(&mut self) {
        self.accepted = true;
    }

    /// A call was refused because of its token. If the token worked before, it has expired, as when the machine
    /// slept, and a second try helps.
    pub fn refused(&self, config: &Config, words: &str) -> Option<Failure> {
        (self.accepted && self.credentials.is_some()).then(|| Failure::new(FailureKind::Unreachable, format!(
                "Firestore's {} no longer accepts a token that it accepted before ({words}). Try again with a new token.",
                config.database
            )))
    }

    async fn bearer(&self) -> Result<String, Failure> {
        match &self.credentials {
            None => Ok(EMULATOR_BEARER.into()),
            Some(provider) => match provider.get_credential().await {
                Ok(credential) => Ok(credential.bearer.clone()),
                Err(e) => Err(no_token(&e)),
            },
        }
    }

    /// Makes one call. A failure means that no complete answer came; the request may have arrived.
    pub async fn call(
        &self,
        config: &Config,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<FirestoreAnswer, Failure> {
        let bearer = self.bearer().await?;
        let url = format!("{}/v1/{path}", config.endpoint);
        let mut authorization = HeaderValue::try_from(format!("Bearer {bearer}")).map_err(|_| {
            Failure::not_written(
                FailureKind::Denied,
                "Google's token contains characters that are not allowed. Check its source.",
            )
        })?;
        authorization.set_sensitive(true);
        let mut request = self.client.request(method, url).header(AUTHORIZATION, authorization);
        if let Some(body) = body {
            request = request.header(CONTENT_TYPE, "application/json").body(body.to_string());
        }
        let unreachable = |e: reqwest::Error| unreachable(config, &e);
        let response = request.send().await.map_err(unreachable)?;
        let http = response.status().as_u16();
        let body = response.bytes().await.map_err(unreachable)?;
        // The emulator's token is an ordinary word and no secret.
        let secret = if config.emulator { "" } else { &bearer };
        Ok(FirestoreAnswer::read(http, &body, secret))
    }
}

/// Google's usual order: a key file or a login named by the environment, the file of gcloud, or the machine's
/// metadata server.
fn credentials() -> Result<GcpCredentialProvider, Failure> {
    // Requests for tokens may be repeated, within the limit of the call.
    let retry = RetryConfig {
        max_retries: 1,
        retry_timeout: CONNECT,
        backoff: BackoffConfig { init_backoff: Duration::from_millis(100), ..Default::default() },
    };
    let built = GoogleCloudStorageBuilder::from_env()
        // Only the credentials are used; the bucket is never accessed.
        .with_bucket_name("leasehold")
        .with_retry(retry)
        .with_client_options(ClientOptions::new().with_connect_timeout(CONNECT))
        .build();
    built.map(|storage| storage.credentials().clone()).map_err(|e| bad_credentials(&e))
}

/// The credentials cannot be used. The error's text is not repeated, because a parser's error quotes its input.
fn bad_credentials(error: &(dyn Error + 'static)) -> Failure {
    let system = chain(error).find_map(|e| e.downcast_ref::<io::Error>());
    let syntax = chain(error).any(|e| e.is::<serde_json::Error>());
    let (kind, what) = match system.map(io::Error::kind) {
        Some(io::ErrorKind::PermissionDenied) => (FailureKind::Denied, "may not be read by this user"),
        Some(io::ErrorKind::NotFound) => (FailureKind::Unusable, "do not exist"),
        Some(_) => (FailureKind::Unusable, "cannot be read"),
        None if syntax => (FailureKind::Unusable, "are neither a service account's key nor a gcloud login"),
        None => (FailureKind::Unusable, "cannot be used, for example because the private key is damaged"),
    };
    Failure::not_written(
        kind,
        format!(
            "The Google credentials named by the environment {what}. Check GOOGLE_APPLICATION_CREDENTIALS, GOOGLE_SERVICE_ACCOUNT and GOOGLE_SERVICE_ACCOUNT_KEY."
        ),
    )
}

/// There is no token. The server's answer is not repeated, because it may contain a part of a token.
fn no_token(error: &(dyn Error + 'static)) -> Failure {
    let refused = chain(error).any(|e| e.to_string().contains("status code: 4"));
    if refused {
        Failure::not_written(
            FailureKind::Denied,
            "Google refused a token for these credentials: they are revoked or expired, or this machine has no service account. Log in again, or give the machine a service account.",
        )
    } else {
        Failure::new(
            FailureKind::Unreachable,
            "No Google credentials were found: GOOGLE_APPLICATION_CREDENTIALS names none, or the server for tokens did not answer. Set it, run gcloud auth application-default login, or try again.",
        )
    }
}

fn unreachable(config: &Config, error: &reqwest::Error) -> Failure {
    let endpoint = &config.endpoint;
    // A second try does not help with a bad certificate.
    if error.is_connect() && chain(error).any(is_tls) {
        return Failure::new(
            FailureKind::Unusable,
            format!(
                "The connection to {endpoint} is not safe ({}). Check the certificates of this machine, and \
                 any proxy in between.",
                cause(error)
            ),
        );
    }
    Failure::new(
        FailureKind::Unreachable,
        format!(
            "Firestore at {endpoint} cannot be reached ({}). Check the network and the address, then try again.",
            cause(error)
        ),
    )
}

fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |e: &&'a (dyn Error + 'static)| (*e).source())
}

fn is_tls(error: &(dyn Error + 'static)) -> bool {
    // io::Error does not list the error that it wraps as a source.
    let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    error.is::<rustls::Error>() || inner.is_some_and(|e| is_tls(e))
}

/// The innermost error; the outer ones only say that a request failed.
fn cause(error: &(dyn Error + 'static)) -> String {
    chain(error).last().map_or(String::new(), ToString::to_string)
}
