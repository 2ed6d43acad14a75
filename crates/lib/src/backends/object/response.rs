//! Reads answers: by the HTTP status, and by the provider's error code if a status has two meanings. The client
//! library's own errors are not used.

use super::config::{Config, Provider};
use super::wire::{BrokenCall, CallReport, ObjectAnswer};
use crate::stores::{Failure, FailureKind};

/// The outcome of a conditional write.
#[derive(Debug, PartialEq, Eq)]
pub enum Put {
    /// It was made.
    Taken,
    /// It was certainly not made: the condition did not hold.
    Refused,
    /// It may have been made.
    Open(Failure),
}

/// The outcome of a conditional write; `create`: the object must not have existed.
pub fn put(config: &Config, report: &CallReport, credentials: &CallReport, create: bool) -> Put {
    let Some(answer) = &report.answer else { return Put::Open(failure(config, report, credentials)) };
    let missing = ["NoSuchKey", "BlobNotFound"].contains(&answer.code.as_str());
    match answer.status {
        200..=299 => Put::Taken,
        // Azure also uses it for a blob with an Azure lease, which is no changed blob.
        412 if config.provider != Provider::Azure => Put::Refused,
        412 if ["ConditionNotMet", "TargetConditionNotMet"].contains(&answer.code.as_str()) => Put::Refused,
        // S3 uses it for a key that was removed. A missing bucket has another code.
        404 if !create && missing => Put::Refused,
        // Any other 409 is S3's conflict of two requests, of which perhaps none succeeded.
        409 if create && config.provider == Provider::Azure && answer.code == "BlobAlreadyExists" => {
            Put::Refused
        }
        _ => Put::Open(failure(config, report, credentials)),
    }
}

/// Whether a read's answer was that there is no object.
pub fn absent(report: &CallReport) -> bool {
    let absent =
        |a: &ObjectAnswer| a.status == 404 && ["NoSuchKey", "BlobNotFound"].contains(&a.code.as_str());
    report.answer.as_ref().is_some_and(absent)
}

/// The failure of a call.
pub fn failure(config: &Config, report: &CallReport, credentials: &CallReport) -> Failure {
    let (kind, message) = match (&report.answer, &report.broken) {
        (Some(answer), _) => answered(config, answer),
        (None, Some(broken)) => cut(config, broken),
        (None, None) if report.asked => (
            FailureKind::Unreachable,
            format!("{} stopped in the middle of its answer. Try again.", host(config)),
        ),
        (None, None) => uncredited(config, credentials),
    };
    // Nothing was sent, or the answer has the provider's own code. A proxy's answer has none.
    let denied = |answer: Option<&ObjectAnswer>| {
        kind == FailureKind::Denied && answer.is_none_or(|answer| !answer.code.is_empty())
    };
    match &report.answer {
        Some(answer) if leased_by_azure(answer) => Failure::not_written(kind, message),
        answer if denied(answer.as_ref()) => Failure::not_written(kind, message),
        _ => Failure::new(kind, message),
    }
}

/// Whether the object has an Azure lease.
fn leased_by_azure(answer: &ObjectAnswer) -> bool {
    answer.status == 412 && answer.code.starts_with("LeaseId")
}

/// The server's name, for messages.
fn host(config: &Config) -> String {
    match &config.endpoint {
        Some(endpoint) => format!("The {} endpoint {endpoint}", config.provider.title()),
        None => config.provider.title().into(),
    }
}

fn cut(config: &Config, broken: &BrokenCall) -> (FailureKind, String) {
    let (host, why) = (host(config), &broken.why);
    if broken.tls {
        let message = format!(
            "{host} cannot be trusted: TLS failed ({why}). Check its certificate, or name your own authority's \
             certificates in SSL_CERT_FILE."
        );
        return (FailureKind::Unusable, message);
    }
    (FailureKind::Unreachable, format!("{host} did not answer ({why}). Check the network and try again."))
}

/// There were no credentials to sign a request.
fn uncredited(config: &Config, credentials: &CallReport) -> (FailureKind, String) {
    let (title, hint) = (config.provider.title(), config.provider.credentials());
    match &credentials.answer {
        Some(answer) if answer.status >= 500 || answer.status == 429 => (
            FailureKind::Unreachable,
            format!("The service for credentials of {title} failed ({}). Try again.", answer.status),
        ),
        Some(answer) if !answer.good() => (
            FailureKind::Denied,
            format!("The service for credentials of {title} refused them ({}). {hint}.", answer.status),
        ),
        _ => (FailureKind::Denied, format!("No usable credentials for {title} were found. {hint}.")),
    }
}

fn answered(config: &Config, answer: &ObjectAnswer) -> (FailureKind, String) {
    let (host, bucket, what) = (host(config), &config.bucket, config.provider.bucket());
    let said = match answer.code.as_str() {
        "" => answer.status.to_string(),
        code => format!("{} {code}", answer.status),
    };
    if answer.html || answer.good() {
        return (
            FailureKind::Unusable,
            format!(
                "{host} answered {said}, but not as an object store: a proxy, a login page or another service \
             answered instead. Check the endpoint and any proxy in between."
            ),
        );
    }
    let expired = ["ExpiredToken", "InvalidToken", "TokenRefreshRequired"].contains(&answer.code.as_str());
    match answer.status {
        _ if answer.code == "RequestTimeTooSkewed" => (
            FailureKind::Denied,
            format!(
                "{host} refused the request because this machine's clock is too far off ({said}). Set the clock."
            ),
        ),
        400 if expired => {
            (FailureKind::Denied, format!("{host} says the credentials have expired ({said}). Renew them."))
        }
        401 | 403 => (
            FailureKind::Denied,
            format!(
                "{host} does not let these credentials use the {what} {bucket:?} ({said}). Check them; they need to read, \
             write and list there (without permission to list, a missing object looks forbidden)."
            ),
        ),
        404 if ["NoSuchBucket", "ContainerNotFound"].contains(&answer.code.as_str()) => (
            FailureKind::Unusable,
            format!(
                "The {what} {bucket:?} does not exist ({said}). Create it, or check its name and region."
            ),
        ),
        301 | 302 | 307 | 308 | 400 if config.provider == Provider::S3 => (
            FailureKind::Unusable,
            format!(
                "{host} answered {said}: the bucket {bucket:?} may be in another region. Set AWS_REGION, or add \
             ?region= to the URL."
            ),
        ),
        409 => (
            FailureKind::Unreachable,
            format!("{host} had another request for the same object at the same time ({said}). Try again."),
        ),
        _ if leased_by_azure(answer) => (
            FailureKind::Unusable,
            format!(
                "{host} refused to write an object in the {what} {bucket:?}, because the object has an Azure \
                 lease ({said}); nothing was written. Break that lease (az storage blob lease break)."
            ),
        ),
        429 => slow(&host, &said),
        503 if answer.code == "SlowDown" || answer.code == "ServerBusy" => slow(&host, &said),
        408 | 500..=599 => (FailureKind::Unreachable, format!("{host} failed ({said}). Try again.")),
        _ => (
            FailureKind::Unusable,
            format!(
                "{host} answered {said}, so no lease can be kept there. Check the endpoint, and that it supports \
             conditional writes."
            ),
        ),
    }
}

fn slow(host: &str, said: &str) -> (FailureKind, String) {
    let message = format!(
        "{host} asks for fewer requests ({said}). Nothing was lost. Use a longer ttl or fewer waiters."
    );
    (FailureKind::Unreachable, message)
}
