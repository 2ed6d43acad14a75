//! Targets on a file system of this machine: a file, a tree of files.
//!
//! ```text
//! today.json                        the artefact
//! .today.json.leasehold-fence       who may write it, and what was written last
//! .today.json.leasehold-lock        the critical section; kept for ever
//! .today.json.leasehold-new-<id>    a payload on its way
//! ```
//!
//! The payload is on disk under its own name before anything else. Then, under the lock: settle what
//! a dead writer left pending; ask the rule; fence `pending`, naming the payload; put it in place; fence
//! `done`. Each step is durable before the next, so the fence is never behind the artefact, and a crash
//! leaves either nothing or a `pending` that whoever comes next finishes, or takes back if the payload is
//! gone.
//!
//! A writer that is frozen before the lock finds, when it wakes, whatever was sealed meanwhile. One
//! that is frozen under it keeps everybody out until it goes on or is ended. If its files were removed
//! meanwhile it finds that out, and changes nothing (see the module `inside`). On a network mount locks
//! can be lost behind a client's back, so there the class is [`Class::Gate`].

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

/// How long to wait for the critical section: it takes milliseconds, so something hangs.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Longest name of an artefact: the names beside it must fit into a directory too.
const NAME_MAX: usize = 255 - ".".len() - ".leasehold-new-".len() - 64;

/// What kind of thing is replaced, and how it is staged and put in place.
pub trait FileKind: fmt::Debug + Send {
    /// What comes before the path in its URL.
    const SCHEME: &'static str;

    /// What can be promised, on a file system of this machine or elsewhere.
    fn class(&self, local: bool) -> Class {
        if local { Class::Atomic } else { Class::Gate }
    }

    /// Whether what is there may be replaced; if not, what is wrong with it and what to do.
    fn fit(&self, beside: &DirFence) -> io::Result<Result<(), (String, String)>>;

    /// Writes the content to the disk under a name of its own.
    fn stage<'a>(&self, beside: &'a DirFence, content: Content<'_>) -> io::Result<StagedPayload<'a>>;

    /// Puts a staged payload in place; again, if somebody died in the middle of it. An error means that it
    /// is not in place.
    fn place(
        &self,
        beside: &DirFence,
        inside: &CriticalSection,
        payload: &str,
        fence: &Fence,
    ) -> io::Result<()>;

    /// The digest of a payload that is staged and may be put in place.
    fn waiting(&self, beside: &DirFence, payload: &str, fence: &Fence) -> io::Result<Option<String>>;

    /// The digest of what is in place.
    fn present(&self, beside: &DirFence, fence: &Fence) -> io::Result<Option<String>>;

    /// What is there now, in a word.
    fn fingerprint(&self, beside: &DirFence) -> Option<String>;

    /// Removes what nobody needs any more. Best effort: nothing depends on it.
    fn sweep(&self, beside: &DirFence, current: &Fence);

    /// Hands on what is in place; false: nothing is. None: this kind has no bytes to hand on.
    fn read(&self, _beside: &DirFence, _to: &mut dyn io::Write) -> Option<io::Result<bool>> {
        None
    }
}

/// Where the links are the system's own and stay as they are: /home, /var/run. Root may write there as well.
const SYSTEM: [&str; 3] = ["/", "/usr", "/var"];

/// The last link on the way to this directory that this user could point elsewhere.
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
    /// What was there when this run sealed it: see [`LockTarget::look`].
    found: Option<String>,
    /// What happened on the way, for whoever asks in the end.
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
                "does not end in a name: the fence lies beside the artefact, under a name made from its own",
                "Name the artefact itself, without a slash at the end",
            ));
        };
        if name.len() > NAME_MAX {
            return Err(unfit("has a name too long to keep a fence beside it", "Use a shorter one"));
        }
        if name.contains(MARK) {
            return Err(unfit("is kept by Leasehold for another artefact", "Name that one"));
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
                "{shown} is behind the link {}: its fence lies where that points to now, and a run that finds the link \
                 pointing elsewhere is not held off by it. Name the real path to have one fence",
                link.display()
            )
        });
        let (patience, found, noticed) = (PATIENCE, None, RefCell::default());
        Ok(Self { beside, shown, class, patience, artefact, caution, found, noticed })
    }

    /// Takes a place in the fence for something that is not written by us, and stays inside: what was done
    /// is called `digest`.
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
            // The number is a fresh one, so nothing is a repetition.
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
            // Whatever it names would be renamed: only what we made ourselves.
            Some(pending) if !pending.temp.starts_with(&prefix) => {
                Err(self.bad_fence("the fence names a file that is no payload of ours"))
            }
            _ => Ok(record),
        }
    }

    /// Puts an accepted payload in place: fence `pending`, the payload itself, fence `done`.
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
        let announced = self.beside.replace_fence(inside, &record.encode());
        let said = announced.is_ok();
        let place = |()| self.artefact.place(&self.beside, inside, &payload.name, &record.fence);
        if let Err(source) = announced.and_then(place) {
            let ours = self.decoded(self.beside.read_fence_inside(inside));
            let ours = ours.is_ok_and(|now| now.as_ref() == Some(&record));
            let restored = ours && self.beside.replace_fence(inside, &before.encode()).is_ok();
            if restored || !(ours || said) {
                return Err(self.io("write", source));
            }
            // Whoever comes next finishes it, or came already: it is not for us to touch that one's fence.
            payload.keep();
            return Err(TargetError::Unknown { target: self.shown.clone(), source });
        }
        payload.keep();
        self.beside.sync().map_err(|source| TargetError::Unknown { target: self.shown.clone(), source })?;
        // It is written and announced; if this fails, whoever comes next sees that and says `done`.
        let _ = self.beside.replace_fence(inside, &record.finished().encode());
        Ok(())
    }

    /// The fence, with nothing pending: what a dead writer left is finished, or taken back if its
    /// payload is gone and the artefact is not it.
    fn settled(&self, inside: &mut CriticalSection) -> Result<Option<FenceRecord>, TargetError> {
        let stored = self.decoded(self.beside.read_fence_inside(inside))?;
        let Some((record, pending)) = stored.as_ref().and_then(|r| Some((r, r.pending.as_ref()?))) else {
            return Ok(stored);
        };
        let io = |e| self.io("settle an unfinished write of", e);
        let (fence, wanted) = (&record.fence, Some(&record.fence.digest));
        let waiting = self.artefact.waiting(&self.beside, &pending.temp, fence).map_err(io)?;
        let present = self.artefact.present(&self.beside, fence).map_err(io)?;
        // Somebody may have changed it by hand since: that is not written over for the sake of a dead writer,
        // whom nobody was told about.
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
            // It was put in place, whatever became of it since: taken back, it would be done again and not be seen.
            record.finished()
        } else {
            record.taken_back()
        };
        self.beside.replace_fence(inside, &settled.encode()).map_err(io)?;
        self.beside.discard(&pending.temp);
        Ok(Some(settled))
    }

    /// What is there, in a word that is another once it was written. A change of its mode or a link more is none.
    fn look(&self) -> io::Result<String> {
        let word = |s: Stat| format!("{}.{}.{}.{}", s.st_ino, s.st_size, s.st_mtime, s.st_mtime_nsec);
        Ok(self.beside.look()?.map_or_else(String::new, word))
    }

    /// What was written without asking the fence while this run had it, as far as can be told.
    fn went_round(&self, bearer: &Bearer) -> Option<String> {
        let FenceRecord { fence, pending, .. } = self.stored().ok()??;
        // Somebody else's write may have been let in; one that was killed half way has not changed anything yet.
        if fence.grant != bearer.grant || fence.mode == FenceMode::Observe || pending.is_some() {
            return None;
        }
        let (changed, how) = match fence.seq {
            0 => (self.look().ok()? != *self.found.as_ref()?, "as this run found it"),
            _ => {
                (self.artefact.fingerprint(&self.beside)? != fence.digest, "as the last fenced write left it")
            }
        };
        // Another run may have sealed it while we looked.
        let still = self.stored().ok()??.fence == fence;
        (changed && still).then(|| {
            let shown = &self.shown;
            format!(
                "{shown} was changed past its fence: it is not {how}. A plain `>` is not checked, so a run that \
                 was overtaken could do that too. Write it by: leasehold write {shown}"
            )
        })
    }

    fn committed(&self, file: &Path, why: &io::Error) {
        self.noticed.borrow_mut().push(format!(
            "git does not ignore the lock and the fence beside {}, for {} cannot be written ({why}): add the line {} there",
            self.shown,
            file.display(),
            git_exclude::PATTERN
        ));
    }

    fn kept(&self, fence: &Fence) -> String {
        format!(
            "{} was changed by hand after a run with token {} had died writing it: what is there was kept, \
             and that write was taken back",
            self.shown, fence.token
        )
    }

    fn fit(&self) -> Result<(), TargetError> {
        if self.beside.is_mount_point() {
            return Err(TargetError::Unfit {
                target: self.shown.clone(),
                why: "is a mount point, which nothing can be put in the place of".into(),
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
        // First without the lock, whose file would be left beside what is refused.
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
        self.beside.replace_fence(&mut inside, &record.encode()).map_err(|e| self.io("seal", e))?;
        self.beside.sweep();
        // Also later: a repository may be made around it.
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
        // First without the lock, whose file would be left beside what was never sealed.
        if self.stored()?.is_none() {
            return refused(RefusalReason::NotSealed, None);
        }
        let mut inside = self.go_in()?;
        self.fit()?;
        payload.take_over(&self.beside).map_err(|e| self.io("write", e))?;
        let stored = self.settled(&mut inside)?;
        let fence = stored.as_ref().map(|stored| &stored.fence);
        // The rule looks at the grant before it looks at the number, so any number will do for others.
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
                // Before it is counted: the count may fail, and with it the sync that is part of it.
                self.beside.sync().map_err(|e| TargetError::InDoubt {
                    target: self.shown.clone(),
                    asked: TargetAction::Write,
                    why: format!("it is in place, and may not be after a power cut ({e})"),
                })?;
                // Counted after the fact: a watched write must not fail for the sake of its count.
                let record = FenceRecord::done(counted).after(Some(stored));
                let _ = self.beside.replace_fence(&mut inside, &record.encode());
                Ok(written(false, Some(refusal)))
            }
            (FenceVerdict::Refuse(reason), _) => refused(reason, fence),
            // The rule lets nobody write what was never sealed.
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
            None => ("is no single file", "Read it with the tools for its kind"),
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
        // Of those that there are on most machines: root may replace them, and does not.
        for system in ["/var/run", "/var/lock", "/bin", "/lib", "/usr/tmp"] {
            assert_eq!(link_above(Path::new(system)), None);
        }
    }
}
