//! One file as a target.
//!
//! ```text
//! today.json                        the artefact
//! .today.json.leasehold-fence       who may write it, and what was written last
//! .today.json.leasehold-lock        the critical section; kept for ever
//! .today.json.leasehold-new-<id>    a payload on its way
//! ```
//!
//! The payload is on disk under its own name before anything else. Then, under the lock: settle what
//! a dead writer left pending; ask the rule; fence `pending`, naming the payload; rename; fence `done`.
//! Each step is durable before the next, so the fence is never behind the artefact, and a crash leaves
//! either nothing or a `pending` that whoever comes next finishes, or takes back if the payload is gone.
//!
//! A writer that is frozen before the lock finds, when it wakes, whatever was sealed meanwhile. One
//! that is frozen under it keeps everybody out until it goes on or is ended. On a network mount locks
//! can be lost behind a client's back, so there the class is [`Class::Gate`].

mod beside;

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_core::fence::{Bearer, Fence, Mode, Offer, Reason, Verdict, verdict};
use leasehold_core::fence_record::{BODY_MAX, FenceRecord, Pending};
use rustix::fs::{FileType, Stat};

pub use self::beside::digest;
use self::beside::{Beside, Inside, MARK, NotInside, Payload};
use super::swap::never_sealed;
use super::{Attempt, Class, Content, Refused, Sealed, Target, TargetError, Written};

/// How long to wait for the critical section: it takes milliseconds, so something hangs.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Longest name of an artefact: the names beside it must fit into a directory too.
const NAME_MAX: usize = 255 - ".".len() - ".leasehold-new-".len() - 32;

/// A file that only the holder of a lease may replace.
#[derive(Debug)]
pub struct FileTarget {
    beside: Beside,
    dir: PathBuf,
    shown: String,
    class: Class,
    patience: Duration,
}

impl FileTarget {
    /// The file at `path`, which need not exist; its directory must.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, TargetError> {
        let path = path.as_ref();
        let shown = format!("file:{}", path.display());
        let unfit = |why: &str, fix: &str| TargetError::Unfit {
            target: shown.clone(),
            why: why.into(),
            fix: fix.into(),
        };
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(name) = name.filter(|_| !shown.ends_with('/')) else {
            return Err(unfit("does not end in a readable file name", "Name the file itself"));
        };
        if name.len() > NAME_MAX {
            return Err(unfit("has a name too long to keep a fence beside it", "Use a shorter one"));
        }
        if name.contains(MARK) {
            return Err(unfit("is kept by Leasehold for another file", "Name that file"));
        }
        let dir = match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        let beside = Beside::open(dir, name).map_err(|source| TargetError::Io {
            target: shown.clone(),
            doing: "open the directory of",
            source,
        })?;
        let class = if beside.is_local() { Class::Atomic } else { Class::Gate };
        Ok(Self { beside, dir: dir.into(), shown, class, patience: PATIENCE })
    }

    /// Waits this long for the critical section.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    fn stored(&self) -> Result<Option<FenceRecord>, TargetError> {
        let bytes = self.beside.read_fence(BODY_MAX).map_err(|e| self.bad_fence(&e.to_string()))?;
        let record = bytes.map(|bytes| FenceRecord::decode(&bytes)).transpose();
        let record = record.map_err(|bad| self.bad_fence(&bad.to_string()))?;
        let prefix = self.beside.payload_prefix();
        match record.as_ref().and_then(|record| record.pending.as_ref()) {
            // Whatever it names would be renamed: only what we made ourselves.
            Some(pending) if !pending.temp.starts_with(&prefix) => {
                Err(self.bad_fence("the fence names a file that is no payload of ours"))
            }
            _ => Ok(record),
        }
    }

    fn put(&self, bearer: &Bearer, seq: Option<u64>, content: &mut dyn Read) -> Result<Written, TargetError> {
        let found = self.look()?;
        let mut payload = self.beside.payload(content, found.as_ref()).map_err(|e| self.io("write", e))?;
        let _inside = self.enter()?;
        if let Some(found) = self.look()? {
            payload.look_like(&found).map_err(|e| self.io("write", e))?;
        }
        let stored = self.settled()?;
        let fence = stored.as_ref().map(|stored| &stored.fence);
        // The rule looks at the grant before it looks at the number, so any number will do for others.
        let seq = seq.unwrap_or_else(|| fence.map_or(1, |fence| fence.seq.saturating_add(1)));
        let offer = Offer::Write { seq, digest: payload.digest.clone() };
        let written = |repeat, let_in| Written { seq, repeat, let_in };
        match (verdict(fence, bearer, &offer), stored.as_ref()) {
            (Verdict::Accept(fence), Some(stored)) => {
                self.land(stored, fence, &mut payload)?;
                Ok(written(false, None))
            }
            (Verdict::Repeat, Some(_)) => Ok(written(true, None)),
            (Verdict::LetIn(reason, counted), Some(_)) => {
                let refusal = Refused::new(Attempt::Write, reason, &self.shown, bearer, fence);
                self.beside.place(&payload.name).map_err(|e| self.io("write", e))?;
                payload.keep();
                // Counted after the fact: a watched write must not fail for the sake of its count.
                let _ = self.beside.replace_fence(&FenceRecord::done(counted).encode());
                Ok(written(false, Some(refusal)))
            }
            (Verdict::Refuse(reason), _) => Err(self.refused(Attempt::Write, reason, bearer, fence)),
            // The rule lets nobody write what was never sealed.
            (Verdict::Accept(_) | Verdict::Repeat | Verdict::LetIn(..), None) => {
                Err(self.refused(Attempt::Write, Reason::NotSealed, bearer, None))
            }
        }
    }

    /// Puts an accepted payload in place: fence `pending`, rename, fence `done`.
    fn land(&self, before: &FenceRecord, fence: Fence, payload: &mut Payload<'_>) -> Result<(), TargetError> {
        let pending = Pending { temp: payload.name.clone(), before: before.fence.digest.clone() };
        let record = FenceRecord::pending(fence, pending);
        let announced = self.beside.replace_fence(&record.encode());
        if let Err(e) = announced.and_then(|()| self.beside.place(&payload.name)) {
            return Err(self.take_back(before, payload, e));
        }
        payload.keep();
        self.beside.sync().map_err(|source| TargetError::Unknown { target: self.shown.clone(), source })?;
        // It is written and announced; if this fails, whoever comes next sees that and says `done`.
        let _ = self.beside.replace_fence(&record.finished().encode());
        Ok(())
    }

    /// The write failed half-way: restores the fence, or leaves the payload to whoever comes next.
    fn take_back(&self, before: &FenceRecord, payload: &mut Payload<'_>, source: io::Error) -> TargetError {
        let unchanged = self.stored().is_ok_and(|now| now.as_ref() == Some(before));
        if unchanged || self.beside.replace_fence(&before.encode()).is_ok() {
            return self.io("write", source);
        }
        payload.keep();
        TargetError::Unknown { target: self.shown.clone(), source }
    }

    /// The fence, with nothing pending: what a dead writer left is finished, or taken back if its
    /// payload is gone and the artefact is not it.
    fn settled(&self) -> Result<Option<FenceRecord>, TargetError> {
        let stored = self.stored()?;
        let Some((record, pending)) = stored.as_ref().and_then(|r| Some((r, r.pending.as_ref()?))) else {
            return Ok(stored);
        };
        let io = |e| self.io("settle an unfinished write of", e);
        let wanted = Some(&record.fence.digest);
        let waiting = self.beside.digest_of(Some(&pending.temp)).map_err(io)?;
        let settled = if waiting.as_ref() == wanted {
            self.beside.place(&pending.temp).map_err(io)?;
            self.beside.sync().map_err(io)?;
            record.finished()
        } else if waiting.is_none() && self.beside.digest_of(None).map_err(io)?.as_ref() == wanted {
            record.finished()
        } else {
            record.taken_back()
        };
        self.beside.replace_fence(&settled.encode()).map_err(io)?;
        self.beside.discard(&pending.temp);
        Ok(Some(settled))
    }

    /// The artefact, if it is something that may be replaced.
    fn look(&self) -> Result<Option<Stat>, TargetError> {
        let Some(found) = self.beside.look().map_err(|e| self.io("look at", e))? else { return Ok(None) };
        let (why, fix) = match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile => return Ok(Some(found)),
            FileType::Symlink => (
                "is a symbolic link, and what it points to may have a fence of its own",
                "Name the file it points to",
            ),
            FileType::Directory => ("is a directory", "Name a file in it"),
            _ => ("is not a plain file", "Name a plain file"),
        };
        Err(TargetError::Unfit { target: self.shown.clone(), why: why.into(), fix: fix.into() })
    }

    fn enter(&self) -> Result<Inside, TargetError> {
        self.beside.enter(self.patience).map_err(|e| match e {
            NotInside::Busy(holder) => {
                TargetError::Busy { target: self.shown.clone(), waited: self.patience, holder }
            }
            NotInside::Io(e) => self.io("lock", e),
        })
    }

    fn refused(
        &self,
        attempt: Attempt,
        reason: Reason,
        bearer: &Bearer,
        fence: Option<&Fence>,
    ) -> TargetError {
        TargetError::Refused(Box::new(Refused::new(attempt, reason, &self.shown, bearer, fence)))
    }

    fn io(&self, doing: &'static str, source: io::Error) -> TargetError {
        TargetError::Io { target: self.shown.clone(), doing, source }
    }

    fn bad_fence(&self, why: &str) -> TargetError {
        TargetError::BadFence {
            target: self.shown.clone(),
            fence: self.dir.join(self.beside.fence_name()).display().to_string(),
            why: why.into(),
        }
    }
}

impl Target for FileTarget {
    fn shown(&self) -> &str {
        &self.shown
    }

    fn class(&self) -> Class {
        self.class
    }

    fn seal(&mut self, bearer: &Bearer, mode: Mode) -> Result<Sealed, TargetError> {
        let _inside = self.enter()?;
        self.look()?;
        let stored = self.settled()?;
        let fence = stored.as_ref().map(|stored| &stored.fence);
        let (next, let_in) = match verdict(fence, bearer, &Offer::Seal(mode)) {
            Verdict::Accept(next) => (next, None),
            Verdict::Repeat => return Ok(Sealed { let_in: None }),
            Verdict::Refuse(reason) => return Err(self.refused(Attempt::Seal, reason, bearer, fence)),
            Verdict::LetIn(reason, next) => {
                (next, Some(Refused::new(Attempt::Seal, reason, &self.shown, bearer, fence)))
            }
        };
        self.beside.replace_fence(&FenceRecord::done(next).encode()).map_err(|e| self.io("seal", e))?;
        self.beside.sweep();
        Ok(Sealed { let_in })
    }

    fn write(
        &mut self,
        bearer: &Bearer,
        seq: Option<u64>,
        content: Content<'_>,
    ) -> Result<Written, TargetError> {
        match content {
            Content::Bytes(mut bytes) => self.put(bearer, seq, &mut bytes),
            Content::Stream(stream) => self.put(bearer, seq, stream),
            Content::Directory(_) => Err(TargetError::Unfit {
                target: self.shown.clone(),
                why: "is one file and was given a directory".into(),
                fix: "Give it a file, or write the directory to a tree:".into(),
            }),
        }
    }

    fn show(&mut self) -> Result<Option<FenceRecord>, TargetError> {
        self.stored()
    }

    fn set_mode(&mut self, mode: Mode) -> Result<(), TargetError> {
        let _inside = self.enter()?;
        let Some(record) = self.settled()? else { return Err(never_sealed(&self.shown)) };
        let record = FenceRecord::done(Fence { mode, ..record.fence });
        self.beside.replace_fence(&record.encode()).map_err(|e| self.io("change the mode of", e))
    }
}
