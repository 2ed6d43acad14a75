//! Inputs and effects in a few words, for the trace.

use leasehold_core::record::LeaseRecord;
use leasehold_core::session::{Effect, Input, Op, Request};
use leasehold_core::store::Cas;

pub(crate) fn brief_input(input: &Input) -> String {
    match input {
        Input::Read { id, result: Ok(reading) } => match &reading.stored {
            None => format!("read {}: nothing, instance {}", id.0, reading.instance),
            Some(s) => {
                let age = s.age.map(|a| format!("{:.3}", a.as_secs_f64()));
                let age = age.unwrap_or_else(|| "?".into());
                format!("read {}: {} age {age}, instance {}", id.0, brief_body(&s.body), reading.instance)
            }
        },
        Input::Read { id, result: Err(failure) } => format!("read {}: {}", id.0, failure.message),
        Input::Cas { id, result } => match result {
            Cas::Written { .. } => format!("cas {}: written", id.0),
            Cas::Conflict => format!("cas {}: conflict", id.0),
            Cas::Unknown(failure) => format!("cas {}: unknown, {}", id.0, failure.message),
        },
        other => format!("{other:?}"),
    }
}

pub(crate) fn brief(effect: &Effect) -> String {
    match effect {
        Effect::Arm(None) => "arm nothing".into(),
        Effect::Arm(Some(at)) => format!("arm {:.6}", at.0.as_secs_f64()),
        Effect::Store(Request::Ask { id, op: Op::Read, .. }) => format!("read {}", id.0),
        Effect::Store(Request::Ask { id, op: Op::Cas { body, .. }, .. }) => {
            format!("cas {}: {}", id.0, brief_body(body))
        }
        other => format!("{other:?}"),
    }
}

/// The last digits of write and grant are enough to tell them apart in a trace.
fn brief_body(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let lease = ["s/site", "s/other"].into_iter().find(|n| text.contains(&format!("\"lease\":\"{n}\"")));
    let name = leasehold_core::name::Name::new(lease.unwrap_or("s/site")).ok();
    match name.and_then(|name| LeaseRecord::decode(&name, body).ok()) {
        None => text.into_owned(),
        Some(r) => {
            let state = match &r.hold {
                None => "free".into(),
                Some(h) => format!(
                    "held by {}{} (grant {:04x}, ttl {:?})",
                    r.holder.run,
                    if h.revoke { " REVOKED" } else { "" },
                    h.grant.0 & 0xffff,
                    h.ttl
                ),
            };
            format!("{} token {} {state} write {:04x}", r.lease, r.token, r.write.0 & 0xffff)
        }
    }
}
