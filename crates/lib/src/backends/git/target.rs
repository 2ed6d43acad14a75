//! A git repository as a target: a branch moves only together with its fence.
//!
//! ```text
//! refs/leasehold/fence           a commit without parents; its message is the fence
//! refs/heads/leasehold-fence     the same as a branch, if a server accepts nothing else
//! ```
//!
//! Sealing replaces that commit. A push replaces it too, with one that has the next number, in the same atomic
//! push as the branches: `git push --atomic --force-with-lease=FENCE:OLD`. The server compares the old fence
//! under its own lock on the ref. So a push that was paused anywhere, even inside the server, finds another
//! fence when it continues, and moves nothing.
//!
//! Settings in the environment (see [`super::url_rewrite`]) send a job's plain `git push` here, through our remote
//! helper (see [`super::remote_helper`]).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::fence::{Bearer, Fence, FenceMode};
use leasehold_core::fence_record::FenceRecord;
use sha2::{Digest, Sha256};

use super::hook;
use super::remote::{FenceCommit, GitRemote, PushRequest};
use super::repo_url::{self, RepoIdentity};
use super::run_dir::{self, RunDir, as_io};
use super::tool::{self, Git};
use super::url_rewrite::{self, Detour};
use super::{FALLBACK_REF, FENCE_REF, shown, unfit};
use crate::clock;
use crate::state::StateDir;
use crate::targets::cas_fence::{self, Exam};
use crate::targets::{Class, Content, Sealed, Target, TargetError, Variables, Written};

/// The oldest git that takes settings from the environment; `--atomic` over HTTP came with 2.24.
const OLDEST: (u32, u32) = (2, 31);

/// The prefix of a digest of all branches and tags, which a run in observe mode records. The digest of a push
/// has no prefix, so the two are never equal.
const LOOK: &str = "refs:";

/// Whether an update of a branch may be something else than a fast-forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchUpdate {
    /// Git rejects it, as usual.
    FastForward,
    /// As with `git push --force`.
    Forced,
}

/// A repository to which only the holder of a lease may push.
#[derive(Debug)]
pub struct GitTarget {
    given: String,
    shown: String,
    /// Where to keep the files that git needs. None: in the user's state directory.
    state: Option<StateDir>,
    /// How long a seal may take.
    patience: Duration,
    found: Option<OpenedRepo>,
}

/// Found by the first call.
#[derive(Debug)]
struct OpenedRepo {
    state: StateDir,
    remote: GitRemote,
    number: usize,
    run_dir: Arc<RunDir>,
    /// The settings for the job's environment, after sealing.
    detour: Option<Detour>,
    /// The branches and tags right after sealing.
    before: Option<BTreeMap<String, String>>,
    /// The refs that this process pushed, apart from the job's pushes.
    pushed: String,
}

/// The result of the comparison after a run.
#[derive(Debug, PartialEq, Eq)]
enum Comparison {
    /// No sign of a push that bypassed the fence.
    Clean,
    /// These refs have other commits than the fenced pushes left. The number is the later token that the fence has
    /// now, if it is not ours any more.
    Moved(Vec<String>, Option<u64>),
    /// The notes for the comparison are gone.
    NoNotes,
}

impl GitTarget {
    /// Opens a URL, a path, or the name of a remote of the clone around us.
    pub fn open(given: &str) -> Result<Self, TargetError> {
        let shown = shown(given);
        if given.is_empty() || given.starts_with('-') {
            return Err(TargetError::Unfit {
                target: shown,
                why: "names no repository".into(),
                fix: "Write git: and a URL, a path or the name of a remote: git:origin".into(),
            });
        }
        Ok(Self { given: given.into(), shown, state: None, patience: tool::PATIENCE, found: None })
    }

    /// Gives up sealing after this time instead of after a minute.
    #[cfg(feature = "conformance")]
    #[must_use]
    pub fn giving_up_after(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Keeps the files that git needs in this state directory instead of the user's own. All targets of one run
    /// must use the same one.
    #[must_use]
    pub fn keeping_in(self, state: StateDir) -> Self {
        Self { state: Some(state), ..self }
    }

    /// The digest of a push: its refs and their new commits, in any order.
    pub fn digest<'a>(moves: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
        let mut lines: Vec<String> = moves.into_iter().map(|(name, oid)| format!("{oid} {name}\n")).collect();
        lines.sort();
        let hash = Sha256::digest(lines.concat().as_bytes());
        hash.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn found(&mut self) -> Result<&mut OpenedRepo, TargetError> {
        if self.found.is_none() {
            self.found = Some(self.find()?);
        }
        self.found.as_mut().ok_or_else(|| unfit(&self.shown, "cannot be found", "Check the URL"))
    }

    fn find(&self) -> Result<OpenedRepo, TargetError> {
        let target = &self.shown;
        match tool::version() {
            Ok(Some(version)) if version >= OLDEST => {}
            Ok(Some((major, minor))) => {
                let why =
                    format!("needs git {}.{} or later, and this is {major}.{minor}", OLDEST.0, OLDEST.1);
                return Err(unfit(target, &why, "Install a newer git on this machine"));
            }
            _ => return Err(unfit(target, "needs git, which is not installed here", "Install git")),
        }
        let mut urls = url_rewrite::urls_of(&self.given)?;
        let Some(url) = urls.first().cloned() else {
            if let Some(said) = url_rewrite::distrust() {
                let why = format!("is a name in a clone that git does not trust: {said}");
                return Err(unfit(
                    target,
                    &why,
                    "Follow git's advice, or start the run as the owner of the clone",
                ));
            }
            let why = "is no remote of the clone in this directory, no URL and no path";
            return Err(unfit(target, why, "Write its URL, or start the run in the clone"));
        };
        urls.extend(url_rewrite::also_called(&urls));
        let system = |source| TargetError::Io {
            target: target.clone(),
            doing: "create the files that git needs for",
            source,
        };
        let state = match &self.state {
            Some(state) => state.clone(),
            None => StateDir::locate(|name| std::env::var_os(name)).map_err(as_io).map_err(system)?,
        };
        let run_dir = RunDir::shared(&state).map_err(system)?;
        let number = run_dir.guard(&url, &urls).map_err(system)?;
        let remote = GitRemote::new(target, Git::new(Arc::clone(&run_dir), &url));
        let (detour, before, pushed) = (None, None, String::new());
        Ok(OpenedRepo { state, remote, number, run_dir, detour, before, pushed })
    }

    /// Pushes these commits to these refs, as number `seq` of this run, or as its next. The objects come from the
    /// repository around us.
    pub fn push(
        &mut self,
        bearer: &Bearer,
        seq: Option<u64>,
        update: BranchUpdate,
        moves: &[(&str, &str)],
    ) -> Result<Written, TargetError> {
        let found = self.found()?;
        let plus = if update == BranchUpdate::Forced { "+" } else { "" };
        let refspecs = moves.iter().map(|(name, oid)| format!("{plus}{oid}:{name}")).collect();
        let push = PushRequest { refspecs, options: Vec::new() };
        let digest = Self::digest(moves.iter().copied());
        let written = cas_fence::write(&mut found.remote, bearer, seq, &digest, &push)?;
        let lines: Vec<String> = moves.iter().map(|(name, oid)| format!("{name} {oid}\n")).collect();
        found.pushed.push_str(&lines.concat());
        found.run_dir.note(found.number, &lines.concat());
        found.learn();
        Ok(written)
    }

    fn sealed(&mut self, bearer: &Bearer, mode: FenceMode, exam: Exam) -> Result<Sealed, TargetError> {
        let (shown, patience) = (self.shown.clone(), self.patience);
        let found = self.found()?;
        if mode == FenceMode::Enforce && hook::goes_live(&found.remote.git.url) {
            return Err(unfit(&shown, hook::LIVE, hook::LIVE_FIX));
        }
        // First, because without these settings the job would push without the fence.
        let detour = url_rewrite::detour(&found.run_dir).map_err(|source| TargetError::Io {
            target: shown,
            doing: "send the job's pushes through the fence of",
            source,
        })?;
        found.detour = Some(detour);
        found.remote.listed = None;
        found.remote.git.until = Some(clock::boot_time().plus(patience));
        let sealed = cas_fence::seal(&mut found.remote, bearer, mode, exam);
        found.remote.git.until = None;
        let sealed = sealed?;
        // This run had sealed it already, so the fence there is ours.
        if found.remote.put.is_none() {
            found.remote.put = found.remote.fetch()?;
        }
        found.learn();
        // The refs right after the seal.
        let listed = found.remote.listed.take().or_else(|| found.remote.listing().ok());
        found.before = listed.map(|listing| sorted(&listing).0);
        Ok(sealed)
    }
}

impl OpenedRepo {
    /// Writes our fence down for the helper.
    fn learn(&mut self) {
        if let Some((record, at)) = &self.remote.put {
            self.run_dir.remember(self.number, record, at);
        }
    }

    fn branches(&self) -> Option<(BTreeMap<String, String>, Option<String>)> {
        branches(&self.remote)
    }

    /// The same with a new run directory, because the old one is gone. It has another path: processes of the job that
    /// are still alive would find it empty, and take no URL for guarded.
    fn branches_anew(&self) -> Option<(BTreeMap<String, String>, Option<String>)> {
        let run_dir = Arc::new(RunDir::new(&self.state).ok()?);
        branches(&GitRemote::new(&self.remote.shown, Git::new(run_dir, &self.remote.git.url)))
    }

    /// The fence as this run left it, and the refs that it pushed. The job's pushes are noted in the run directory.
    fn notes(&self) -> Option<(FenceCommit, String)> {
        let own = self.remote.put.as_ref().map(|(_, at)| at.clone());
        if self.run_dir.targets().is_err() {
            return Some((own?, self.pushed.clone()));
        }
        Some((self.run_dir.known(self.number)?.1, self.run_dir.noted(self.number)))
    }

    /// The token of a later run that has sealed and not pushed yet, so that it has moved no branch.
    fn only_sealed_since(&self, ours: &Bearer) -> Option<u64> {
        let (record, _) = GitRemote::new(&self.remote.shown, self.remote.git.clone()).fetch().ok()??;
        let later = record.fence.token.get();
        (record.fence.seq == 0 && later > ours.token.get()).then_some(later)
    }

    fn look_back(&self, bearer: &Bearer) -> Comparison {
        let Some(mut expected) = self.before.clone() else { return Comparison::Clean };
        let gone = self.run_dir.targets().is_err();
        let (now, fence) = match if gone { self.branches_anew() } else { self.branches() } {
            Some((now, Some(fence))) => (now, fence),
            _ => return if gone { Comparison::NoNotes } else { Comparison::Clean },
        };
        let Some((at, pushed)) = self.notes() else { return Comparison::NoNotes };
        // The fence of another run, which may have moved the branches. Without our notes it may also be our own.
        let mut later = None;
        if fence != at.oid {
            later = self.only_sealed_since(bearer).filter(|_| !gone);
            if later.is_none() {
                return if gone { Comparison::NoNotes } else { Comparison::Clean };
            }
        }
        let mut doubtful = Vec::new();
        for (name, oid) in pushed.lines().filter_map(|line| line.split_once(' ')) {
            if let Some(name) = name.strip_prefix(run_dir::DOUBT) {
                doubtful.push((name, oid));
            }
            if !is_watched(name) {
                continue;
            }
            if oid.is_empty() {
                expected.remove(name);
            } else {
                expected.insert(name.into(), oid.into());
            }
        }
        let names: std::collections::BTreeSet<&String> = now.keys().chain(expected.keys()).collect();
        let may_be = |name: &String| {
            let oid = now.get(name).map_or("", String::as_str);
            doubtful.contains(&(name.as_str(), oid))
        };
        let is_moved = |name: &&String| now.get(*name) != expected.get(*name) && !may_be(name);
        let moved: Vec<String> = names.into_iter().filter(is_moved).cloned().collect();
        match (moved.is_empty(), gone) {
            (false, _) => Comparison::Moved(moved, later),
            (true, true) => Comparison::NoNotes,
            (true, false) => Comparison::Clean,
        }
    }
}

/// The repository's branches and tags, and its fence.
fn branches(remote: &GitRemote) -> Option<(BTreeMap<String, String>, Option<String>)> {
    Some(sorted(&remote.listing().ok()?))
}

fn sorted(listing: &str) -> (BTreeMap<String, String>, Option<String>) {
    let (mut branches, mut fence) = (BTreeMap::new(), None);
    for (oid, name) in listing.lines().filter_map(|line| line.split_once('\t')) {
        if name == FENCE_REF || name == FALLBACK_REF {
            fence = Some(oid.to_owned());
        } else if is_watched(name) {
            branches.insert(name.to_owned(), oid.to_owned());
        }
    }
    (branches, fence)
}

/// Whether the ref is compared after the run. A server may use others itself, such as refs/for/main.
fn is_watched(name: &str) -> bool {
    name.starts_with("refs/heads/") || name.starts_with("refs/tags/") && !name.ends_with("^{}")
}

impl Target for GitTarget {
    fn shown(&self) -> &str {
        &self.shown
    }

    fn class(&self) -> Class {
        Class::Atomic
    }

    fn forget(&mut self) -> Result<Option<Fence>, TargetError> {
        let fix = "From outside a run: git push URL :refs/leasehold/fence (docs/targets/git.md)";
        Err(unfit(&self.shown, "has a fence that only git can remove", fix))
    }

    fn seal(&mut self, bearer: &Bearer, mode: FenceMode) -> Result<Sealed, TargetError> {
        self.sealed(bearer, mode, Exam::Spared)
    }

    /// None for a repository on this machine, where git itself compares.
    fn server(&mut self) -> Result<Option<String>, TargetError> {
        Ok(match repo_url::identity(&self.found()?.remote.git.url) {
            RepoIdentity::Local(_) => None,
            RepoIdentity::Host { host, port, path } => {
                let port = port.map(|port| format!(":{port}")).unwrap_or_default();
                Some(format!("git:{host}{port}/{path}"))
            }
        })
    }

    fn seal_examined(&mut self, bearer: &Bearer, mode: FenceMode) -> Result<Sealed, TargetError> {
        self.sealed(bearer, mode, Exam::Wanted)
    }

    fn examine(&mut self) -> Result<(), TargetError> {
        cas_fence::examine(&mut self.found()?.remote)
    }

    fn write(&mut self, _: &Bearer, _: Option<u64>, _: Content<'_>) -> Result<Written, TargetError> {
        Err(unfit(
            &self.shown,
            "is a repository, to which leasehold write cannot write",
            "Commit, then use leasehold push, or plain git push inside the run",
        ))
    }

    fn show(&mut self) -> Result<Option<FenceRecord>, TargetError> {
        Ok(self.found()?.remote.fetch()?.map(|(record, _)| record))
    }

    fn set_mode(&mut self, mode: FenceMode) -> Result<(), TargetError> {
        cas_fence::set_mode(&mut self.found()?.remote, mode)
    }

    fn environment(&self, _bearer: &Bearer, has: Variables<'_>) -> Vec<(OsString, OsString)> {
        let detour = self.found.as_ref().and_then(|found| found.detour.as_ref());
        detour.map(|detour| detour.variables(has)).unwrap_or_default()
    }

    /// A digest of all branches and tags. None if the fence has the digest of a push.
    fn fingerprint(&mut self) -> Option<String> {
        let found = self.found().ok()?;
        let ours = found.remote.put.is_some();
        let stored = if ours { None } else { found.remote.fetch().ok()? };
        if stored.is_some_and(|(record, _)| record.fence.seq > 0 && !record.fence.digest.starts_with(LOOK)) {
            return None;
        }
        let (branches, _) = found.branches()?;
        let all = branches.iter().map(|(name, oid)| (name.as_str(), oid.as_str()));
        Some(format!("{LOOK}{}", Self::digest(all)))
    }

    fn remember(&mut self, bearer: &Bearer, fingerprint: &str) -> Result<(), TargetError> {
        let found = self.found()?;
        cas_fence::write(&mut found.remote, bearer, None, fingerprint, &PushRequest::default())?;
        found.learn();
        Ok(())
    }

    fn aftermath(&mut self, bearer: &Bearer) -> Option<String> {
        let shown = &self.shown;
        let (moved, later) = match self.found.as_ref()?.look_back(bearer) {
            Comparison::Clean => return None,
            Comparison::Moved(moved, later) => (moved, later),
            Comparison::NoNotes => {
                return Some(format!(
                    "the directory that this run kept for git is gone or damaged, so it is unknown whether a \
                     push bypassed the fence of {shown}. Later pushes of the job were refused. Look at what \
                     was pushed, and make sure that the job removes no files from the state directory"
                ));
            }
        };
        let names = moved.join(", ");
        if let Some(later) = later {
            return Some(format!(
                "perhaps a push bypassed the fence of {shown}: {names} changed, but not by a fenced push of \
                 this run. A later run (token {later}) has fenced the repository but pushed nothing, so a run \
                 in between pushed, or this job or somebody else pushed without Leasehold. Look at what was \
                 pushed"
            ));
        }
        Some(format!(
            "a push bypassed the fence of {shown}: {names} changed, but not by a fenced push of this run. \
             Somebody pushed without Leasehold, or this job did (env -i, gh, a REST call). Look at what was \
             pushed; to have the server refuse that, see `leasehold push --install-hook`"
        ))
    }
}
