//! The production session under a model checker: every interleaving of a few clients, a store whose
//! replies get lost and whose requests land late, and a fenced target.
//!
//! There is no action for a pause: a client may take no step while time and the others go on.
//! Three clients, one lost answer and one crash; with `LEASEHOLD_LONG=1` also four clients, and more lost
//! answers. The simulator checks the timing (P3).

mod item;
mod state;

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold_core::forgotten::Forgotten;
use leasehold_core::ids::{Token, WriteId};
use leasehold_core::name::Name;
use leasehold_core::record::LeaseRecord;
use leasehold_core::rules::{Claim, ClaimDecision, Rules, SeenToken, Standard, View, granted};
use stateright::{Checker, HasDiscoveries, Model, Property};

use state::{Act, Flaw, Sights, State};

/// The bounds of the model, its rules, and the flaw outside of the rules, if any.
#[derive(Clone)]
pub(crate) struct Leases<R: Rules> {
    pub(crate) rules: R,
    pub(crate) flaw: Flaw,
    pub(crate) clients: usize,
    pub(crate) ticks: u64,
    pub(crate) lost: u8,
    pub(crate) crashes: u8,
    /// How many of the clients, from the first, lose answers.
    pub(crate) fragile: usize,
    /// How many write to the target once; the others only contend and seal.
    pub(crate) writers: usize,
    /// How often the lease is forgotten. The clients share what their host has seen.
    pub(crate) forgets: u8,
    /// All of them try to do one item, once, and nothing else.
    pub(crate) item: bool,
    pub(crate) sights: Arc<Sights>,
}

impl<R: Rules + Send + Sync + 'static> Model for Leases<R> {
    type State = State<R>;
    type Action = Act;

    fn init_states(&self) -> Vec<State<R>> {
        vec![State::new(self)]
    }

    fn actions(&self, state: &State<R>, actions: &mut Vec<Act>) {
        state.actions(self, actions);
    }

    fn next_state(&self, last: &State<R>, action: Act) -> Option<State<R>> {
        let mut next = last.clone();
        next.act(self, action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("P1: one token, one grant", |_, s: &State<R>| !s.ghost.two_grants),
            Property::always("P1: tokens only grow", |_, s: &State<R>| !s.ghost.token_back),
            Property::always("P2: no stale write", |_, s: &State<R>| !s.ghost.stale_write),
            Property::always("only the holder releases", |_, s: &State<R>| !s.ghost.foreign_release),
            Property::always("no release while the job lives", |_, s: &State<R>| !s.ghost.early_release),
            Property::always("started is recorded before the command is executed", |_, s: &State<R>| {
                !s.item.executed_unstarted
            }),
            Property::always("an item is executed by one run", |_, s: &State<R>| !s.item.executed_twice),
            Property::always("its end is recorded before the release", |_, s: &State<R>| {
                !s.item.released_first
            }),
            Property::always("nobody is refused for a forgotten name", |_, s: &State<R>| !s.ghost.refused),
            Property::always("no lease is forgotten while it is held", |_, s: &State<R>| {
                !s.ghost.held_removed
            }),
            Property::always("nobody closes another run's item", |_, s: &State<R>| !s.item.foreign_close),
        ]
    }
}

fn standard(clients: usize) -> Leases<Standard> {
    let sights = Arc::default();
    Leases {
        rules: Standard,
        flaw: Flaw::None,
        clients,
        ticks: 3,
        lost: 1,
        fragile: 1,
        crashes: 1,
        writers: 2,
        forgets: 0,
        item: false,
        sights,
    }
}

/// Writes to stdout directly, so that the numbers are shown on success too.
fn report(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
}

/// Explores the whole model. Returns its number of states.
fn explore(model: Leases<Standard>) -> usize {
    let (clients, lost, item, sights) = (model.clients, model.lost, model.item, model.sights.clone());
    let forgets = model.forgets;
    #[allow(clippy::disallowed_methods)] // for the report only
    let began = std::time::Instant::now();
    let checker = model.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    let took = began.elapsed().as_secs_f64();
    report(&format!(
        "model: {clients} clients, {lost} lost answers, {forgets} forgotten, item {item}: {states} unique states in {took:.1} s, depth {depth}"
    ));
    checker.assert_properties();
    let mut seen = vec![&sights.passed_on];
    if forgets > 0 {
        seen.push(&sights.began_again);
    } else if !item {
        seen.push(&sights.refused_stale);
    }
    if lost > 0 {
        seen.extend([&sights.recovered, &sights.landed_late]);
    }
    let missed = seen.iter().filter(|s| !s.load(Ordering::Relaxed)).count();
    assert_eq!(missed, 0, "passed on, stale write refused, lost answer survived, landed late");
    states
}

#[test]
fn every_interleaving_keeps_the_promises() {
    let states = explore(standard(3));
    assert!(states > 1_000_000, "too small a model to mean anything: {states}");
    if std::env::var_os("LEASEHOLD_LONG").is_some() {
        explore(Leases { lost: 0, ..standard(4) });
        explore(Leases { fragile: 2, ..standard(3) });
        explore(Leases { lost: 2, ..standard(3) });
    }
}

/// Two runs that try to do one item.
fn with_item() -> Leases<Standard> {
    Leases { item: true, writers: 0, ..standard(2) }
}

#[test]
fn every_interleaving_does_an_item_once() {
    let states = explore(with_item());
    assert!(states > 5_000, "too small a model to mean anything: {states}");
    if std::env::var_os("LEASEHOLD_LONG").is_some() {
        explore(Leases { clients: 3, ..with_item() });
    }
}

#[test]
fn an_item_that_is_handled_wrongly_is_found() {
    for flaw in [Flaw::StartsFirst, Flaw::RecordsLast, Flaw::ClosesBlind, Flaw::RetriesUnknown] {
        let found = finds(Leases { flaw, ..with_item() });
        report(&format!("model: {flaw:?} breaks {found:?}"));
        assert!(!found.is_empty(), "{flaw:?} was not found");
    }
}

/// Two runs, and a lease that is forgotten between, before or after them.
fn with_forgetting() -> Leases<Standard> {
    Leases { forgets: 2, writers: 1, ..standard(2) }
}

#[test]
fn every_interleaving_of_forgetting_repeats_no_token() {
    let states = explore(with_forgetting());
    assert!(states > 5_000, "too small a model to mean anything: {states}");
    explore(Leases { item: true, writers: 0, ..with_forgetting() });
    if std::env::var_os("LEASEHOLD_LONG").is_some() {
        explore(Leases { clients: 3, ..with_forgetting() });
    }
}

#[test]
fn forgetting_that_is_done_wrongly_is_found() {
    for flaw in [Flaw::ForgetsSilently, Flaw::ForgetsBlind] {
        let found = finds(Leases { flaw, ..with_forgetting() });
        report(&format!("model: {flaw:?} breaks {found:?}"));
        assert!(!found.is_empty(), "{flaw:?} was not found");
    }
    let found = finds(under(with_forgetting(), EpochKept));
    report(&format!("model: an epoch that comes again breaks {found:?}"));
    assert!(!found.is_empty());
    let found = finds(under(with_forgetting(), ForgottenIgnored));
    report(&format!("model: a forgotten-record that is ignored breaks {found:?}"));
    assert!(!found.is_empty());
}

/// The rules with one broken: a lease that was forgotten gets its old epoch again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct EpochKept;

impl Rules for EpochKept {
    fn acquire(&self, view: &View<'_>, claim: &Claim) -> ClaimDecision {
        match view.seen.filter(|_| view.forgotten && view.record.is_none()) {
            Some(seen) => ClaimDecision::Take(granted(claim, seen.epoch, Token::FIRST, view.instance)),
            None => Standard.acquire(view, claim),
        }
    }
}

/// The rules with one broken: what says that a lease was forgotten is ignored.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ForgottenIgnored;

impl Rules for ForgottenIgnored {
    fn is_forgotten(&self, _: &Name, _: SeenToken, _: &[Forgotten]) -> bool {
        false
    }
}

/// The rules with one broken: the token starts again after a release.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct TokenReset;

impl Rules for TokenReset {
    fn release(&self, record: &LeaseRecord, write: WriteId) -> LeaseRecord {
        LeaseRecord { token: Token::FIRST, ..Standard.release(record, write) }
    }
}

/// The same model under other rules.
fn under<R: Rules>(model: Leases<Standard>, rules: R) -> Leases<R> {
    let Leases { flaw, clients, ticks, lost, crashes, fragile, writers, forgets, item, sights, .. } = model;
    Leases { rules, flaw, clients, ticks, lost, crashes, fragile, writers, forgets, item, sights }
}

/// The promise that the model finds broken.
fn finds<R: Rules + Send + Sync + 'static>(model: Leases<R>) -> Vec<&'static str> {
    let properties = model.properties();
    let checker = model
        .checker()
        .finish_when(HasDiscoveries::AnyFailures)
        .timeout(Duration::from_secs(60))
        .spawn_bfs()
        .join();
    let found = checker.discoveries();
    let broken = properties.iter().filter(|p| p.expectation == stateright::Expectation::Always);
    broken.map(|p| p.name).filter(|name| found.contains_key(name)).collect()
}

#[test]
fn broken_rules_are_found() {
    let found = finds(under(standard(3), TokenReset));
    report(&format!("model: a token that starts again breaks {found:?}"));
    assert!(!found.is_empty());
}

#[test]
fn a_broken_store_or_target_is_found() {
    for flaw in
        [Flaw::ConflictIsWin, Flaw::ClaimByPut, Flaw::ReleaseBlind, Flaw::CheckThenWrite, Flaw::NoSeal]
    {
        let found = finds(Leases { flaw, ..standard(3) });
        report(&format!("model: {flaw:?} breaks {found:?}"));
        assert!(!found.is_empty(), "{flaw:?} was not found");
    }
}
