//! One request to a URL that is a secret: errors name the host only.

use reqwest::{Client, Url, redirect};

use super::PATIENCE;
use crate::messages::notify as say;

/// A request.
pub struct Post {
    pub url: Url,
    /// The type of the body.
    pub kind: &'static str,
    pub body: String,
}

/// A URL, and the host for people.
pub fn url(text: &str) -> Result<(Url, String), String> {
    let url = Url::parse(text).map_err(|_| say::no_url())?;
    let host = url.host_str().ok_or_else(say::no_url)?.to_owned();
    Ok((url, host))
}

/// Sends it, within the time that is allowed.
pub async fn send(client: &Client, post: Post) -> Result<(), String> {
    let request = client.post(post.url).header("content-type", post.kind).body(post.body);
    let answer = request.send().await.map_err(|e| why(&e))?;
    let status = answer.status();
    if status.is_success() { Ok(()) } else { Err(say::http_status(status.as_u16())) }
}

/// What asks this URL. With TLS it reads the certificates of the system, which takes a moment.
pub fn client(url: &Url) -> Result<Client, String> {
    let mut builder = Client::builder()
        .redirect(redirect::Policy::none())
        .connect_timeout(PATIENCE)
        .timeout(PATIENCE)
        .user_agent(concat!("leasehold/", env!("CARGO_PKG_VERSION")));
    let here = matches!(url.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"));
    if here {
        builder = builder.no_proxy();
    }
    // Whoever was first has installed the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
    if url.scheme() != "https" {
        // The certificates of the system, which take time to read, are not needed.
        builder = builder.tls_certs_only([]);
    }
    builder.build().map_err(|e| why(&e))
}

/// Without the URL.
fn why(error: &reqwest::Error) -> String {
    match (error.is_timeout(), error.is_connect()) {
        (true, _) => say::no_answer_in_time(),
        (_, true) => say::not_reached(),
        _ => say::no_whole_answer(),
    }
}
