//! One target on one server, with a way behind its back.

use std::time::Duration;

use leasehold::core::fence::{Bearer, FenceMode, RefusalReason};
use leasehold::core::ids::{Epoch, Grant, Token};
use leasehold::core::name::Name;
use leasehold::targets::{Content, Target, TargetError, Written};
use leasehold_testkit::proxy::Proxy;

pub const LEASE: &str = "site";
pub const EACH: Duration = Duration::from_secs(20);
pub const ALL: Duration = Duration::from_secs(60);

/// Everything the tests need to know of one kind of target. Each value is one fresh target.
pub trait Site: Sync {
    fn name(&self) -> &'static str;
    /// Where its server is.
    fn server(&self) -> String;
    /// A proxy in front of that server.
    fn proxy(&self) -> Proxy {
        Proxy::http(&self.server())
    }
    /// A handle on it, by way of that server or a proxy.
    fn open_with(&self, server: &str, each: Duration, all: Duration) -> Box<dyn Target>;
    /// What only the request contains that replaces the fence.
    fn swap_mark(&self) -> &'static [u8];
    /// The fence as it is stored.
    fn fence(&self) -> Option<Vec<u8>>;
    /// Replaces it, or takes it away.
    fn set_fence(&self, bytes: Option<&[u8]>);
    /// What somebody sees who knows nothing of fences, or only how to follow a pointer.
    fn content(&self) -> Option<Vec<u8>>;

    fn open(&self) -> Box<dyn Target> {
        self.open_at(&self.server())
    }
    fn open_at(&self, server: &str) -> Box<dyn Target> {
        self.open_with(server, EACH, ALL)
    }
    fn text(&self) -> Option<String> {
        self.content().map(|bytes| String::from_utf8(bytes).unwrap())
    }
}

/// Makes a fresh target.
pub type Maker<'a> = &'a dyn Fn() -> Box<dyn Site>;

pub fn bearer(token: u64) -> Bearer {
    Bearer {
        lease: Name::new(LEASE).unwrap(),
        epoch: Epoch::first(7),
        token: Token::new(token).unwrap(),
        grant: Grant(u128::from(token) * 1_000 + 1),
    }
}

pub fn seal(target: &mut dyn Target, token: u64) {
    target.seal(&bearer(token), FenceMode::Enforce).unwrap_or_else(|e| panic!("{e}"));
}

pub fn write(target: &mut dyn Target, token: u64, text: &str) -> Result<Written, TargetError> {
    target.write(&bearer(token), None, Content::Bytes(text.as_bytes()))
}

/// Token and number of writes that the target remembers.
pub fn at(target: &mut dyn Target) -> (u64, u64) {
    let record = target.show().unwrap_or_else(|e| panic!("{e}")).expect("a fence");
    (record.fence.token.get(), record.fence.seq)
}

/// It must be the refusal of 33 that names 33 and 34.
pub fn assert_stale(error: &TargetError) {
    let TargetError::Refused(refused) = error else { panic!("{error}") };
    assert_eq!(refused.reason, RefusalReason::Stale);
    assert_eq!((refused.token.get(), refused.sealed().map(Token::get)), (33, Some(34)));
    let said = error.to_string();
    assert!(said.contains("token 33 is older than 34, which"), "{said}");
}
