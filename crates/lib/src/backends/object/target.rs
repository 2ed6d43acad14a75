//! One object in a bucket as a target: S3 and what speaks like it, Google Cloud Storage, Azure.
//!
//! ```text
//! site/today.json                                        the pointer: who may write, and what is current
//! site/today.json.leasehold/00000007.42.3.<sha256>       the content of write 3 of token 42
//! ```
//!
//! The content goes first, under a name that nothing else has and that is only ever created. Then the
//! pointer is replaced if it is still the one that was read: that one put is check and write in one step.
//! Every pointer has a line of its own with a random id, so no two are equal, nor their ETags: with the
//! fence in the metadata, equal content would have an equal ETag and an old writer's condition would hold.
//!
//! A writer that dies between the two leaves content that nothing names. It is taken away with what was
//! replaced long ago ([`payload`]).

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

/// Between an object's name and those of its payloads.
const FOLDER: &str = ".leasehold/";
/// Longest last part of a name: servers that keep objects as files allow 255 bytes.
const NAME_MAX: usize = 240;
/// Most that is written in one go; it is kept in memory meanwhile.
pub const LARGEST: usize = 256 << 20;
/// How long what was replaced stays for those who have read the pointer and not yet followed it.
pub const READER_GRACE: Duration = Duration::from_secs(15 * 60);
/// How often an upload is sent that nobody answers: it is the same bytes under the same name.
const UPLOADS: u32 = 3;
/// How often a reader starts again because what it was to read had just been replaced.
const READS: u32 = 5;
/// How many pages of names a sweep looks at.
const PAGES: usize = 20;
/// Most that one write takes away; the next goes on.
const SWEEP: usize = 100;

/// An object that only the holder of a lease may replace.
#[derive(Debug)]
pub struct ObjectTarget {
    server: Server<Bucket>,
    pointer: Path,
    /// A version that no object ever had.
    never: Version,
    /// Where the payloads are; ends in a slash.
    folder: String,
    /// The ordinal of the payload that the pointer named when it was last read.
    last: u64,
    /// The last put was not answered; how long to wait before the next.
    spacing: Option<Duration>,
    grace: Duration,
    kept: u64,
}

impl ObjectTarget {
    /// The object that `url` names, with the credentials of this process. Reaches nothing.
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
            return Err(unfit("has a name too long to keep its content beside it", "Use a shorter one"));
        }
        if format!("{name}/").contains(FOLDER) {
            return Err(unfit("is kept by Leasehold for another object", "Name that object"));
        }
        let pointer =
            Path::parse(&name).map_err(|_| unfit("has a name no object can have", "Use another"))?;
        let (shown, name_of_server) = (bucket.config.shown.clone(), bucket.server());
        Ok(Self {
            server: Server::new(bucket, shown, name_of_server),
            pointer,
            never: Version(provider.no_version().into()),
            folder: format!("{name}{FOLDER}"),
            last: 0,
            spacing: None,
            grace: READER_GRACE,
            kept: payload::KEPT,
        })
    }

    /// Waits this long for one call, and for all calls of one verb.
    #[cfg(feature = "conformance")]
    #[must_use]
    pub fn with_patience(mut self, each: Duration, all: Duration) -> Self {
        self.server.calls.limit(each, all);
        self
    }

    /// Keeps what was replaced for so long; for tests, which have no quarter of an hour.
    #[cfg(feature = "conformance")]
    #[must_use]
    pub fn with_grace(self, grace: Duration) -> Self {
        Self { grace, ..self }
    }

    /// A mutant that also takes away what its newest witness is and saw: for the test that must see it.
    #[cfg(feature = "conformance")]
    #[must_use]
    pub fn sweeping_too_much(self) -> Self {
        Self { kept: 0, ..self }
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
        Path::parse(name).map_err(|_| self.bad_fence("the fence names a payload that no object can be"))
    }

    fn seen(&mut self, pages: usize) -> Result<Vec<ListedObject>, Failure> {
        let folder = self.folder.clone();
        self.server.calls.call(0, async |bucket| bucket.seen_in(&folder, pages).await, Err)
    }

    /// The highest ordinal of all payloads there are, for a pointer that names none: it may be a new one
    /// in the place of another that somebody removed, and ordinals never go back. Of all: the highest come last.
    fn highest(&mut self) -> Result<u64, TargetError> {
        let seen = self.seen(usize::MAX).map_err(|f| self.server.failed("look at the payloads of", f))?;
        let names = seen.iter().filter_map(|object| object.name.strip_prefix(&self.folder));
        Ok(names.filter_map(PayloadName::parse).map(|payload| payload.ordinal).max().unwrap_or(0))
    }

    /// What the pointer says.
    fn decode(&self, bytes: Option<&[u8]>, html: bool) -> Result<FenceRecord, TargetError> {
        if html {
            return Err(self.unfit(
                "was answered with a web page: a proxy or another service stands in between",
                "Check the endpoint and any proxy on the way",
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
                    "holds an object that Leasehold did not write, and that was left as it is",
                    "Name a key that is not in use; people read it with leasehold read",
                )
            });
        };
        let record = FenceRecord::decode(&body).map_err(bad)?;
        match &record.payload {
            None if record.fence.seq > 0 => Err(self.bad_fence("the fence names no payload for its write")),
            Some(name) if PayloadName::parse(name).is_none() => {
                Err(self.bad_fence("the fence names a payload that is none of ours"))
            }
            _ => Ok(record),
        }
    }

    /// Puts the content where the pointer will say it is. There already: the same bytes, by its name.
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
        // The pointer was not touched, so nothing that anybody reads has changed.
        Err(self.server.failed("write", failure.unwrap_or_else(nobody)))
    }

    /// Takes away what nobody can need any more, now that `published` is named. Whether it works changes nothing.
    fn sweep(&mut self, published: &str) {
        let Some(published) = PayloadName::parse(published) else { return };
        let Ok(seen) = self.seen(PAGES) else { return };
        // The mutant heeds neither.
        let published = if self.kept == 0 { u64::MAX } else { published.ordinal };
        let names = payload::sweepable(&self.folder, &seen, published, self.grace, self.kept);
        for name in names.into_iter().take(SWEEP) {
            let Ok(path) = Path::parse(&name) else { continue };
            if self.server.calls.call(0, async |bucket| bucket.discard(&path).await, Err).is_err() {
                return;
            }
        }
    }

    /// What the pointer names; nothing: it is not there.
    fn download(&mut self, name: &str) -> Result<Option<Vec<u8>>, TargetError> {
        let path = self.path(name)?;
        let fetched =
            self.server.calls.call(LARGEST, async |bucket| bucket.fetch(&path, LARGEST as u64).await, Err);
        let Some(fetched) = fetched.map_err(|f| self.server.failed("read", f))? else { return Ok(None) };
        let wanted = PayloadName::parse(name).map(|payload| payload.digest);
        match fetched.bytes {
            Some(bytes) if Some(digest(&bytes)) == wanted => Ok(Some(bytes.into())),
            _ => Err(self.unfit(
                "has content that is not what was written: its digest is another",
                "Somebody changed or damaged it: restore it from a backup, or run the job again",
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
        let html = found.note.told().answer.is_some_and(|answer| answer.html);
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
            (Cas::Unknown(failure), _) if failure.kind == FailureKind::Denied => {
                Err(self.server.failed("write the fence of", failure))
            }
            (Cas::Unknown(failure), spacing) => {
                self.spacing = Some(spacing).filter(|spacing| !spacing.is_zero());
                Ok(Swap::Unknown(failure.message))
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
            // Replaced long before it was swept; unless the pointer still says so, and it is really gone.
            if before.as_ref() == Some(&name) {
                break;
            }
            before = Some(name);
        }
        Err(self.unfit(
            "names content that is not there: somebody removed it",
            "Restore the objects beside it from a backup, or run the job again",
        ))
    }
}
