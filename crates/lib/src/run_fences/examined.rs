//! Servers of targets that passed the test of their fences. The notes are kept in the lease's own store, so that a machine
//! that exists for one run need not test again.
//!
//! ```text
//! examined/LEASE/<digest of the server's name>      the age of the record is the age of the test
//! ```
//!
//! The key contains the lease, so that the right to use the lease is the right to write the note.

use std::fmt;
use std::time::Duration;

use leasehold_core::additions::Additions;
use leasehold_core::ids::WriteId;
use leasehold_core::name::Name;
use pollster::block_on;
use serde::{Deserialize, Serialize};

use crate::backends::known_as;
use crate::random;
use crate::stores::{Store, Version};

/// How long a server that passed is not tested again.
const GOOD_FOR: Duration = Duration::from_secs(30 * 24 * 3600);
/// How long the store may take to answer. Without an answer the server is tested again.
const PATIENCE: Duration = Duration::from_secs(5);

/// The format of a note.
const FORMAT: u64 = 1;

/// The note of a server that passed.
#[derive(Serialize, Deserialize)]
struct KeptExam {
    v: u64,
    server: String,
    /// Additions of later versions, carried along unread.
    #[serde(default, skip_serializing_if = "Additions::is_empty")]
    more: Additions,
}

type Open = dyn Fn() -> Option<Box<dyn Store>> + Send;

/// The notes in the lease's store.
#[derive(Default)]
pub(super) struct Examined {
    open: Option<Box<Open>>,
    store: Option<Box<dyn Store>>,
}

impl fmt::Debug for Examined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Examined").finish_non_exhaustive()
    }
}

/// A server that has to be tested, with the key of its note and the version to replace.
pub(super) struct Unasked {
    key: String,
    server: String,
    before: Option<Version>,
    more: Additions,
}

impl Examined {
    /// Notes in this store, which is opened when it is needed.
    pub(super) fn kept_in(open: impl Fn() -> Option<Box<dyn Store>> + Send + 'static) -> Self {
        Self { open: Some(Box::new(open)), store: None }
    }

    /// The server, if it has to be tested; nothing: it passed lately.
    pub(super) fn unasked(&mut self, lease: &Name, server: String) -> Option<Unasked> {
        if let Some(open) = self.open.take() {
            self.store = open();
            if let Some(store) = &mut self.store {
                store.limit_calls(PATIENCE);
            }
        }
        let key = format!("examined/{lease}/{}", known_as(&server));
        let read = self.store.as_mut().and_then(|store| block_on(store.read(&key)).ok());
        let found = read.flatten();
        // A note of a later version in another format does not count.
        let kept = found.as_ref().and_then(|found| serde_json::from_slice::<KeptExam>(&found.body).ok());
        let kept = kept.filter(|kept| kept.v == FORMAT && kept.server == server);
        // Without an age the note may be too old.
        let lately = found.as_ref().and_then(|found| found.age).is_some_and(|age| age < GOOD_FOR);
        if kept.is_some() && lately {
            return None;
        }
        let more = kept.map(|kept| kept.more).unwrap_or_default();
        Some(Unasked { key, server, before: found.map(|found| found.version), more })
    }

    /// Notes that a server passed. Without the note the next run tests it again.
    pub(super) fn did_well(&mut self, asked: &Unasked) {
        let Some(store) = &mut self.store else { return };
        let kept = KeptExam { v: FORMAT, server: asked.server.clone(), more: asked.more.clone() };
        let Ok(body) = serde_json::to_vec(&kept) else { return };
        let write = WriteId(random::seed());
        drop(block_on(store.cas(&asked.key, asked.before.as_ref(), write, &body)));
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::fence::{Bearer, FenceMode};
    use leasehold_core::fence_record::FenceRecord;
    use leasehold_core::ids::{Epoch, Grant, Token};
    use leasehold_core::time::BootTime;
    use leasehold_core::write_policy::Rights;

    use super::super::sealed;
    use super::*;
    use crate::backends::memory::MemoryStore;
    use crate::targets::{Class, Content, Sealed, Target, TargetError, Written};

    /// A target that counts how it is sealed.
    #[derive(Debug, Default)]
    struct Far {
        server: Option<&'static str>,
        lies: bool,
        /// Without an exam, and with one.
        sealed: (u32, u32),
    }

    fn no() -> TargetError {
        TargetError::Unfit { target: "far:".into(), why: "lies".into(), fix: "None".into() }
    }

    impl Target for Far {
        fn shown(&self) -> &str {
            "far:"
        }
        fn class(&self) -> Class {
            Class::Atomic
        }
        fn server(&mut self) -> Result<Option<String>, TargetError> {
            Ok(self.server.map(str::to_owned))
        }
        fn seal(&mut self, _: &Bearer, _: FenceMode) -> Result<Sealed, TargetError> {
            self.sealed.0 += 1;
            Ok(Sealed { let_in: None })
        }
        fn seal_examined(&mut self, _: &Bearer, _: FenceMode) -> Result<Sealed, TargetError> {
            self.sealed.1 += 1;
            if self.lies { Err(no()) } else { Ok(Sealed { let_in: None }) }
        }
        fn write(&mut self, _: &Bearer, _: Option<u64>, _: Content<'_>) -> Result<Written, TargetError> {
            Err(no())
        }
        fn show(&mut self) -> Result<Option<FenceRecord>, TargetError> {
            Err(no())
        }
        fn set_mode(&mut self, _: FenceMode) -> Result<(), TargetError> {
            Err(no())
        }
    }

    fn bearer(lease: &str) -> Bearer {
        let (epoch, token) = (Epoch::first(7), Token::new(1).unwrap());
        Bearer { lease: Name::new(lease).unwrap(), epoch, token, grant: Grant(1) }
    }

    /// Seals it under this lease, as another machine would.
    fn run(far: &mut Far, lease: &str, store: &MemoryStore) -> Result<Sealed, TargetError> {
        let store = store.clone();
        let mut examined = Examined::kept_in(move || Some(Box::new(store.clone())));
        sealed(far, &mut examined, &bearer(lease), FenceMode::Enforce)
    }

    fn keys(store: &MemoryStore) -> Vec<String> {
        let listed = block_on(store.clone().list("", "", 99)).unwrap();
        listed.into_iter().map(|listed| listed.key).collect()
    }

    #[test]
    fn a_server_that_did_well_is_spared_for_thirty_days() {
        let store = MemoryStore::with_manual_clock().unwrap();
        let mut far = Far { server: Some("far"), ..Far::default() };
        run(&mut far, "team-a/site", &store).unwrap();
        run(&mut far, "team-a/site", &store).unwrap();
        assert_eq!(far.sealed, (1, 1));
        store.set_time(BootTime(GOOD_FOR));
        run(&mut far, "team-a/site", &store).unwrap();
        run(&mut far, "team-a/site", &store).unwrap();
        assert_eq!(far.sealed, (2, 2));
        // The note does not count for another server or another lease.
        run(&mut Far { server: Some("farther"), ..Far::default() }, "team-a/site", &store).unwrap();
        run(&mut far, "team-b/site", &store).unwrap();
        assert_eq!((far.sealed, keys(&store).len()), ((2, 3), 3));
        // Only a bearer that may use the lease may write the note.
        let team = |prefix: &str| Rights { prefix: prefix.into(), admin: false };
        let mine = |key: &&String| team("team-a/").place(key).is_some();
        assert_eq!(keys(&store).iter().filter(mine).count(), 2);
        assert!(keys(&store).iter().filter(mine).all(|key| team("team-b/").place(key).is_none()));
    }

    #[test]
    fn what_a_later_version_keeps_is_carried_along_or_tells_nothing() {
        let store = MemoryStore::with_manual_clock().unwrap();
        let mut far = Far { server: Some("far"), ..Far::default() };
        run(&mut far, "site", &store).unwrap();
        let key = &keys(&store)[0];
        let put = |body: &str| {
            let before = block_on(store.clone().read(key)).unwrap().map(|stored| stored.version);
            drop(block_on(store.clone().cas(key, before.as_ref(), WriteId(random::seed()), body.as_bytes())));
        };
        put(r#"{"v":1,"server":"far","more":{"colour":"red"}}"#);
        run(&mut far, "site", &store).unwrap();
        assert_eq!(far.sealed, (1, 1), "spared");
        store.set_time(BootTime(GOOD_FOR));
        run(&mut far, "site", &store).unwrap();
        let body = block_on(store.clone().read(key)).unwrap().unwrap().body;
        assert_eq!(String::from_utf8(body).unwrap(), r#"{"v":1,"server":"far","more":{"colour":"red"}}"#);
        put(r#"{"v":2,"server":"far"}"#);
        run(&mut far, "site", &store).unwrap();
        assert_eq!(far.sealed, (1, 3), "asked again");
    }

    #[test]
    fn a_liar_is_asked_again() {
        let store = MemoryStore::new().unwrap();
        let mut far = Far { server: Some("far"), lies: true, ..Far::default() };
        run(&mut far, "site", &store).unwrap_err();
        run(&mut far, "site", &store).unwrap_err();
        assert_eq!((far.sealed, keys(&store).len()), ((0, 2), 0));
    }

    #[test]
    fn what_lies_on_this_machine_asks_no_store() {
        let mut examined = Examined::kept_in(|| panic!("then it would cost something"));
        let (mut far, bearer) = (Far::default(), bearer("site"));
        sealed(&mut far, &mut examined, &bearer, FenceMode::Enforce).unwrap();
        assert_eq!(far.sealed, (1, 0));
        // Without a store the server is tested all the same.
        far.server = Some("far");
        sealed(&mut far, &mut Examined::kept_in(|| None), &bearer, FenceMode::Enforce).unwrap();
        assert_eq!(far.sealed, (1, 1));
    }
}
