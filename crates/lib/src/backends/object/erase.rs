//! Deletes the marks that removed records leave, by a DELETE with a condition, which object_store does not have. It
//! is used only for marks, after the removal is done, and its result changes no answer.

use object_store::aws::{AwsAuthorizer, AwsCredentialProvider};
use object_store::azure::{AzureAuthorizer, AzureCredentialProvider};
use object_store::client::{HttpClient, HttpRequest, HttpRequestBody};
use object_store::gcp::GcpCredentialProvider;
use object_store::path::Path;
use reqwest::Method;
use reqwest::header::{AUTHORIZATION, HeaderName, HeaderValue, IF_MATCH};

use super::config::Provider;
use super::wire::CallNote;
use crate::stores::Version;

/// The way to sign requests.
pub enum Signer {
    /// For a region of S3.
    S3(AwsCredentialProvider, String),
    /// With a token.
    Google(GcpCredentialProvider),
    /// For an account on Azure.
    Azure(AzureCredentialProvider, String),
}

/// Deletes marks.
pub struct Eraser {
    /// The client.
    pub http: HttpClient,
    /// The address of the bucket, without a slash at its end.
    pub bucket: String,
    /// The way to sign requests.
    pub signer: Signer,
}

impl Eraser {
    /// Whether the server refuses a DELETE of another version. Not every server compatible with S3 checks the
    /// condition.
    pub async fn refuses_another(&self, path: &Path) -> bool {
        self.delete(path, Provider::S3.no_version()).await == Some(412)
    }

    /// Deletes the object if it still has that version. Returns whether the version is gone.
    pub async fn erase(&self, path: &Path, version: &Version) -> bool {
        matches!(self.delete(path, &version.0).await, Some(200..=299 | 404 | 412))
    }

    /// The status of the answer, if there is one.
    async fn delete(&self, path: &Path, version: &str) -> Option<u16> {
        let note = CallNote::default();
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.method_mut() = Method::DELETE;
        *request.uri_mut() = format!("{}/{}", self.bucket, encoded(path.as_ref())).parse().ok()?;
        *request.extensions_mut() = note.extensions();
        let condition = match self.signer {
            Signer::Google(_) => HeaderName::from_static("x-goog-if-generation-match"),
            Signer::S3(..) | Signer::Azure(..) => IF_MATCH,
        };
        request.headers_mut().insert(condition, HeaderValue::from_str(version).ok()?);
        match &self.signer {
            Signer::S3(credentials, region) => {
                let credential = credentials.get_credential().await.ok()?;
                AwsAuthorizer::new(&credential, "s3", region).try_authorize(&mut request, None).ok()?;
            }
            Signer::Google(credentials) => {
                let bearer = format!("Bearer {}", credentials.get_credential().await.ok()?.bearer);
                request.headers_mut().insert(AUTHORIZATION, HeaderValue::from_str(&bearer).ok()?);
            }
            Signer::Azure(credentials, account) => {
                let credential = credentials.get_credential().await.ok()?;
                AzureAuthorizer::new(&credential, account).try_authorize(&mut request).ok()?;
            }
        }
        Some(self.http.execute(request).await.ok()?.status().as_u16())
    }
}

/// A name, encoded for a URL.
fn encoded(name: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~' | b'/');
    name.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}
