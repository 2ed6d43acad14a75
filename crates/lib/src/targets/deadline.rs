//! Shared by targets on servers: a time limit for each call, and for all calls of one verb.
//!
//! Calls block, so they must not be made inside an async runtime: [`crate::run_fences`] has a thread for them.

use std::fmt;
use std::io::{Read, Write};
use std::time::Duration;

use leasehold_core::fence::{Bearer, Fence, FenceMode};
use leasehold_core::fence_record::FenceRecord;
use leasehold_core::store::{Failure, FailureKind};
use leasehold_core::time::BootTime;

use super::cas_fence::{self, CasFence, Exam};
use super::{Class, Content, Sealed, Target, TargetError, Written};
use crate::backends::file::digest;
use crate::backends::remote::Remote;
use crate::clock::boot_time;

/// How long one call may take, and all calls of one verb together. The lease is held meanwhile.
const EACH: Duration = Duration::from_secs(10);
const ALL: Duration = Duration::from_secs(30);
/// Additional time for each mebibyte.
const PER_MEBIBYTE: Duration = Duration::from_secs(1);

/// Calls to the server of a target, with time limits.
pub(crate) struct Calls<S> {
    remote: Remote<S>,
    each: Duration,
    all: Duration,
    until: BootTime,
}

impl<S> Calls<S> {
    /// Reaches nothing yet.
    pub fn new(server: S) -> Self {
        Self { remote: Remote::new(server), each: EACH, all: ALL, until: BootTime(Duration::ZERO) }
    }

    /// Waits this long for one call, and for all calls of one verb.
    #[cfg(feature = "conformance")]
    pub fn limit(&mut self, each: Duration, all: Duration) {
        (self.each, self.all) = (each, all);
    }

    /// Starts the time of a verb that transfers this many bytes.
    pub fn begin(&mut self, bytes: usize) {
        self.until = BootTime(boot_time().0 + self.all + more(bytes));
    }

    /// Makes one call that transfers this many bytes.
    pub fn call<T>(
        &mut self,
        bytes: usize,
        work: impl AsyncFnOnce(&mut S) -> T,
        gave_up: impl FnOnce(Failure) -> T,
    ) -> T {
        let left = self.until.0.saturating_sub(boot_time().0);
        if left.is_zero() {
            let message = "the server did not answer in time";
            return gave_up(Failure::new(FailureKind::Unreachable, message));
        }
        self.remote.drive(left.min(self.each + more(bytes)), work, gave_up)
    }
}

fn more(bytes: usize) -> Duration {
    let mebibytes = u32::try_from(bytes >> 20).unwrap_or(u32::MAX);
    PER_MEBIBYTE.saturating_mul(mebibytes)
}

/// The server of a target.
pub(crate) struct Server<C> {
    /// Calls to it.
    pub calls: Calls<C>,
    /// The target, as people may see it.
    pub shown: String,
    /// The name of the server, equal for all targets on it.
    pub name: String,
}

impl<C> Server<C> {
    /// Reaches nothing yet.
    pub fn new(connection: C, shown: String, name: String) -> Self {
        Self { calls: Calls::new(connection), shown, name }
    }

    /// It failed, or could not be reached.
    pub fn failed(&self, doing: &'static str, failure: Failure) -> TargetError {
        TargetError::Remote { target: self.shown.clone(), doing, failure }
    }
}

impl<C> fmt::Debug for Server<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Server").field(&self.shown).finish()
    }
}

/// A target on a server that replaces fence and content in one step.
pub(crate) trait Networked: CasFence<Content = [u8]> + fmt::Debug + Send {
    /// The kind of target, in a word.
    const KIND: &'static str;
    /// The largest content, which is kept in memory while it is written.
    const MOST: usize;

    /// The name of its server.
    fn server_name(&self) -> &str;

    /// Starts the time of a verb that transfers this many bytes.
    fn begin(&mut self, bytes: usize);

    /// Reads the whole content.
    fn fetch(&mut self) -> Result<Vec<u8>, TargetError>;
}

impl<T: Networked> Target for T {
    fn shown(&self) -> &str {
        CasFence::shown(self)
    }

    fn class(&self) -> Class {
        Class::Atomic
    }

    fn seal(&mut self, bearer: &Bearer, mode: FenceMode) -> Result<Sealed, TargetError> {
        self.begin(0);
        cas_fence::seal(self, bearer, mode, Exam::Spared)
    }

    fn server(&mut self) -> Result<Option<String>, TargetError> {
        Ok(Some(self.server_name().into()))
    }

    fn seal_examined(&mut self, bearer: &Bearer, mode: FenceMode) -> Result<Sealed, TargetError> {
        self.begin(0);
        cas_fence::seal(self, bearer, mode, Exam::Wanted)
    }

    fn examine(&mut self) -> Result<(), TargetError> {
        self.begin(0);
        cas_fence::examine(self)
    }

    fn write(
        &mut self,
        bearer: &Bearer,
        seq: Option<u64>,
        content: Content<'_>,
    ) -> Result<Written, TargetError> {
        let bytes = whole(CasFence::shown(self), T::KIND, T::MOST, content)?;
        self.begin(bytes.len());
        cas_fence::write(self, bearer, seq, &digest(&bytes), &bytes)
    }

    fn show(&mut self) -> Result<Option<FenceRecord>, TargetError> {
        self.begin(0);
        Ok(self.load()?.map(|(record, _)| record).filter(|record| !record.forgotten))
    }

    fn set_mode(&mut self, mode: FenceMode) -> Result<(), TargetError> {
        self.begin(0);
        cas_fence::set_mode(self, mode)
    }

    fn forget(&mut self) -> Result<Option<Fence>, TargetError> {
        self.begin(0);
        cas_fence::forget(self)
    }

    fn read(&mut self, to: &mut dyn Write) -> Result<(), TargetError> {
        self.begin(T::MOST);
        let bytes = self.fetch()?;
        to.write_all(&bytes).map_err(|source| TargetError::Io {
            target: CasFence::shown(self).into(),
            doing: "write out the content of",
            source,
        })
    }
}

/// All of the content, if it is not more than `most` bytes.
fn whole(target: &str, kind: &str, most: usize, content: Content<'_>) -> Result<Vec<u8>, TargetError> {
    let unfit = |why: String, fix: &str| TargetError::Unfit { target: target.into(), why, fix: fix.into() };
    let bytes = match content {
        Content::Bytes(bytes) => bytes.to_vec(),
        Content::Stream(stream) => {
            let mut bytes = Vec::new();
            let limit = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
            stream.take(limit).read_to_end(&mut bytes).map_err(|source| TargetError::Io {
                target: target.into(),
                doing: "read the input for",
                source,
            })?;
            bytes
        }
        Content::Directory(_) => {
            return Err(unfit(
                format!("is one {kind}, but a directory was given"),
                "Give it a file, or pack the directory into one",
            ));
        }
    };
    if bytes.len() > most {
        let why = format!("takes at most {}", size(most));
        return Err(unfit(why, "Write less; or store the content elsewhere, and write its address here"));
    }
    Ok(bytes)
}

fn size(bytes: usize) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{bytes} bytes") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_large_is_refused_before_it_is_read_to_its_end() {
        let mut endless = std::io::repeat(b'x');
        let error = whole("s3://b/k", "object", 10, Content::Stream(&mut endless)).unwrap_err();
        let said = error.to_string();
        assert!(said.contains("takes at most 10 bytes") && said.contains("Nothing was written"), "{said}");
        assert_eq!(whole("t", "object", 3, Content::Bytes(b"abc")).unwrap(), b"abc");
        assert_eq!((size(64 << 20), size(1_000_000)), ("64 MiB".into(), "1000000 bytes".into()));
    }
}
