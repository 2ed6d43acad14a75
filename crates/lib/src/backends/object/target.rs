//! One object in a bucket as a target: S3 and compatible servers, Google Cloud Storage, Azure.
//!
//! ```text
//! site/today.json                                        the pointer: the fence, and the current content's name
//! site/today.json.leasehold/00000007.42.3.<sha256>       the content of write 3 of token 42
//! ```
//!
//! The content is written first, under a new name that is never replaced. Then the pointer is replaced, if it is
//! still the one that was read: that put is check and write in one step. Each pointer has a line with a random id,
//! so no two pointers have the same content or ETag. If the fence were in the metadata, equal content would have an
//! equal ETag, and a stale writer's condition would hold.
//!
//! A writer that dies between the two leaves content that no pointer names. It is removed together with content
//! that was replaced long ago ([`payload`]).

mod payload;

use std::time::Duration;

use leasehold_core::fence::Fence;
use leasehold_core::fence_record::{BODY_MAX, BadFence, FenceRecord};
use leasehold_core::ids::WriteId;
use leasehold_core::store::{Cas, Failure, FailureKind, Version};
use object_store::path::Path;

use self::payload::PayloadName;
use super::bucket::{Bucket, ListedObject, PutKind};
use super::config::Provider;
use super::{envelope, shown};
use crate::backends::file::digest;
use crate::random;
use crate::targets::TargetError;
use crate::targets::cas_fence::{self, CasFence, Swap};
use crate::targets::deadline::{Networked, Server};

/// The part of a payload's name between the object's name and the rest.
const FOLDER: &str = ".leasehold/";
/// The longest last part of a name: servers that keep objects as files allow 255 bytes.
const NAME_MAX: usize = 240;
/// The largest content, which is kept in memory while it is written.
pub const LARGEST: usize = 256 << 20;
/// How long replaced content is kept for readers that have read the pointer and not yet the content.
pub const READER_GRACE: Duration = Duration::from_secs(15 * 60);
/// How often an upload without an answer is sent; it has the same bytes and the same name.
const UPLOADS: u32 = 3;
/// How often a reader starts again because the content was replaced.
const READS: u32 = 5;
/// How many pages of names a sweep reads.
const PAGES: usize = 20;
/// The largest number of objects that one write removes; the next write continues.
const SWEEP: usize = 100;

/// An object that only the holder of a lease may replace.
#[derive(Debug)]
pub struct ObjectTarget {
    server: Server<Bucket>,
    pointer: Path,
    /// A version that no object has.
    never: Version,
    /// The folder of the payloads; ends in a slash.
    folder: String,
    /// The ordinal of the payload in the pointer, when it was last read.
    last: u64,
    /// How long to wait before the next put, after one without an answer.
    spacing: Option<Duration>,
    grace: Duration,
    #[cfg(feature = "conformance")]
    sweeps_all: bool,
}

impl ObjectTarget {
    /// The object that `url` names, with the credentials of this process. Contacts nothing.
    pub fn open(provider: Provider, url: &str) -> Result<Self, TargetError> {
        Self::opened(provider, url, None)
    }

    /// As [`ObjectTarget::open`], with the variables given: `AWS_*`, `GOOGLE_*` or `AZURE_*`.
    pub fn with_vars(
        provider: Provider,
        url: &str,
        vars: Vec<(String, String)>,
    ) -> Result<Self, TargetError> {
        Self::opened(provider, url, Some(vars))
    }

    fn opened(
        provider: Provider,
        url: &str,
        vars: Option<Vec<(String, String)>>,
    ) -> Result<Self, TargetError> {
        let unfit = |why: &str, fix: &str| TargetError::Unfit {
            target: shown(url),
            why: why.into(),
            fix: fix.into(),
        };
        let (bucket, name) =
            Bucket::of_object(provider, url, vars).map_err(|why| unfit("cannot be a target", &why))?;
        let last = name.rsplit('/').next().unwrap_or_default();
        if last.len() > NAME_MAX {
            return Err(unfit("has a name too long for the objects beside it", "Use a shorter one"));
        }
        if format!("{name}/").contains(FOLDER) {
            return Err(unfit("is an object that Leasehold keeps beside a target", "Name that target"));
        }
        let pointer =
            Path::parse(&name).map_err(|_| unfit("has a name that is not allowed", "Use another"))?;
        let (shown, name_of_server) = (bucket.config.shown.clone(), bucket.server());
        Ok(Self {
            server: Server::new(bucket, shown, name_of_server),
            pointer,
            never: Version(provider.no_version().into()),
            folder: format!("{name}{FOLDER}"),
            last: 0,
            spacing: None,
            grace: READER_GRACE,
            #[cfg(feature = "conformance")]
            sweeps_all: false,
        })
    }

    /// Waits this long for one call, and for all calls of one verb.
    #[cfg(feature = "conformance")]
    #[must_use]
    pub fn with_patience(mut self, each: Duration, all: Duration) -> Self {
        self.server.calls.limit(each, all);
        self
    }

    /// Keeps replaced content for this time.
    #[cfg(feature = "conformance")]
    #[must_use]
    pub fn with_grace(self, grace: Duration) -> Self {
        Self { grace, ..self }
    }

    /// A defective variant whose sweep also removes the newest witness and the payload before it, for a test that must
    /// notice that.
    #[cfg(feature = "conformance")]
    #[must_use]
    pub fn sweeping_too_much(self) -> Self {
        Self { sweeps_all: true, ..self }
    }

    fn bad_fence(&self, why: &str) -> TargetError {
        let fence = format!("the object {}", self.pointer);
        TargetError::BadFence { target: self.server.shown.clone(), fence, why: why.into() }
    }

    fn unfit(&self, why: &str, fix: &str) -> TargetError {
        TargetError::Unfit { target: self.server.shown.clone(), why: why.into(), fix: fix.into() }
    }

    fn path(&self, payload: &str) -> Result<Path, TargetError> {
        let name = format!("{}{payload}", self.folder);
        Path::parse(name)
            .map_err(|_| self.bad_fence("the fence names a payload with a name that is not allowed"))
    }

    fn seen(&mut self, pages: usize) -> Result<Vec<ListedObject>, Failure> {
        let folder = self.folder.clone();
        self.server.calls.call(0, async |bucket| bucket.seen_in(&folder, pages).await, Err)
    }

    /// The highest ordinal of all payloads, for a pointer that names none: somebody may have removed a pointer, and
    /// ordinals never go back. All pages are read, because the highest ones come last.
    fn highest(&mut self) -> Result<u64, TargetError> {
        let seen = self.seen(usize::MAX).map_err(|f| self.server.failed("look at the payloads of", f))?;
        let names = seen.iter().filter_map(|object| object.name.strip_prefix(&self.folder));
        Ok(names.filter_map(PayloadName::parse).map(|payload| payload.ordinal).max().unwrap_or(0))
    }

    /// Reads the pointer.
    fn decode(&self, bytes: Option<&[u8]>, html: bool) -> Result<FenceRecord, TargetError> {
        if html {
            return Err(self.unfit(
                "was answered with a web page, by a proxy or another service",
                "Check the endpoint and any proxy in between",
            ));
        }
        let bad = |bad: BadFence| self.bad_fence(&bad.to_string());
        let bytes = bytes.unwrap_or(b"too large to be a pointer");
        let envelope::ObjectContent::Record(body) = envelope::open(bytes) else {
            let cut = bytes.is_empty() || bytes.starts_with(b"leasehold ");
            return Err(if cut {
                bad(FenceRecord::decode(b"").err().unwrap_or(BadFence::Empty))
            } else {
                self.unfit(
                    "holds an object that Leasehold did not write",
                    "Name a key that is not in use; people read it with leasehold read",
                )
            });
        };
        let record = FenceRecord::decode(&body).map_err(bad)?;
        match &record.payload {
            None if record.fence.seq > 0 => Err(self.bad_fence("the fence names no payload for its write")),
            Some(name) if PayloadName::parse(name).is_none() => {
                Err(self.bad_fence("the fence names a payload that Leasehold did not write"))
            }
            _ => Ok(record),
        }
    }

    /// Uploads the content under the name for the pointer. If the name exists, it has the same bytes.
    fn upload(&mut self, name: &str, content: &[u8]) -> Result<(), TargetError> {
        let path = self.path(name)?;
        let bytes = bytes::Bytes::copy_from_slice(content);
        let mut failure = None;
        for _ in 0..UPLOADS {
            let put = |bytes: bytes::Bytes| {
                let path = path.clone();
                async move |bucket: &mut Bucket| {
                    bucket.put_at(&path, None, bytes.into(), PutKind::Payload).await
                }
            };
            match self.server.calls.call(content.len(), put(bytes.clone()), Cas::Unknown) {
                Cas::Written { .. } | Cas::Conflict => return Ok(()),
                Cas::Unknown(said) => failure = Some(said),
            }
            if failure.as_ref().is_some_and(|said| said.kind != FailureKind::Unreachable) {
                break;
            }
        }
        let nobody = || Failure::new(FailureKind::Unreachable, "no answer came");
        // The pointer was not changed, so readers see no change.
        Err(self.server.failed("write", failure.unwrap_or_else(nobody)))
    }

    /// Removes payloads that no reader needs, now that the pointer names `published`. Errors are ignored.
    fn sweep(&mut self, published: &str) {
        let Some(published) = PayloadName::parse(published) else { return };
        let Ok(seen) = self.seen(PAGES) else { return };
        let names = payload::sweepable(&self.folder, &seen, published.ordinal, self.grace);
        #[cfg(feature = "conformance")]
        let names =
            if self.sweeps_all { seen.into_iter().map(|object| object.name).collect() } else { names };
        for name in names.into_iter().take(SWEEP) {
            let Ok(path) = Path::parse(&name) else { continue };
            if self.server.calls.call(0, async |bucket| bucket.discard(&path).await, Err).is_err() {
                return;
            }
        }
    }

    /// The payload that the pointer names; None if it does not exist.
    fn download(&mut self, name: &str) -> Result<Option<Vec<u8>>, TargetError> {
        let path = self.path(name)?;
        let fetched =
            self.server.calls.call(LARGEST, async |bucket| bucket.fetch(&path, LARGEST as u64).await, Err);
        let Some(fetched) = fetched.map_err(|f| self.server.failed("read", f))? else { return Ok(None) };
        let wanted = PayloadName::parse(name).map(|payload| payload.digest);
        match fetched.bytes {
            Some(bytes) if Some(digest(&bytes)) == wanted => Ok(Some(bytes.into())),
            _ => Err(self.unfit(
                "has content that was changed after it was written: its digest is another",
                "Restore it from a backup, or run the job again",
            )),
        }
    }
}

impl CasFence for ObjectTarget {
    type Content = [u8];

    fn shown(&self) -> &str {
        &self.server.shown
    }

    fn load(&mut self) -> Result<Option<(FenceRecord, Version)>, TargetError> {
        let (path, spacing) = (self.pointer.clone(), self.spacing.take());
        let fetch = async |bucket: &mut Bucket| {
            if let Some(spacing) = spacing {
                tokio::time::sleep(spacing).await;
            }
            bucket.fetch(&path, BODY_MAX as u64 * 2).await
        };
        let found =
            self.server.calls.call(0, fetch, Err).map_err(|f| self.server.failed("read the fence of", f))?;
        let Some(found) = found else {
            self.last = self.highest()?;
            return Ok(None);
        };
        let html = found.note.report().answer.is_some_and(|answer| answer.html);
        let record = self.decode(found.bytes.as_deref(), html)?;
        self.last = match record.payload.as_deref().and_then(PayloadName::parse) {
            Some(payload) => payload.ordinal,
            None => self.highest()?,
        };
        Ok(Some((record, found.version)))
    }

    fn swap(
        &mut self,
        at: Option<&Version>,
        record: &FenceRecord,
        content: Option<&[u8]>,
    ) -> Result<Swap, TargetError> {
        if let (Some(content), Some(name)) = (content, &record.payload) {
            self.upload(name, content)?;
        }
        let pointer = self.pointer.clone();
        let body = envelope::record(WriteId(random::seed()), &record.encode());
        let put = async |bucket: &mut Bucket| {
            let done = bucket.put_at(&pointer, at, body.into(), PutKind::Record).await;
            (done, bucket.config.provider.spacing())
        };
        let gave_up = |failure| (Cas::Unknown(failure), Duration::ZERO);
        match self.server.calls.call(0, put, gave_up) {
            (Cas::Written { .. }, _) => {
                if let (Some(_), Some(published)) = (content, &record.payload) {
                    self.sweep(published);
                }
                Ok(Swap::Done)
            }
            (unknown @ Cas::Unknown(_), spacing) => {
                self.spacing = Some(spacing).filter(|spacing| !spacing.is_zero());
                Ok(unknown.into())
            }
            (conflict, _) => Ok(conflict.into()),
        }
    }

    fn examine(&mut self) -> Result<Swap, TargetError> {
        let never = self.never.clone();
        cas_fence::refuses(self, &never)
    }

    fn payload(&self, fence: &Fence) -> Option<String> {
        Some(payload::name(self.last.saturating_add(1), fence))
    }
}

impl Networked for ObjectTarget {
    const KIND: &'static str = "object";
    const MOST: usize = LARGEST;

    fn server_name(&self) -> &str {
        &self.server.name
    }

    fn begin(&mut self, bytes: usize) {
        self.server.calls.begin(bytes);
    }

    fn fetch(&mut self) -> Result<Vec<u8>, TargetError> {
        let mut before = None;
        for _ in 0..READS {
            let Some(name) = self.load()?.and_then(|(record, _)| record.payload) else {
                return Err(self.unfit("was never written under a fence", "Run the job that writes it"));
            };
            if let Some(bytes) = self.download(&name)? {
                return Ok(bytes);
            }
            // It was replaced, and swept later. If the pointer still names it, it is really gone.
            if before.as_ref() == Some(&name) {
                break;
            }
            before = Some(name);
        }
        Err(self.unfit(
            "names content that does not exist: somebody removed it",
            "Restore the objects beside it from a backup, or run the job again",
        ))
    }
}
