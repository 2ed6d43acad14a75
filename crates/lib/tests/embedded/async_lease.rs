//! The async API: busy is a value, loss cancels the work, `token()` fails after expiry, drop releases.

use std::future::{pending, poll_fn};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use leasehold::backends::memory::MemoryStore;
use leasehold::core::ids::WriteId;
use leasehold::core::name::Name;
use leasehold::core::one_shot::{OneShotOutcome, OneShotVerb};
use leasehold::core::session::{Release, StopReason};
use leasehold::run_log::{Scope, Window, newest};
use leasehold::stores::{Cas, Failure, FailureKind, Listed, Store, StoreFacts, Stored, Version};
use leasehold::{Acquired, Error, Lease, Leases, manual};
use pollster::block_on;

/// Long enough that a busy machine cannot cost a lease that the test wants kept.
const TTL: Duration = Duration::from_secs(4);

fn leases(store: &MemoryStore) -> Leases {
    let store = store.clone();
    Leases::on(move || Ok(Box::new(store.clone())))
}

fn acquire(leases: &Leases) -> Lease {
    block_on(leases.lease("site").ttl(TTL).acquire()).unwrap().lease().expect("free")
}

#[test]
fn busy_is_a_value_and_says_who() {
    let leases = leases(&MemoryStore::new().unwrap());
    let held = acquire(&leases);
    match block_on(leases.lease("site").ttl(TTL).job("other").acquire()).unwrap() {
        Acquired::Busy(busy) => assert_eq!(busy.token, held.token().unwrap()),
        Acquired::Lease(_) => panic!("two holders"),
    }
    assert_eq!(block_on(held.release()), Release::Done);
    assert_eq!(acquire(&leases).token().unwrap().get(), 2);
}

#[test]
fn work_is_done_under_the_lease_and_the_lease_given_back() {
    let leases = leases(&MemoryStore::new().unwrap());
    let lease = acquire(&leases);
    let token = block_on(lease.run(async |held| held.token().unwrap().get())).unwrap();
    assert_eq!(token, 1);
    assert_eq!(acquire(&leases).token().unwrap().get(), 2, "released, so free at once");
}

#[test]
fn a_lease_outlives_its_ttl_because_it_is_renewed() {
    let leases = leases(&MemoryStore::new().unwrap());
    let lease = acquire(&leases);
    let end = leasehold::clock::boot_time().plus(TTL + TTL / 4);
    let spin = poll_fn(move |cx| {
        if leasehold::clock::boot_time() >= end {
            return Poll::Ready(());
        }
        // A caller that never yields to timers: the renewal has a thread of its own.
        std::thread::park_timeout(Duration::from_millis(5));
        cx.waker().wake_by_ref();
        Poll::Pending
    });
    block_on(lease.run(|held| async move {
        spin.await;
        held.token().unwrap()
    }))
    .unwrap();
}

#[test]
fn a_lease_asked_back_cancels_the_work() {
    let store = MemoryStore::new().unwrap();
    let leases = leases(&store);
    let lease = acquire(&leases);
    let dropped = Arc::new(AtomicBool::new(false));
    let guard = OnDrop(dropped.clone());
    let mut hand = store.clone();
    let asked = manual::one_shot(OneShotVerb::Revoke, &Name::new("site").unwrap(), &mut hand);
    assert!(matches!(asked, OneShotOutcome::Done { .. }), "{asked:?}");
    let result = block_on(lease.run(|_held| async move {
        let _guard = guard;
        pending::<()>().await;
    }));
    assert!(matches!(&result, Err(Error::Lost(lost)) if *lost.why == StopReason::Revoked), "{result:?}");
    assert!(dropped.load(Ordering::SeqCst), "the work was dropped");
    let next = block_on(leases.lease("site").ttl(TTL).wait(Duration::from_secs(20)).acquire()).unwrap();
    assert_eq!(next.lease().expect("given back").granted().token.get(), 2);
}

struct OnDrop(Arc<AtomicBool>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_silent_store_costs_the_lease_in_time() {
    let store = Switched::new(Trouble::Refuse);
    let (opened, down) = (store.clone(), store.down.clone());
    let leases = Leases::on(move || Ok(Box::new(opened.clone())));
    let lease = acquire(&leases);
    let began = leasehold::clock::boot_time();
    *down.lock().unwrap() = true;
    let result = block_on(lease.run(async |_| pending::<()>().await));
    let lasted = leasehold::clock::boot_time().since(began);
    assert!(matches!(&result, Err(Error::Lost(lost)) if *lost.why == StopReason::Deadline), "{result:?}");
    assert!(lasted < TTL, "stopped after {lasted:?}, before the lease could be granted again");
}

#[test]
fn a_token_is_not_handed_out_after_the_deadline() {
    let store = Switched::new(Trouble::Refuse);
    let (opened, down) = (store.clone(), store.down.clone());
    let leases = Leases::on(move || Ok(Box::new(opened.clone())));
    let lease = acquire(&leases);
    lease.token().unwrap();
    *down.lock().unwrap() = true;
    let end = leasehold::clock::boot_time().plus(TTL);
    while lease.token().is_ok() {
        assert!(leasehold::clock::boot_time() < end, "still handed out after a whole TTL of silence");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

#[test]
fn a_dropped_lease_is_given_back() {
    let leases = leases(&MemoryStore::new().unwrap());
    drop(acquire(&leases));
    let again = block_on(leases.lease("site").ttl(TTL).wait(Duration::from_secs(20)).acquire()).unwrap();
    assert_eq!(again.lease().expect("given back").granted().token.get(), 2);
}

#[test]
fn that_it_was_held_is_kept_unless_it_is_not_to_be() {
    let store = MemoryStore::new().unwrap();
    let leases = leases(&store);
    let past = || {
        let all = newest(&mut store.clone(), Scope::All, Window::all(), 9, |_| true).unwrap().0;
        all.into_iter().map(|entry| (entry.line.word, entry.line.token.unwrap().get())).collect::<Vec<_>>()
    };
    assert_eq!(block_on(acquire(&leases).release()), Release::Done);
    assert_eq!(past(), [("released".to_owned(), 1)]);
    let quiet = block_on(leases.lease("site").ttl(TTL).no_history().acquire()).unwrap();
    assert_eq!(block_on(quiet.lease().unwrap().release()), Release::Done);
    assert_eq!(past().len(), 1, "{:?}", past());
    // The control.
    assert_eq!(block_on(acquire(&leases).release()), Release::Done);
    assert_eq!(past().len(), 2, "{:?}", past());
}

#[test]
fn one_memory_is_one_store() {
    let leases = leasehold::open("memory:").unwrap();
    let held = acquire(&leases);
    let second = block_on(leases.lease("site").ttl(TTL).acquire()).unwrap();
    assert!(matches!(second, Acquired::Busy(_)), "two holders in one memory");
    drop(held);
}

#[test]
fn releasing_what_was_taken_over_is_answered_while_a_handle_lives() {
    let store = MemoryStore::new().unwrap();
    let leases = leases(&store);
    let lease = acquire(&leases);
    let name = Name::new("site").unwrap();
    let grant = lease.granted().grant;
    let gone = manual::one_shot(OneShotVerb::Release(grant), &name, &mut store.clone());
    assert!(matches!(gone, OneShotOutcome::Done { .. }), "{gone:?}");
    let _other = acquire(&leases);
    assert_eq!(block_on(lease.release()), Release::AlreadyGone);
}

#[test]
fn a_store_that_hangs_does_not_keep_a_release_waiting() {
    let store = Switched::new(Trouble::Hang);
    let (opened, down) = (store.clone(), store.down.clone());
    let leases = Leases::on(move || Ok(Box::new(opened.clone())));
    let lease = acquire(&leases);
    *down.lock().unwrap() = true;
    assert_eq!(block_on(lease.release()), Release::Unconfirmed);
    *down.lock().unwrap() = false;
}

#[test]
fn bad_names_and_timing_are_errors_before_anything_happens() {
    let leases = leases(&MemoryStore::new().unwrap());
    let bad = [leases.lease("Gemi Lab"), leases.lease("a").job("B"), leases.lease("a").ttl(Duration::ZERO)];
    for ask in bad {
        assert!(matches!(block_on(ask.acquire()), Err(Error::Invalid(_))));
    }
    assert!(leasehold::open("sqllite:/x").is_err());
}

/// What a store does when it is down.
#[derive(Clone, Copy, PartialEq)]
enum Trouble {
    Refuse,
    Hang,
}

/// A memory store that can be made to stop answering.
#[derive(Clone)]
struct Switched {
    inner: MemoryStore,
    down: Arc<Mutex<bool>>,
    trouble: Trouble,
}

impl Switched {
    fn new(trouble: Trouble) -> Self {
        Self { inner: MemoryStore::new().unwrap(), down: Arc::default(), trouble }
    }

    fn up(&self) -> Result<(), Failure> {
        while self.trouble == Trouble::Hang && *self.down.lock().unwrap() {
            std::thread::yield_now();
        }
        let failure = Failure::new(FailureKind::Unreachable, "unplugged");
        if *self.down.lock().unwrap() { Err(failure) } else { Ok(()) }
    }
}

#[async_trait::async_trait(?Send)]
impl Store for Switched {
    fn facts(&self) -> StoreFacts {
        // As a store far away: its calls are made on a thread.
        StoreFacts { this_machine_only: false, ..self.inner.facts() }
    }
    async fn read(&mut self, key: &str) -> Result<Option<Stored>, Failure> {
        self.up()?;
        self.inner.read(key).await
    }
    async fn cas(&mut self, key: &str, expected: Option<&Version>, write: WriteId, body: &[u8]) -> Cas {
        match self.up() {
            Ok(()) => self.inner.cas(key, expected, write, body).await,
            Err(failure) => Cas::Unknown(failure),
        }
    }
    async fn list(&mut self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Failure> {
        self.inner.list(prefix, after, limit).await
    }
    async fn remove(&mut self, key: &str, version: &Version) -> Cas {
        self.inner.remove(key, version).await
    }
}
