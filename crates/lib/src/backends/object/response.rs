//! What an answer means. Decided by its status, and by the provider's word for it where one status
//! has two meanings; never by the error the client library made of it.

use super::config::{Config, Provider};
use super::wire::{BrokenCall, CallReport, ObjectAnswer};
use crate::stores::{Failure, FailureKind};

/// What became of a conditional write.
#[derive(Debug, PartialEq, Eq)]
pub enum Put {
    /// It was taken.
    Taken,
    /// It was certainly not: the condition did not hold.
    Refused,
    /// It may have been taken.
    Open(Failure),
}

/// Judges a conditional write; `create`: nothing was to be there.
pub fn put(config: &Config, told: &CallReport, credentials: &CallReport, create: bool) -> Put {
    let Some(answer) = &told.answer else { return Put::Open(failure(config, told, credentials)) };
    let missing = ["NoSuchKey", "BlobNotFound"].contains(&answer.code.as_str());
    match answer.status {
        200..=299 => Put::Taken,
        // Azure says it too of a blob that a lease of its own guards, which is no change of the blob.
        412 if config.provider != Provider::Azure => Put::Refused,
        412 if ["ConditionNotMet", "TargetConditionNotMet"].contains(&answer.code.as_str()) => Put::Refused,
        // S3 says so of a key that vanished; a bucket that vanished is another matter.
        404 if !create && missing => Put::Refused,
        // Any other 409 is S3's "two at once, ask again", and nobody may have won.
        409 if create && config.provider == Provider::Azure && answer.code == "BlobAlreadyExists" => {
            Put::Refused
        }
        _ => Put::Open(failure(config, told, credentials)),
    }
}

/// Whether a read was told that nothing is there.
pub fn absent(told: &CallReport) -> bool {
    let absent =
        |a: &ObjectAnswer| a.status == 404 && ["NoSuchKey", "BlobNotFound"].contains(&a.code.as_str());
    told.answer.as_ref().is_some_and(absent)
}

/// Why a call failed.
pub fn failure(config: &Config, told: &CallReport, credentials: &CallReport) -> Failure {
    let (kind, message) = match (&told.answer, &told.broken) {
        (Some(answer), _) => answered(config, answer),
        (None, Some(broken)) => cut(config, broken),
        (None, None) if told.asked => (
            FailureKind::Unreachable,
            format!("{} stopped in the middle of its answer. Try again.", host(config)),
        ),
        (None, None) => uncredited(config, credentials),
    };
    match &told.answer {
        Some(answer) if leased_by_azure(answer) => Failure::not_written(kind, message),
        _ => Failure::new(kind, message),
    }
}

/// Somebody has taken out Azure's own lease on the object.
fn leased_by_azure(answer: &ObjectAnswer) -> bool {
    answer.status == 412 && answer.code.starts_with("LeaseId")
}

/// Who is spoken to.
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

/// There was nothing to sign a request with.
fn uncredited(config: &Config, credentials: &CallReport) -> (FailureKind, String) {
    let (title, hint) = (config.provider.title(), config.provider.credentials());
    match &credentials.answer {
        Some(answer) if answer.status >= 500 || answer.status == 429 => (
            FailureKind::Unreachable,
            format!(
                "The service that gives credentials for {title} is in trouble ({}). Try again.",
                answer.status
            ),
        ),
        Some(answer) if !answer.good() => (
            FailureKind::Denied,
            format!(
                "Credentials for {title} were refused where they are given out ({}). {hint}.",
                answer.status
            ),
        ),
        _ => {
            (FailureKind::Denied, format!("No credentials for {title} were found that can be used. {hint}."))
        }
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
                "{host} answered {said}, but not as an object store does: a proxy, a login page or another service \
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
             write and list there (without the right to list, what is absent looks forbidden)."
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
            format!("{host} met another request for the same object and did not decide ({said}). Try again."),
        ),
        _ if leased_by_azure(answer) => (
            FailureKind::Unusable,
            format!(
                "{host} lets nobody write an object in the {what} {bucket:?} because somebody has taken out Azure's own \
             lease on it ({said}): nothing was written. Break that lease (az storage blob lease break)."
            ),
        ),
        429 => slow(&host, &said),
        503 if answer.code == "SlowDown" || answer.code == "ServerBusy" => slow(&host, &said),
        408 | 500..=599 => (FailureKind::Unreachable, format!("{host} is in trouble ({said}). Try again.")),
        _ => (
            FailureKind::Unusable,
            format!(
                "{host} answered {said}, which no lease can be kept with. Check the endpoint and that it supports \
             conditional writes."
            ),
        ),
    }
}

fn slow(host: &str, said: &str) -> (FailureKind, String) {
    let message = format!(
        "{host} asks for fewer requests ({said}): this is back-pressure, not loss. Use a longer ttl or fewer waiters."
    );
    (FailureKind::Unreachable, message)
}
