//! The fence of a repository: a small commit under its own ref, replaced only in an atomic push.
//!
//! Three kinds of push would accept a stale writer, and are never made: one that does not move the fence checks
//! nothing, one that is not atomic can move the branch alone, and one with `+` for the fence replaces a later one.

use std::fmt;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_core::fence_record::{BODY_MAX, FenceRecord};
use leasehold_core::store::{Failure, FailureKind, Version};

use super::push_output::{self, RefStatus};
use super::tool::{self, Git, GitOutput, THERE};
use super::{FALLBACK_REF, FENCE_REF};
use crate::targets::cas_fence::{CasFence, Exam, Swap};
use crate::targets::{TargetAction, TargetError};
use crate::{clock, random};

/// The outcome of a push is unknown although git reports success.
const NOT_OUR_FENCE: &str = "the server reported success, but its fence is neither the one that was pushed nor a later one. \
    Either somebody replaced the fence without comparing it, or the server does not compare";

/// The empty tree: the content of a fence is the message of its commit.
const EMPTY_TREE: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";

/// How many earlier fences a fence names.
const NAMED: usize = 16;
/// The first word of its author's name. The names of the earlier fences follow.
const AUTHOR: &str = "leasehold";

/// A fence ref and its commit.
#[derive(Clone, Debug)]
pub(super) struct FenceCommit {
    pub(super) name: &'static str,
    pub(super) oid: String,
    /// The known commits that it replaced, the last one first.
    before: Vec<String>,
}

/// Two are equal if they are the same commit under the same ref.
impl PartialEq for FenceCommit {
    fn eq(&self, other: &Self) -> bool {
        (self.name, &self.oid) == (other.name, &other.oid)
    }
}

impl fmt::Display for FenceCommit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.oid, self.name)?;
        self.before.iter().try_for_each(|oid| write!(f, " {oid}"))
    }
}

impl FenceCommit {
    /// Reads a line of `ls-remote`, or of `Display`.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let mut words = line.split([' ', '\t']);
        let (oid, name) = (words.next()?, words.next()?);
        let name = [FENCE_REF, FALLBACK_REF].into_iter().find(|known| *known == name)?;
        Some(Self { name, oid: oid.into(), before: words.map(str::to_owned).collect() })
    }

    /// Whether it is `other`, or came after it.
    fn shows(&self, other: &Self) -> bool {
        self == other || self.before.contains(&other.oid)
    }
}

/// The refs that a push moves besides the fence.
#[derive(Clone, Debug, Default)]
pub(super) struct PushRequest {
    /// `+src:dst`, with full names.
    pub(super) refspecs: Vec<String>,
    /// Further options of `git push`.
    pub(super) options: Vec<String>,
}

impl PushRequest {
    /// The refs on the server.
    fn names(&self) -> Vec<RefStatus> {
        let names = self.refspecs.iter().filter_map(|spec| spec.split_once(':'));
        names.map(|(_, name)| RefStatus { name: name.into(), rejected: None, forced: false }).collect()
    }
}

/// A push that moves the fence from `old` to `new`, and `content` with it.
#[derive(Clone, Copy)]
pub(super) struct FencePush<'a> {
    pub(super) old: Option<&'a FenceCommit>,
    pub(super) new: &'a FenceCommit,
    pub(super) content: Option<&'a PushRequest>,
}

/// One repository.
#[derive(Debug)]
pub(super) struct GitRemote {
    pub(super) shown: String,
    pub(super) git: Git,
    /// The fence that is probably there. It saves a fetch if it is right, and costs one if it is wrong.
    pub(super) hint: Option<(FenceRecord, FenceCommit)>,
    /// The fence that we pushed last.
    pub(super) put: Option<(FenceRecord, FenceCommit)>,
    /// Git's answer for each ref in the last push.
    pub(super) statuses: Vec<RefStatus>,
    /// All refs right after the last push.
    pub(super) listed: Option<String>,
    /// A number in this process, because all share one repository to fetch into.
    number: u64,
}

impl GitRemote {
    pub(super) fn new(shown: &str, git: Git) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let (shown, statuses) = (shown.into(), Vec::new());
        Self { shown, git, hint: None, put: None, statuses, listed: None, number }
    }

    pub(super) fn failed(&self, doing: &'static str, kind: FailureKind, message: String) -> TargetError {
        TargetError::Remote { target: self.shown.clone(), doing, failure: Failure::new(kind, message) }
    }

    pub(super) fn system(&self, doing: &'static str, e: &io::Error) -> TargetError {
        self.failed(doing, FailureKind::Unusable, format!("git could not be run: {e}"))
    }

    pub(super) fn complained(&self, doing: &'static str, said: &GitOutput) -> TargetError {
        if ["mismatched algorithms", "hash algorithm"].iter().any(|words| said.err.contains(words)) {
            let why = "names its objects by SHA-256, which Leasehold does not support yet";
            return super::unfit(&self.shown, why, "Use a repository with SHA-1 object names");
        }
        let kind =
            if push_output::denied(&said.err) { FailureKind::Denied } else { FailureKind::Unreachable };
        self.failed(doing, kind, said.complaint())
    }

    fn bad_fence(&self, name: &str, why: String) -> TargetError {
        TargetError::BadFence { target: self.shown.clone(), fence: format!("the ref {name}"), why }
    }

    /// All refs of the repository, as `ls-remote` prints them.
    pub(super) fn listing(&self) -> Result<String, TargetError> {
        let mut command = self.git.apart();
        // Protocol version 0 lists in one request.
        command.args(["-c", "protocol.version=0", "ls-remote", "--symref", "--", THERE]);
        let said = self.git.run(command, b"").map_err(|e| self.system("look at", &e))?;
        if !said.ok {
            return Err(self.complained("look at", &said));
        }
        String::from_utf8(said.out)
            .map_err(|_| self.failed("look at", FailureKind::Unusable, "its refs are not UTF-8".into()))
    }

    /// Fetches the fence.
    pub(super) fn fetch(&mut self) -> Result<Option<(FenceRecord, FenceCommit)>, TargetError> {
        self.hint = None;
        let mine = format!("refs/there/{}-{}", std::process::id(), self.number);
        // Patterns, because a missing ref would be an error if it were named.
        let patterns = [
            format!("+{FENCE_REF}*:{mine}/{FENCE_REF}*"),
            format!("+{FALLBACK_REF}*:{mine}/{FALLBACK_REF}*"),
        ];
        let mut command = self.git.apart();
        command.args(["fetch", "--quiet", "--prune", "--no-tags", "--refmap=", "--no-auto-gc"]);
        command.args(["--no-write-fetch-head", "--recurse-submodules=no", "--", THERE]).args(patterns);
        let said = self.git.run(command, b"").map_err(|e| self.system("look at", &e))?;
        if !said.ok {
            return Err(self.complained("look at", &said));
        }
        let mut command = self.git.apart();
        let format = "--format=%(objectname) %(refname)%00%(objecttype)%00%(authorname)%00%(contents)%00";
        command.args(["for-each-ref", format, &mine]);
        let said = self.git.run(command, b"").map_err(|e| self.system("look at", &e))?;
        // A fence that cannot be read must not be taken for no fence.
        if !said.ok {
            return Err(self.failed("look at", FailureKind::Unusable, said.complaint()));
        }
        let text = String::from_utf8_lossy(&said.out).into_owned();
        self.the_one(&text.replace(&format!("{mine}/"), ""))
    }

    /// The one fence among the fetched refs.
    fn the_one(&self, text: &str) -> Result<Option<(FenceRecord, FenceCommit)>, TargetError> {
        let mut found = None;
        let fields: Vec<&str> = text.split('\0').collect();
        for entry in fields.chunks_exact(4) {
            let Some(mut at) = FenceCommit::parse(entry[0].trim_start()) else { continue };
            at.before = entry[2].split(' ').skip(1).map(str::to_owned).collect();
            if entry[1] != "commit" {
                return Err(self.bad_fence(at.name, format!("the fence is a {}, not a commit", entry[1])));
            }
            if found.is_some() {
                let why = format!("there are two fences, {FENCE_REF} and {FALLBACK_REF}");
                return Err(self.bad_fence(FALLBACK_REF, why));
            }
            let body = entry[3].as_bytes();
            let body = &body[..body.len().min(BODY_MAX + 1)];
            let record = FenceRecord::decode(body).map_err(|bad| self.bad_fence(at.name, bad.to_string()))?;
            found = Some((record, at));
        }
        Ok(found)
    }

    /// Makes a commit of a fence that can be pushed to replace `old`. Each commit has a random id in it: an equal
    /// commit that was replaced and restored could not be told from one that never moved.
    pub(super) fn successor(
        &self,
        old: Option<&FenceCommit>,
        name: &'static str,
        record: &FenceRecord,
    ) -> Result<FenceCommit, TargetError> {
        // A server may refuse a branch update that is not a fast-forward.
        let parent = old.filter(|at| at.name == FALLBACK_REF);
        let parent = parent.map(|at| format!("parent {}\n", at.oid)).unwrap_or_default();
        let before: Vec<String> = old
            .into_iter()
            .flat_map(|old| std::iter::once(&old.oid).chain(&old.before).take(NAMED))
            .cloned()
            .collect();
        let after: String = before.iter().map(|oid| format!(" {oid}")).collect();
        let who =
            format!("<fence-{:032x}@localhost.invalid> {} +0000", random::seed(), clock::wall().as_secs());
        let head =
            format!("tree {EMPTY_TREE}\n{parent}author {AUTHOR}{after} {who}\ncommitter {AUTHOR} {who}\n\n");
        let mut bytes = head.into_bytes();
        bytes.extend(record.encode());
        let mut command = self.git.apart();
        command.args(["hash-object", "-t", "commit", "-w", "--stdin"]);
        let said = self.git.run(command, &bytes).map_err(|e| self.system("fence", &e))?;
        let oid = String::from_utf8_lossy(&said.out).trim().to_owned();
        match said.ok && !oid.is_empty() {
            true => Ok(FenceCommit { name, oid, before }),
            false => Err(self.complained("fence", &said)),
        }
    }

    /// The command for an atomic push of the fence and the content. Git runs only the hooks in `hooks`.
    pub(super) fn pushing(&self, push: FencePush<'_>, hooks: Option<&Path>) -> Command {
        let FencePush { old, new, content } = push;
        let mut command = if content.is_some() { self.git.inside() } else { self.git.apart() };
        // Push options of the user's settings have reached us as options already, or are not meant for the fence.
        command.args(["-c", "push.pushOption="]);
        if let Some(hooks) = hooks {
            command.arg("-c").arg(tool::flag("core.hooksPath=", hooks));
        }
        command.args(["push", "--porcelain", "--atomic", "--no-follow-tags"]);
        command.args(hooks.is_none().then_some("--no-verify"));
        command.arg("--recurse-submodules=no").args(self.git.other_end());
        command.arg(format!("--force-with-lease={}:{}", new.name, old.map_or("", |at| at.oid.as_str())));
        if let Some(content) = content {
            command.args(&content.options);
        } else {
            command.arg("--no-signed");
        }
        command.args(["--", THERE]);
        if let Some(content) = content {
            command.args(&content.refspecs);
        }
        command.arg(format!("{}:{}", new.oid, new.name));
        command
    }

    /// The outcome of a push that has ended. Success is believed only if the fence shows it, because a server may report
    /// success without comparing.
    pub(super) fn judged(&mut self, push: FencePush<'_>, said: &GitOutput) -> Result<Swap, TargetError> {
        self.statuses = push_output::statuses(&said.out);
        if !took(said, push.new) {
            return self.settle(push, said);
        }
        match self.shows(push.new) {
            Ok(true) => Ok(Swap::Done),
            Ok(false) if push.content.is_some() => {
                let (target, why) = (self.shown.clone(), NOT_OUR_FENCE.into());
                Err(TargetError::InDoubt { target, asked: TargetAction::Write, why })
            }
            Ok(false) => Ok(unknown(NOT_OUR_FENCE)),
            Err(error) => {
                Ok(unknown(format!("git reported success, but the fence could not be read: {error}")))
            }
        }
    }

    /// Whether the repository's fence is `new`, or came after it.
    fn shows(&mut self, new: &FenceCommit) -> Result<bool, TargetError> {
        let listing = self.listing()?;
        let found = listing.lines().find_map(FenceCommit::parse);
        self.listed = Some(listing);
        if found.as_ref() == Some(new) {
            return Ok(true);
        }
        Ok(self.fetch()?.is_some_and(|(_, now)| now.shows(new)))
    }

    /// The outcome of a push that failed. Git's exit code is always 1, so the fence decides.
    fn settle(&mut self, push: FencePush<'_>, said: &GitOutput) -> Result<Swap, TargetError> {
        let FencePush { old, new, content } = push;
        let fence = self.statuses.iter().find(|status| status.name == new.name);
        let answered = self.statuses.iter().any(RefStatus::answered);
        if fence.is_some_and(RefStatus::stale) {
            return Ok(Swap::Conflict);
        }
        if !answered && !said.late && push_output::not_even_tried(&said.err) {
            // Shown by git for each ref.
            let reason = said.complaint();
            self.statuses = content.map(|content| content.names()).unwrap_or_default();
            self.statuses.iter_mut().for_each(|status| status.rejected = Some(reason.clone()));
            return Err(self.failed("push to", FailureKind::Denied, reason));
        }
        if !answered && !said.late && push_output::never_sent(&said.err) {
            return Err(self.unfit(said).unwrap_or_else(|| self.complained("push to", said)));
        }
        let now = match self.fetch() {
            Ok(now) => now.map(|(_, at)| at),
            Err(error @ TargetError::BadFence { .. }) => return Err(error),
            Err(_) => return Ok(unknown(said.complaint())),
        };
        if now.as_ref().is_some_and(|now| now.shows(new)) {
            return Ok(Swap::Done);
        }
        // Without an answer, our fence may have been there before the current one.
        match answered {
            false => Ok(unknown(said.complaint())),
            true if now.as_ref() != old => Ok(Swap::Conflict),
            true => Err(self.rejected(said)),
        }
    }

    /// The error for a server without atomic pushes.
    fn unfit(&self, said: &GitOutput) -> Option<TargetError> {
        said.err.contains("does not support --atomic push").then(|| TargetError::Unfit {
            target: self.shown.clone(),
            why: "is on a server that cannot move several refs in one step (no atomic push), so a branch \
                  could move without its fence"
                .into(),
            fix:
                "Use another or a newer server (receive.advertiseAtomic), or push to your own repository and \
                  mirror that one there"
                    .into(),
        })
    }

    /// The server, or git itself, refused the push, and not because of the fence.
    fn rejected(&self, said: &GitOutput) -> TargetError {
        let mine = |status: &&RefStatus| ![FENCE_REF, FALLBACK_REF].contains(&status.name.as_str());
        let why = |status: &RefStatus| {
            let why = status.rejected.as_deref().filter(|why| *why != "atomic push failed")?;
            Some(format!("{}: {why}", status.name))
        };
        let mut reasons: Vec<String> = self.statuses.iter().filter(mine).filter_map(why).collect();
        if reasons.is_empty() {
            reasons = self.statuses.iter().filter_map(why).collect();
        }
        let remote = said.err.lines().filter_map(|line| line.trim().strip_prefix("remote: "));
        let remote: Vec<&str> = remote.map(str::trim).filter(|line| !line.is_empty()).collect();
        if !remote.is_empty() {
            reasons.push(format!("the server says: {}", remote.join(" ")));
        }
        self.failed("push to", FailureKind::Denied, reasons.join("; "))
    }

    fn attempt(
        &mut self,
        old: Option<&FenceCommit>,
        name: &'static str,
        record: &FenceRecord,
        content: Option<&PushRequest>,
        exam: Exam,
    ) -> Result<Swap, TargetError> {
        let new = self.successor(old, name, record)?;
        let swap = match exam {
            Exam::Wanted => self.overtaken(old, &new, record)?,
            Exam::Spared => {
                let push = FencePush { old, new: &new, content };
                let command = self.pushing(push, None);
                let run =
                    if content.is_some() { self.git.run_shown(command) } else { self.git.run(command, b"") };
                let said = run.map_err(|e| self.system("push to", &e))?;
                self.judged(push, &said)?
            }
        };
        if swap == Swap::Done {
            self.put = Some((record.clone(), new));
        }
        Ok(swap)
    }

    fn replaced(
        &mut self,
        at: Option<&FenceCommit>,
        record: &FenceRecord,
        content: Option<&PushRequest>,
        exam: Exam,
    ) -> Result<Swap, TargetError> {
        if let Some(at) = at {
            return self.attempt(Some(at), at.name, record, content, exam);
        }
        let first = match self.attempt(None, FENCE_REF, record, content, exam) {
            Err(error @ TargetError::Remote { .. }) if !self.statuses.is_empty() => error,
            other => return other,
        };
        // The server may accept only branches and tags: try the branch.
        match self.attempt(None, FALLBACK_REF, record, content, exam) {
            Err(error @ TargetError::Unfit { .. }) => Err(error),
            Err(_) => Err(TargetError::Unfit {
                target: self.shown.clone(),
                why: format!(
                    "takes neither {FENCE_REF} nor {FALLBACK_REF}, so it has no place for a fence ({first})"
                ),
                fix: "Allow one of the two on the server".into(),
            }),
            other => other,
        }
    }
}

fn parsed(at: Option<&Version>) -> Option<FenceCommit> {
    at.and_then(|Version(line)| FenceCommit::parse(line))
}

/// Git does not tell whether it pushed the fence.
pub(super) fn unknown(why: impl Into<String>) -> Swap {
    Swap::Unknown(Failure::new(FailureKind::Unreachable, why))
}

/// Whether git reports that the fence was pushed.
pub(super) fn took(said: &GitOutput, new: &FenceCommit) -> bool {
    let statuses = push_output::statuses(&said.out);
    said.ok && statuses.iter().any(|status| status.name == new.name && status.rejected.is_none())
}

impl CasFence for GitRemote {
    type Content = PushRequest;

    fn shown(&self) -> &str {
        &self.shown
    }

    /// The version is the ref and its commit, as [`FenceCommit::parse`] reads it.
    fn load(&mut self) -> Result<Option<(FenceRecord, Version)>, TargetError> {
        let found = match self.hint.take() {
            Some(hint) => Some(hint),
            None => self.fetch()?,
        };
        Ok(found.map(|(record, at)| (record, Version(at.to_string()))))
    }

    fn swap(
        &mut self,
        at: Option<&Version>,
        record: &FenceRecord,
        content: Option<&PushRequest>,
    ) -> Result<Swap, TargetError> {
        // A push of the fence alone needs no clone around us.
        let content = content.filter(|content| !content.refspecs.is_empty());
        self.replaced(parsed(at).as_ref(), record, content, Exam::Spared)
    }

    fn examine(&mut self) -> Result<Swap, TargetError> {
        let Some((record, at)) = self.fetch()? else { return Ok(Swap::Conflict) };
        self.replaced(Some(&at), &record, None, Exam::Wanted)
    }

    fn swap_examined(
        &mut self,
        at: Option<&Version>,
        record: &FenceRecord,
    ) -> Option<Result<Swap, TargetError>> {
        Some(self.replaced(parsed(at).as_ref(), record, None, Exam::Wanted))
    }
}
