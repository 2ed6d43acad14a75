//! `leasehold acquire`, `renew` and `release`: the same lease, by hand, for scripts.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use leasehold::core::additions::Additions;
use leasehold::core::fence::Bearer;
use leasehold::core::human_duration::HumanDuration;
use leasehold::core::ids::{Epoch, Grant, Token};
use leasehold::core::name::Name;
use leasehold::core::one_shot::{OneShotOutcome, OneShotVerb, describe};
use leasehold::core::record::LeaseRecord;
use leasehold::core::session::{Busy, Granted, Outcome, lease_key};
use leasehold::core::timing::TimingWishes;
use leasehold::host::{Enclosing, SUPERVISOR, grant_text, parse_supervisor_text};
use leasehold::manual::{self, AcquireRequest};
use leasehold::random;
use leasehold::state::{StateDir, is_denial, read_private, write_private};
use leasehold_run::runner::is_above_us;
use leasehold_run::runner::signals::Signals;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    LeasePurpose, OpenedStore, bad_record, held_by, is_on_the_runs_store, not_started, store_failed,
    unconfirmed, warn_unremembered,
};
use crate::args::{AcquireArgs, Everywhere, ManualArgs, token};
use crate::config::{self, Chosen, Missing};
use crate::exit::{self, FailKind, Failed};
use crate::messages::{by_hand as say, run::system};
use crate::out::{self, Out};

/// The private file between `acquire` and `release`: the last grant of a lease on each store.
#[derive(Default, Serialize, Deserialize)]
struct KeptGrants {
    stores: BTreeMap<String, KeptGrant>,
    /// Additions of later versions, carried along unread.
    #[serde(default, skip_serializing_if = "Additions::is_empty")]
    more: Additions,
}

#[derive(Serialize, Deserialize)]
struct KeptGrant {
    token: Token,
    epoch: Epoch,
    grant: Grant,
}

/// `leasehold acquire NAME`
pub fn acquire(flags: &Everywhere, args: &AcquireArgs, out: &Out) -> Result<u8, Failed> {
    let told = acquired(flags, args, out);
    let code = told.as_ref().map_or_else(|failed| failed.code(), |code| *code);
    if args.eval && code != exit::OK {
        // The shell's eval must fail with our code. To evaluate nothing would be a success.
        out::line(&format!("(exit {code})"));
    }
    told
}

fn acquired(flags: &Everywhere, args: &AcquireArgs, out: &Out) -> Result<u8, Failed> {
    let lease = super::name(&args.name)?;
    let job = args.job.as_deref().map_or_else(|| Ok(lease.clone()), super::name)?;
    let opened = super::open_tested(flags, std::slice::from_ref(&lease))?;
    let wishes = TimingWishes { ttl: Some(args.ttl), ..TimingWishes::default() };
    let timing = super::timing(wishes, opened.store.as_ref())?;
    super::remember_store(&opened, std::slice::from_ref(&lease))?;
    let (wait, within) = (args.wait.unwrap_or_default(), super::within());
    let ask = AcquireRequest { lease, job, timing, wait, force: false, within };
    let (granted, chosen) = match take(&ask, opened, signals()?, out)? {
        ManualClaim::Granted(granted, chosen) => (granted, chosen),
        ManualClaim::Busy(busy) => {
            if out.json {
                out.object(&not_acquired(&busy));
            }
            out.note(&match ask.within.holds(&busy) {
                true => say::busy_around(&ask.lease, held_by(&busy)),
                false => say::busy(&ask.lease, held_by(&busy)),
            });
            return Ok(exit::BUSY);
        }
    };
    print(&granted, args.eval, &chosen, out)?;
    let (time, heartbeat) = (HumanDuration(left(&granted)), HumanDuration(timing.heartbeat));
    out.note(&say::taken(&granted.lease, time, granted.token, heartbeat));
    Ok(exit::OK)
}

/// How long the lease still lasts, for people: whole seconds, although the store's answer took a moment.
pub fn left(granted: &Granted) -> Duration {
    let whole = Duration::from_secs_f64(granted.ttl.as_secs_f64().round());
    if whole.abs_diff(granted.ttl) < Duration::from_millis(50) { whole } else { granted.ttl }
}

/// The object of `--json` for a lease that somebody else holds.
pub fn not_acquired(busy: &Busy) -> Value {
    json!({
        "v": 1, "lease": busy.lease.as_str(), "acquired": false, "token": busy.token.get(),
        "holder": busy.holder.to_string(),
        "expires_in_s": busy.ends_in.map(|d| d.as_secs_f64()),
    })
}

/// Prints the token alone, or export lines, or an object. If that fails, the lease is released: nobody has its token.
pub fn print(granted: &Granted, eval: bool, chosen: &Chosen, out: &Out) -> Result<(), Failed> {
    let Granted { lease, token, ttl, .. } = granted;
    let text = if out.json {
        let (token, ttl, store) = (token.get(), ttl.as_secs_f64(), &chosen.shown);
        json!({
            "v": 1, "lease": lease.as_str(), "acquired": true, "token": token, "expires_in_s": ttl, "store": store,
        })
        .to_string()
    } else if eval {
        let grant = grant_text(&Bearer::from(granted));
        format!(
            "export LEASEHOLD_LEASE={lease}\nexport LEASEHOLD_TOKEN={token}\nexport LEASEHOLD_GRANT={grant}"
        )
    } else {
        token.to_string()
    };
    if out::as_is(&text) {
        return Ok(());
    }
    Err(say::token_unprinted(lease, token, give_back(granted, chosen)))
}

/// Releases a lease that nobody can use, and says whether it could.
fn give_back(granted: &Granted, chosen: &Chosen) -> String {
    match released(granted, chosen) {
        true => say::given_back(),
        false => say::not_given_back(HumanDuration(left(granted))),
    }
}

/// Releases a lease. Whether it is not ours any more.
pub fn released(granted: &Granted, chosen: &Chosen) -> bool {
    let verb = OneShotVerb::Release(granted.grant);
    let released = config::open(chosen, Missing::Refuse)
        .map(|mut store| manual::one_shot(verb, &granted.lease, store.as_mut()));
    matches!(released, Ok(OneShotOutcome::Done { .. } | OneShotOutcome::NotOurs(_) | OneShotOutcome::Idle(_)))
}

/// A claim by hand, decided.
pub enum ManualClaim {
    /// Ours, and remembered; with the store it is on.
    Granted(Granted, Chosen),
    /// Somebody else's.
    Busy(Busy),
}

/// Acquires, and keeps the grant for `renew` and `release`.
pub fn take(
    ask: &AcquireRequest,
    opened: OpenedStore,
    signals: Signals,
    out: &Out,
) -> Result<ManualClaim, Failed> {
    let OpenedStore { chosen, store, memory, state, .. } = opened;
    let outcome = leasehold_run::manual::acquire(ask, store, memory.clone(), signals).map_err(system)?;
    let answered = leasehold::clock::boot_time();
    match outcome {
        Outcome::Granted(granted) => {
            keep(&state, &granted, &chosen)?;
            warn_unremembered(&memory, &chosen, out);
            // This process may have been paused since: then the lease is not ours to hand out.
            if leasehold::clock::boot_time().since(answered) >= granted.ttl {
                give_back(&granted, &chosen);
                return Err(say::lost_at_once(&ask.lease));
            }
            Ok(ManualClaim::Granted(granted, chosen))
        }
        Outcome::Busy(busy) => Ok(ManualClaim::Busy(busy)),
        Outcome::NotStarted(why) => Err(not_started(&why, &chosen, &ask.lease, LeasePurpose::Take)),
        // A session by hand ends with the grant.
        Outcome::Finished { .. } | Outcome::Lost { .. } => Err(say::lost_at_once(&ask.lease)),
    }
}

/// From now on a signal ends the waiting, and not this process.
pub fn signals() -> Result<Signals, Failed> {
    Signals::install().map_err(system)
}

fn keep(state: &StateDir, granted: &Granted, chosen: &Chosen) -> Result<(), Failed> {
    let store = &chosen.shown;
    let Granted { token, epoch, grant, .. } = *granted;
    let path = state.grant_file(&granted.lease);
    let mut kept = kept(&path);
    // Another process of this user may have taken the lease after us and been faster with its note.
    if kept.stores.get(store).is_some_and(|other| other.epoch == epoch && other.token > token) {
        return Ok(());
    }
    kept.stores.insert(store.clone(), KeptGrant { token, epoch, grant });
    let bytes = serde_json::to_vec(&kept).unwrap_or_default();
    write_private(&path, &bytes).map_err(|e| {
        let kind = if is_denial(&e) { FailKind::Denied } else { FailKind::Config };
        let end = give_back(granted, chosen);
        Failed::new(kind, "state", say::unkept(&granted.lease, token, path.display(), e, end))
    })
}

fn kept(path: &Path) -> KeptGrants {
    let bytes = read_private(path).ok().flatten();
    bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

/// `leasehold renew NAME`
pub fn renew(flags: &Everywhere, args: &ManualArgs, out: &Out) -> Result<u8, Failed> {
    if let Some(run) = supervised(flags, args) {
        let (lease, token) = (&run.lease, run.token);
        if out.json {
            let outcome = "renewed_by_run";
            out.object(&json!({"v": 1, "lease": lease.as_str(), "outcome": outcome, "token": token.get()}));
        }
        out.note(&say::renewed_by_run(lease, token));
        return Ok(exit::OK);
    }
    let (lease, mut opened) = begin(flags, args)?;
    let grant = grant(&lease, args, &opened)?;
    let outcome = manual::one_shot(OneShotVerb::Renew(grant), &lease, opened.store.as_mut());
    match outcome {
        OneShotOutcome::Done { record, .. } => {
            let ttl = record.hold.as_ref().map(|h| h.ttl).unwrap_or_default();
            if out.json {
                out.object(&json!({
                    "v": 1, "lease": lease.as_str(), "outcome": "renewed", "token": record.token.get(),
                    "expires_in_s": ttl.as_secs_f64(),
                }));
            }
            out.note(&say::renewed(&lease, record.token, HumanDuration(ttl)));
            Ok(exit::OK)
        }
        OneShotOutcome::Revoked(record) => Err(say::broken(&lease, record.token)),
        OneShotOutcome::NotOurs(found) | OneShotOutcome::Idle(found) => {
            Err(say::lost(&lease, describe(&found)))
        }
        OneShotOutcome::Bad(bad) => Err(bad_record(&lease, &bad, &opened.chosen.shown)),
        OneShotOutcome::Failed { failure, sent } => Err(unconfirmed(&failure, sent, &lease, &opened.chosen)),
    }
}

/// `leasehold release NAME`
pub fn release(flags: &Everywhere, args: &ManualArgs, out: &Out) -> Result<u8, Failed> {
    if let Some(run) = supervised(flags, args) {
        return Err(say::runs(&run.lease));
    }
    let (lease, mut opened) = begin(flags, args)?;
    let grant = grant(&lease, args, &opened)?;
    // The wrapper of the run has ended, or is not an ancestor of this process.
    let of_a_run = supervisor().is_some_and(|(_, its)| its == grant);
    if of_a_run && holds(&lease, grant, &mut opened)? {
        return Err(say::runs(&lease));
    }
    match manual::one_shot(OneShotVerb::Release(grant), &lease, opened.store.as_mut()) {
        OneShotOutcome::Done { record, late } => {
            if let Some(log) = manual::released(&record, grant) {
                opened.log.write(opened.store.as_mut(), &log);
            }
            let text = if late { say::released_late } else { say::released };
            tell(out, &lease, "released", &text(&lease, record.token));
            Ok(exit::OK)
        }
        // Released twice, or after it expired or was taken over: that is no error.
        OneShotOutcome::NotOurs(found) | OneShotOutcome::Idle(found) => {
            tell(out, &lease, "already_released", &say::already_released(&lease, describe(&found)));
            Ok(exit::OK)
        }
        OneShotOutcome::Revoked(_) => Ok(exit::OK),
        OneShotOutcome::Bad(bad) => Err(bad_record(&lease, &bad, &opened.chosen.shown)),
        OneShotOutcome::Failed { failure, sent } => Err(unconfirmed(&failure, sent, &lease, &opened.chosen)),
    }
}

/// Whether the record names this grant as the holder, however old the record is.
pub fn holds(lease: &Name, grant: Grant, opened: &mut OpenedStore) -> Result<bool, Failed> {
    let stored = pollster::block_on(opened.store.read(&lease_key(lease)));
    let Some(stored) = stored.map_err(|failure| store_failed(&failure, &opened.chosen))? else {
        return Ok(false);
    };
    let record = LeaseRecord::decode(lease, &stored.body);
    record.map(|record| record.held_by(grant)).map_err(|bad| bad_record(lease, &bad, &opened.chosen.shown))
}

fn tell(out: &Out, lease: &Name, word: &str, text: &str) {
    if out.json {
        out.object(&json!({"v": 1, "lease": lease.as_str(), "outcome": word}));
    }
    out.note(text);
}

/// The run that holds the lease, if this process is a part of that run and its wrapper still renews the lease. Then the
/// store need not be asked: a job does not have its password.
fn supervised(flags: &Everywhere, args: &ManualArgs) -> Option<Enclosing> {
    let run = Enclosing::from_env(|name| std::env::var(name).ok())?;
    let asked = run.lease.as_str() == args.name && args.token.is_none_or(|token| token == run.token);
    let (pid, grant) = supervisor()?;
    let ours = asked && grant == run.grant && is_above_us(pid);
    (ours && !is_elsewhere(flags, args, &run)).then_some(run)
}

/// Whether the arguments mean a lease of the same name on another store than the run's: `--store` names that store, or the
/// token was taken there by hand. Without its password a store cannot always be named: then the run's store is meant.
fn is_elsewhere(flags: &Everywhere, args: &ManualArgs, run: &Enclosing) -> bool {
    let Ok(state) = config::state_dir() else { return false };
    let Ok(Chosen { shown, .. }) = config::choose(flags, &state) else { return false };
    let by_hand = || {
        let kept = kept(&state.grant_file(&run.lease));
        kept.stores.get(&shown).is_some_and(|kept| args.token == Some(kept.token))
    };
    !is_on_the_runs_store(&shown) && (flags.store.is_some() || by_hand())
}

/// The process that renews the lease of the run around this process, and the grant that it renews.
pub fn supervisor() -> Option<(i32, Grant)> {
    std::env::var(SUPERVISOR).ok().and_then(|text| parse_supervisor_text(&text))
}

fn begin(flags: &Everywhere, args: &ManualArgs) -> Result<(Name, OpenedStore), Failed> {
    let lease = super::name(&args.name)?;
    let opened = super::open(flags, std::slice::from_ref(&lease))?;
    Ok((lease, opened))
}

/// The grant that goes with the token: from the run we are in, or kept by `acquire`.
fn grant(lease: &Name, args: &ManualArgs, opened: &OpenedStore) -> Result<Grant, Failed> {
    let env = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let enclosing = Enclosing::from_env(env).filter(|run| run.lease == *lease);
    // Nor is a run's grant on another store the right one.
    let enclosing = enclosing.filter(|_| is_on_the_runs_store(&opened.chosen.shown));
    // A token belongs to one lease.
    let other = env("LEASEHOLD_LEASE").filter(|of| of != lease.as_str());
    let token = match (args.token, env("LEASEHOLD_TOKEN"), other) {
        (Some(token), ..) => token,
        (None, Some(_), Some(other)) => return Err(say::another_leases_token(lease, other)),
        (None, Some(text), None) => token(&text).map_err(say::bad_token)?,
        (None, None, _) => return Err(say::no_token(lease)),
    };
    if let Some(run) = enclosing.filter(|run| run.token == token) {
        return Ok(run.grant);
    }
    let store = &opened.chosen.shown;
    match kept(&opened.state.grant_file(lease)).stores.get(store) {
        Some(kept) if kept.token == token => Ok(kept.grant),
        // The lease was taken again since, so this token is lost. With a
        // random grant the store answers who holds the lease.
        Some(kept) if kept.token > token => Ok(Grant(random::seed())),
        Some(kept) => Err(say::token_not_taken(token, lease, kept.token, store)),
        None => Err(say::never_taken(lease, store)),
    }
}
