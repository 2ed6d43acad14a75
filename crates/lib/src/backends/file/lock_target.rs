//! Targets on a file system of this machine: a file, a tree of files.
//!
//! ```text
//! today.json                        the artefact
//! .today.json.leasehold-fence       who may write it, and what was written last
//! .today.json.leasehold-lock        the lock of the critical section; never removed
//! .today.json.leasehold-new-<id>    a payload that is not in place yet
//! ```
//!
//! First the payload is written to the disk under its own name. Then, under the lock, the writer finishes or
//! undoes a write that a dead writer left pending, and asks the rule. It sets the fence to `pending`, which
//! names the payload, puts the payload in place, and sets the fence to `done`. Each step is durable before the
//! next, so the fence is never behind the artefact. A crash leaves either nothing, or a `pending` fence. The
//! next process that takes the lock finishes that write, or undoes it if the payload is gone.
//!
//! A writer that is paused before it takes the lock sees the newer fence when it continues. A writer that is
//! paused under the lock blocks all others until it continues or is ended. If somebody removed its files
//! meanwhile, it notices that and changes nothing (see `critical_section`). On a network mount a client can
//! lose a lock without notice, so the class there is [`Class::Gate`].

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_core::fence::{
    Bearer, Fence, FenceMode, FenceOffer, FenceVerdict, RefusalReason, next_seq, verdict,
};
use leasehold_core::fence_record::{FenceRecord, PendingWrite};
use rustix::fs::{Access, Stat};

pub use super::critical_section::CriticalSection;
use super::critical_section::NotInside;
use super::dir_fence::{DirFence, MARK, StagedPayload};
use super::git_exclude;
use crate::targets::cas_fence::never_sealed;
use crate::targets::{
    Class, Content, Refused, RefusedAction, Sealed, Target, TargetAction, TargetError, Written, sealing,
};

/// How long to wait for the critical section. It takes milliseconds, so after this time something hangs.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Longest name of an artefact: the names beside it must fit into a directory too.
const NAME_MAX: usize = 255 - ".".len() - ".leasehold-new-".len() - 64;

/// What kind of thing is replaced, and how it is staged and put in place.
pub trait FileKind: fmt::Debug + Send {
    /// The scheme of its URL.
    const SCHEME: &'static str;

    /// Its class, on a file system of this machine (`local`) or on a network mount.
    fn class(&self, local: bool) -> Class {
        if local { Class::Atomic } else { Class::Gate }
    }

    /// Whether the existing artefact may be replaced; if not, why not and what to do.
    fn fit(&self, beside: &DirFence) -> io::Result<Result<(), (String, String)>>;

    /// Writes the content to the disk under its own name.
    fn stage<'a>(&self, beside: &'a DirFence, content: Content<'_>) -> io::Result<StagedPayload<'a>>;

    /// Puts a staged payload in place; also for a writer that died while it did so. An error means that the payload
    /// is not in place.
    fn place(
        &self,
        beside: &DirFence,
        inside: &CriticalSection,
        payload: &str,
        fence: &Fence,
    ) -> io::Result<()>;

    /// The digest of a staged payload that is not in place yet.
    fn waiting(&self, beside: &DirFence, payload: &str, fence: &Fence) -> io::Result<Option<String>>;

    /// The digest of the artefact.
    fn present(&self, beside: &DirFence, fence: &Fence) -> io::Result<Option<String>>;

    /// A word that changes whenever the artefact changes.
    fn fingerprint(&self, beside: &DirFence) -> Option<String>;

    /// Removes files that are no longer needed. Nothing depends on it.
    fn sweep(&self, beside: &DirFence, current: &Fence);

    /// Copies the artefact to `to`; false if there is none. None if this kind cannot be read as bytes.
    fn read(&self, _beside: &DirFence, _to: &mut dyn io::Write) -> Option<io::Result<bool>> {
        None
    }
}

/// Directories whose links belong to the system (/home, /var/run), although root may write there.
const SYSTEM: [&str; 3] = ["/", "/usr", "/var"];

/// The last symbolic link in the path of this directory that this user could change.
fn link_above(dir: &Path) -> Option<PathBuf> {
    let whole = std::path::absolute(dir).ok()?;
    let ours = |above: &Path| {
        let system = SYSTEM.iter().any(|system| above == Path::new(system));
        !system && rustix::fs::access(above, Access::WRITE_OK).is_ok()
    };
    whole.ancestors().find(|path| path.is_symlink() && path.parent().is_some_and(ours)).map(Path::to_owned)
}

/// Something on this machine that only the holder of a lease may replace.
#[derive(Debug)]
pub struct LockTarget<A> {
    beside: DirFence,
    shown: String,
    class: Class,
    patience: Duration,
    artefact: A,
    caution: Option<String>,
    /// The artefact when this run fenced it: see [`LockTarget::look`].
    found: Option<String>,
    /// Sentences for [`Target::aftermath`].
    noticed: RefCell<Vec<String>>,
}

impl<A: FileKind> LockTarget<A> {
    /// The artefact at `path`, which need not exist; its directory must.
    pub(in crate::backends) fn at(path: &Path, artefact: A) -> Result<Self, TargetError> {
        let given = path.display().to_string();
        let shown = format!("{}:{given}", A::SCHEME);
        let unfit = |why: &str, fix: &str| TargetError::Unfit {
            target: shown.clone(),
            why: why.into(),
            fix: fix.into(),
        };
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(name) = name.filter(|_| !given.ends_with('/')) else {
            return Err(unfit(
                "does not end in a name, from which the name of its fence is made",
                "Name the file or directory itself, without a slash at the end",
            ));
        };
        if name.len() > NAME_MAX {
            return Err(unfit("has a name too long to keep a fence beside it", "Use a shorter one"));
        }
        if name.contains(MARK) {
            return Err(unfit("is a file that Leasehold keeps beside a target", "Name that target"));
        }
        let dir = match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        let beside = DirFence::open(dir, name).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                unfit("is in a directory that does not exist", "Create it, or correct the path")
            }
            _ => TargetError::Io { target: shown.clone(), doing: "open the directory of", source },
        })?;
        let class = artefact.class(beside.is_local());
        let caution = link_above(dir).map(|link| {
            format!(
                "{shown} is behind the link {}. Its fence lies where the link points now, and a run that finds \
                 the link changed uses another fence. Name the real path",
                link.display()
            )
        });
        let (patience, found, noticed) = (PATIENCE, None, RefCell::default());
        Ok(Self { beside, shown, class, patience, artefact, caution, found, noticed })
    }

    /// Records something that Leasehold does not write itself as one write of this run, under the name `digest`. The caller
    /// stays in the critical section.
    pub(in crate::backends) fn note(
        &mut self,
        bearer: &Bearer,
        digest: &str,
    ) -> Result<(CriticalSection, Written), TargetError> {
        let mut inside = self.go_in()?;
        let stored = self.settled(&mut inside)?;
        let fence = stored.as_ref().map(|stored| &stored.fence);
        let seq = next_seq(fence);
        let (next, let_in) = match verdict(fence, bearer, &FenceOffer::Write { seq, digest: digest.into() }) {
            FenceVerdict::Accept(next) => (next, None),
            FenceVerdict::LetIn(reason, next) => {
                (next, Some(self.refusal(RefusedAction::Write, reason, bearer, fence)))
            }
            // The number is new, so this does not happen.
            FenceVerdict::Repeat => return Ok((inside, Written { seq, repeat: true, let_in: None })),
            FenceVerdict::Refuse(reason) => {
                let refusal = self.refusal(RefusedAction::Write, reason, bearer, fence);
                return Err(TargetError::Refused(Box::new(refusal)));
            }
        };
        let record = FenceRecord::done(next).after(stored.as_ref());
        self.beside.replace_fence(&mut inside, &record.encode()).map_err(|e| self.io("enter", e))?;
        Ok((inside, Written { seq, repeat: false, let_in }))
    }

    /// Waits this long for the critical section.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    fn stored(&self) -> Result<Option<FenceRecord>, TargetError> {
        self.decoded(self.beside.read_fence())
    }

    fn decoded(&self, bytes: io::Result<Option<Vec<u8>>>) -> Result<Option<FenceRecord>, TargetError> {
        let bytes = bytes.map_err(|e| match e.kind() {
            io::ErrorKind::PermissionDenied => self.io("read the fence of", e),
            _ => self.bad_fence(&e.to_string()),
        })?;
        let record = bytes.map(|bytes| FenceRecord::decode(&bytes)).transpose();
        let record = record.map_err(|bad| self.bad_fence(&bad.to_string()))?;
        let prefix = self.beside.payload_prefix();
        match record.as_ref().and_then(|record| record.pending.as_ref()) {
            // The file it names will be renamed, so it must be a payload of ours.
            Some(pending) if !pending.temp.starts_with(&prefix) => {
                Err(self.bad_fence("the fence names a file that Leasehold did not write"))
            }
            _ => Ok(record),
        }
    }

    /// Puts an accepted payload in place, between a fence that says `pending` and one that says `done`.
    fn land(
        &self,
        inside: &mut CriticalSection,
        before: &FenceRecord,
        fence: Fence,
        payload: &mut StagedPayload<'_>,
    ) -> Result<(), TargetError> {
        let over = Some(self.beside.identity().map_err(|e| self.io("look at", e))?);
        let pending = PendingWrite { temp: payload.name.clone(), before: before.fence.digest.clone(), over };
        let record = FenceRecord::pending(fence, pending).after(Some(before));
        let fenced = self.beside.replace_fence(inside, &record.encode());
        let was_pending = fenced.is_ok();
        let place = |()| self.artefact.place(&self.beside, inside, &payload.name, &record.fence);
        if let Err(source) = fenced.and_then(place) {
            let ours = self.decoded(self.beside.read_fence_inside(inside));
            let ours = ours.is_ok_and(|now| now.as_ref() == Some(&record));
            let restored = ours && self.beside.replace_fence(inside, &before.encode()).is_ok();
            if restored || !(ours || was_pending) {
                return Err(self.io("write", source));
            }
            // The next process in the critical section finishes this write, or has done so already and owns the fence now.
            payload.keep();
            return Err(TargetError::Unknown { target: self.shown.clone(), source });
        }
        payload.keep();
        self.beside.sync().map_err(|source| TargetError::Unknown { target: self.shown.clone(), source })?;
        // The artefact is in place. If this fails, the next process in the critical section sets the fence to `done`.
        let _ = self.beside.replace_fence(inside, &record.finished().encode());
        Ok(())
    }

    /// The fence, after a pending write of a dead writer was finished. If its payload is gone and the artefact is not that
    /// payload, the write is undone.
    fn settled(&self, inside: &mut CriticalSection) -> Result<Option<FenceRecord>, TargetError> {
        let stored = self.decoded(self.beside.read_fence_inside(inside))?;
        let Some((record, pending)) = stored.as_ref().and_then(|r| Some((r, r.pending.as_ref()?))) else {
            return Ok(stored);
        };
        let io = |e| self.io("finish an interrupted write of", e);
        let (fence, wanted) = (&record.fence, Some(&record.fence.digest));
        let waiting = self.artefact.waiting(&self.beside, &pending.temp, fence).map_err(io)?;
        let present = self.artefact.present(&self.beside, fence).map_err(io)?;
        // A change that a person made since then is not overwritten: the dead writer has not reported success to anybody.
        let over = pending.over.as_ref().filter(|_| present.as_ref() != wanted);
        let edited = match over {
            Some(over) => *over != self.beside.identity().map_err(io)?,
            None => false,
        };
        let settled = if edited && waiting.is_some() {
            self.noticed.borrow_mut().push(self.kept(fence));
            record.taken_back()
        } else if waiting.as_ref() == wanted {
            self.artefact.place(&self.beside, inside, &pending.temp, fence).map_err(io)?;
            self.beside.sync().map_err(io)?;
            record.finished()
        } else if present.as_ref() == wanted {
            // The payload was put in place. If the write were undone, a retry would write it a second time.
            record.finished()
        } else {
            record.taken_back()
        };
        self.beside.replace_fence(inside, &settled.encode()).map_err(io)?;
        self.beside.discard(&pending.temp);
        Ok(Some(settled))
    }

    /// A word that changes when the artefact is written, and not when its mode or its number of links changes.
    fn look(&self) -> io::Result<String> {
        let word = |s: Stat| format!("{}.{}.{}.{}", s.st_ino, s.st_size, s.st_mtime, s.st_mtime_nsec);
        Ok(self.beside.look()?.map_or_else(String::new, word))
    }

    /// A sentence about a write that bypassed the fence while this run held it, if one can be detected.
    fn went_round(&self, bearer: &Bearer) -> Option<String> {
        let FenceRecord { fence, pending, .. } = self.stored().ok()??;
        // In observe mode another run's write may have been accepted. A pending write has not changed anything yet.
        if fence.grant != bearer.grant || fence.mode == FenceMode::Observe || pending.is_some() {
            return None;
        }
        let (changed, how) = match fence.seq {
            0 => (self.look().ok()? != *self.found.as_ref()?, "as this run found it"),
            _ => {
                (self.artefact.fingerprint(&self.beside)? != fence.digest, "as the last fenced write left it")
            }
        };
        // Another run may have fenced the target in between.
        let still = self.stored().ok()??.fence == fence;
        (changed && still).then(|| {
            let shown = &self.shown;
            format!(
                "{shown} was changed past its fence: it is not {how}. Nothing checks a plain `>`, so a run that lost its \
                 lease could do that too. Write it with: leasehold write {shown}"
            )
        })
    }

    fn committed(&self, file: &Path, why: &io::Error) {
        self.noticed.borrow_mut().push(format!(
            "git does not ignore the lock and the fence beside {}, because {} cannot be written ({why}). Add this line to it: {}",
            self.shown,
            file.display(),
            git_exclude::PATTERN
        ));
    }

    fn kept(&self, fence: &Fence) -> String {
        format!(
            "{} was changed by hand after a run with token {} died while it wrote it. The change was kept, and the write of \
             that run was undone",
            self.shown, fence.token
        )
    }

    fn fit(&self) -> Result<(), TargetError> {
        if self.beside.is_mount_point() {
            return Err(TargetError::Unfit {
                target: self.shown.clone(),
                why: "is a mount point, which cannot be replaced".into(),
                fix: "Mount its directory instead".into(),
            });
        }
        let fit = self.artefact.fit(&self.beside).map_err(|e| self.io("look at", e))?;
        fit.map_err(|(why, fix)| TargetError::Unfit { target: self.shown.clone(), why, fix })
    }

    fn go_in(&self) -> Result<CriticalSection, TargetError> {
        self.beside.enter(self.patience).map_err(|e| match e {
            NotInside::Busy(holder) => {
                TargetError::Busy { target: self.shown.clone(), waited: self.patience, holder }
            }
            NotInside::Io(e) => self.io("lock", e),
        })
    }

    fn refusal(
        &self,
        attempt: RefusedAction,
        reason: RefusalReason,
        bearer: &Bearer,
        fence: Option<&Fence>,
    ) -> Refused {
        Refused::new(attempt, reason, &self.shown, bearer, fence)
    }

    fn io(&self, doing: &'static str, source: io::Error) -> TargetError {
        TargetError::Io { target: self.shown.clone(), doing, source }
    }

    fn bad_fence(&self, why: &str) -> TargetError {
        TargetError::BadFence {
            target: self.shown.clone(),
            fence: self.beside.path(&self.beside.fence_name()).display().to_string(),
            why: why.into(),
        }
    }
}

impl<A: FileKind> Target for LockTarget<A> {
    fn shown(&self) -> &str {
        &self.shown
    }

    fn class(&self) -> Class {
        self.class
    }

    fn caution(&self) -> Option<&str> {
        self.caution.as_deref()
    }

    fn seal(&mut self, bearer: &Bearer, mode: FenceMode) -> Result<Sealed, TargetError> {
        // Checked before the lock is taken: its file would stay beside a target that is refused.
        self.fit()?;
        let mut inside = self.go_in()?;
        self.fit()?;
        let stored = self.settled(&mut inside)?;
        self.found = Some(self.look().map_err(|e| self.io("look at", e))?);
        let fence = stored.as_ref().map(|stored| &stored.fence);
        let Some((next, let_in)) = sealing(fence, bearer, mode, &self.shown)? else {
            return Ok(Sealed { let_in: None });
        };
        let record = FenceRecord::done(next).after(stored.as_ref());
        self.beside.replace_fence(&mut inside, &record.encode()).map_err(|e| self.io("fence", e))?;
        self.beside.sweep();
        // Each time: somebody may make a repository around it later.
        let excluded = git_exclude::exclude(&self.beside.path(""));
        if let (Err((file, e)), None) = (excluded, &stored) {
            self.committed(&file, &e);
        }
        Ok(Sealed { let_in })
    }

    fn write(
        &mut self,
        bearer: &Bearer,
        seq: Option<u64>,
        content: Content<'_>,
    ) -> Result<Written, TargetError> {
        self.fit()?;
        let mut payload = self.artefact.stage(&self.beside, content).map_err(|e| self.io("write", e))?;
        let refused = |reason, fence| {
            let refusal = self.refusal(RefusedAction::Write, reason, bearer, fence);
            Err(TargetError::Refused(Box::new(refusal)))
        };
        // Checked before the lock is taken: its file would stay beside a target that has no fence.
        if self.stored()?.is_none() {
            return refused(RefusalReason::NotSealed, None);
        }
        let mut inside = self.go_in()?;
        self.fit()?;
        payload.take_over(&self.beside).map_err(|e| self.io("write", e))?;
        let stored = self.settled(&mut inside)?;
        let fence = stored.as_ref().map(|stored| &stored.fence);
        // The rule compares the run before the number, so the number does not matter for other runs.
        let seq = seq.unwrap_or_else(|| next_seq(fence));
        let offer = FenceOffer::Write { seq, digest: payload.digest.clone() };
        let written = |repeat, let_in| Written { seq, repeat, let_in };
        match (verdict(fence, bearer, &offer), stored.as_ref()) {
            (FenceVerdict::Accept(fence), Some(stored)) => {
                self.land(&mut inside, stored, fence.clone(), &mut payload)?;
                self.artefact.sweep(&self.beside, &fence);
                Ok(written(false, None))
            }
            (FenceVerdict::Repeat, Some(_)) => Ok(written(true, None)),
            (FenceVerdict::LetIn(reason, counted), Some(stored)) => {
                let refusal = self.refusal(RefusedAction::Write, reason, bearer, fence);
                let as_if =
                    Fence { seq, digest: payload.digest.clone(), token: bearer.token, ..counted.clone() };
                let placed = self.artefact.place(&self.beside, &inside, &payload.name, &as_if);
                placed.map_err(|e| self.io("write", e))?;
                payload.keep();
                // Before the count, which syncs too but may fail.
                self.beside.sync().map_err(|e| TargetError::InDoubt {
                    target: self.shown.clone(),
                    asked: TargetAction::Write,
                    why: format!("it is in place, but a power cut could undo it ({e})"),
                })?;
                // Counted afterwards: in observe mode a write must not fail because it cannot be counted.
                let record = FenceRecord::done(counted).after(Some(stored));
                let _ = self.beside.replace_fence(&mut inside, &record.encode());
                Ok(written(false, Some(refusal)))
            }
            (FenceVerdict::Refuse(reason), _) => refused(reason, fence),
            // The rule accepts no write without a fence.
            (FenceVerdict::Accept(_) | FenceVerdict::Repeat | FenceVerdict::LetIn(..), None) => {
                refused(RefusalReason::NotSealed, None)
            }
        }
    }

    fn show(&mut self) -> Result<Option<FenceRecord>, TargetError> {
        self.stored()
    }

    fn aftermath(&mut self, bearer: &Bearer) -> Option<String> {
        let mut noticed = self.noticed.take();
        noticed.extend(self.went_round(bearer));
        (!noticed.is_empty()).then(|| noticed.join(". "))
    }

    fn forget(&mut self) -> Result<Option<Fence>, TargetError> {
        let mut inside = self.go_in()?;
        let record = self.settled(&mut inside)?;
        if record.is_some() {
            self.beside.remove_fence(&inside).map_err(|e| self.io("reset the fence of", e))?;
        }
        Ok(record.map(|record| record.fence))
    }

    fn fingerprint(&mut self) -> Option<String> {
        self.artefact.fingerprint(&self.beside)
    }

    fn remember(&mut self, bearer: &Bearer, fingerprint: &str) -> Result<(), TargetError> {
        self.note(bearer, fingerprint).map(drop)
    }

    fn read(&mut self, to: &mut dyn io::Write) -> Result<(), TargetError> {
        let (why, fix) = match self.artefact.read(&self.beside, to) {
            Some(Ok(true)) => return Ok(()),
            Some(Err(e)) => return Err(self.io("read", e)),
            Some(Ok(false)) => ("is not there", "Run the job that writes it"),
            None => ("is not a single file", "Read it with its own tools"),
        };
        Err(TargetError::Unfit { target: self.shown.clone(), why: why.into(), fix: fix.into() })
    }

    fn set_mode(&mut self, mode: FenceMode) -> Result<(), TargetError> {
        let mut inside = self.go_in()?;
        let Some(record) = self.settled(&mut inside)? else { return Err(never_sealed(&self.shown)) };
        let record = FenceRecord { fence: Fence { mode, ..record.fence }, ..record };
        self.beside.replace_fence(&mut inside, &record.encode()).map_err(|e| self.io("change the mode of", e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_the_system_are_not_told() {
        let dir = std::env::temp_dir().join(format!("leasehold-link-{:032x}", crate::random::seed()));
        std::fs::create_dir(&dir).unwrap();
        let link = dir.join("current");
        std::os::unix::fs::symlink("/", &link).unwrap();
        assert_eq!(link_above(&link.join("tmp")), Some(link.clone()));
        std::fs::remove_dir_all(&dir).unwrap();
        // Links that most machines have. Root could change them, but does not.
        for system in ["/var/run", "/var/lock", "/bin", "/lib", "/usr/tmp"] {
            assert_eq!(link_above(Path::new(system)), None);
        }
    }
}
