//! Which requests are answered at all.
//!
//! A page of another site can have a browser ask this server, and can give its own name this server's address. So the
//! host that a request names must be one at which this server listens, and a request that another site caused is
//! refused, unless a person followed a link.

use std::net::{IpAddr, SocketAddr};

use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, CONTENT_LENGTH, HOST, ORIGIN, TRANSFER_ENCODING};
use axum::http::{HeaderMap, HeaderName, Method, StatusCode};
use leasehold::host;

use super::{Refusal, header_text};
use crate::cmd::serve::tokens::Tokens;
use crate::messages::dashboard as say;
use crate::messages::serve;

/// Refuses what must not be answered.
pub fn check(request: &Request, tokens: &Tokens, address: SocketAddr) -> Result<(), Refusal> {
    let headers = request.headers();
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method", say::only_looks()));
    }
    let named = header_text(headers, &HOST).or_else(|| Some(request.uri().authority()?.as_str()));
    if headers.get_all(HOST).iter().count() > 1 || !named.is_some_and(|named| is_ours(named, address)) {
        return Err(Refusal::new(StatusCode::MISDIRECTED_REQUEST, "host", say::other_host(address)));
    }
    if !is_own(headers) {
        return Err(Refusal::new(StatusCode::FORBIDDEN, "origin", say::other_origin()));
    }
    let bearer = headers.get(AUTHORIZATION).map(|value| value.as_bytes());
    let unknown = || match bearer {
        None => serve::bearer_needed(),
        Some(_) => serve::bearer_unknown(),
    };
    let rights = tokens.rights(bearer);
    let rights = rights.ok_or_else(|| Refusal::new(StatusCode::UNAUTHORIZED, "bearer", unknown()))?;
    if !rights.prefix.is_empty() {
        return Err(Refusal::new(StatusCode::FORBIDDEN, "prefix", say::all_names()));
    }
    let length = header_text(headers, &CONTENT_LENGTH);
    if headers.contains_key(TRANSFER_ENCODING) || length.is_some_and(|length| length != "0") {
        return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "body", say::no_body()));
    }
    Ok(())
}

/// Whether a client that listens to this server would name it so. The port may be another one: of an SSH tunnel.
fn is_ours(named: &str, address: SocketAddr) -> bool {
    let Some(host) = host_of(named) else { return false };
    match host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        Ok(ip) if address.ip().is_unspecified() => !ip.is_unspecified(),
        Ok(ip) => ip == address.ip() || ip.is_loopback() && address.ip().is_loopback(),
        Err(_) => {
            host.eq_ignore_ascii_case("localhost")
                && (address.ip().is_loopback() || address.ip().is_unspecified())
                || host.eq_ignore_ascii_case(&host::name()) && !address.ip().is_loopback()
        }
    }
}

/// The host of `host:port`.
fn host_of(named: &str) -> Option<&str> {
    let port_at = match named.strip_prefix('[') {
        Some(rest) => rest.find(']')? + 2,
        None => named.find(':').unwrap_or(named.len()),
    };
    let (host, port) = named.split_at_checked(port_at)?;
    let digits = |port: &str| port.len() <= 5 && port.bytes().all(|b| b.is_ascii_digit());
    (port.is_empty() || port.strip_prefix(':').is_some_and(digits)).then_some(host)
}

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// Whether one of our pages caused it, or a person.
fn is_own(headers: &HeaderMap) -> bool {
    if let Some(origin) = headers.get(ORIGIN) {
        let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        if origin.map(|(_, host)| host) != header_text(headers, &HOST) {
            return false;
        }
    }
    match header_text(headers, &FETCH_SITE) {
        None | Some("same-origin" | "none") => true,
        // A link on another page, in a tab of its own. That page cannot read it.
        Some(_) => {
            header_text(headers, &FETCH_MODE) == Some("navigate")
                && header_text(headers, &FETCH_DEST) == Some("document")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_ours_or_it_is_not() {
        let ours = |named: &str, address: &str| is_ours(named, address.parse().unwrap());
        let local = "127.0.0.1:7717";
        for named in
            ["127.0.0.1:7717", "127.0.0.1", "localhost:7717", "LOCALHOST", "[::1]:8080", "localhost:80"]
        {
            assert!(ours(named, local), "{named}");
        }
        for named in [
            "evil.example",
            "evil.example:7717",
            "10.0.0.1:7717",
            "localhost.evil.example",
            "",
            "[::1",
            "[::1]x",
        ] {
            assert!(!ours(named, local), "{named}");
        }
        assert!(!ours("127.0.0.1:7717@evil", local) && !ours(&host::name(), local));
        assert!(ours("10.0.0.1:7717", "10.0.0.1:7717") && !ours("10.0.0.2:7717", "10.0.0.1:7717"));
        assert!(!ours("localhost:7717", "10.0.0.1:7717") && ours(&host::name(), "10.0.0.1:7717"));
        assert!(ours("10.0.0.9", "0.0.0.0:7717") && !ours("evil.example", "0.0.0.0:7717"));
    }
}
