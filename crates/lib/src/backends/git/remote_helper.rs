//! The remote helper `git-remote-leasehold`, which git runs for a guarded URL.
//!
//! Git sends commands line by line (gitremote-helpers(7)). The helper runs git again with the real URL, to list and
//! to fetch; and to push, in one atomic push with the fence. A push to a URL that only begins like a guarded one is
//! passed on unchanged.

use std::io::{self, BufRead, Write};
use std::sync::Arc;

use leasehold_core::fence::{Bearer, FenceOffer, FenceVerdict, next_seq, verdict};
use leasehold_core::store::FailureKind;

use super::push_output::{self, RefStatus};
use super::remote::{FenceCommit, GitRemote, PushRequest};
use super::run_dir::{DOUBT, PREFIX, RunDir};
use super::tool::{Git, THERE};
use super::{FALLBACK_REF, FENCE_REF, GitTarget, repo_url, unfit};
use crate::host::Enclosing;
use crate::targets::{Refused, RefusedAction, TargetError, cas_fence};

/// A message for people.
#[derive(Clone, Copy, Debug)]
pub enum HelperNotice<'a> {
    /// The command failed.
    Failed(&'a TargetError),
    /// The push would have been refused; the target only observes.
    LetIn(&'a Refused),
}

/// Serves git until git ends. `tell` gets the messages for people. Returns whether all commands succeeded.
pub fn serve(
    url: &str,
    input: impl BufRead,
    output: impl Write,
    tell: &mut dyn FnMut(HelperNotice<'_>),
) -> io::Result<bool> {
    let url = repo_url::without_secret_scheme(url.strip_prefix(PREFIX).unwrap_or(url));
    let shown = format!("git:{}", repo_url::shown(url));
    // If it is unknown whether the URL is guarded, nothing is pushed.
    let around = RunDir::around().and_then(|run_dir| {
        let number = run_dir.as_ref().map(|run_dir| run_dir.find(url)).transpose()?.flatten();
        Ok(run_dir.map(|run_dir| (run_dir, number)))
    });
    let (run_dir, number) = match around {
        Ok(Some(around)) => around,
        Ok(None) => {
            let why = "was reached through Leasehold's helper outside of a run";
            let fix = "Start it in a run: leasehold run NAME --fence git:URL -- COMMAND";
            tell(HelperNotice::Failed(&unfit(&shown, why, fix)));
            return Ok(false);
        }
        Err(e) => {
            let why = format!("cannot be pushed to under the fence: {e}");
            tell(HelperNotice::Failed(&unfit(&shown, &why, "Start the run again")));
            return Ok(false);
        }
    };
    let run_dir = Arc::new(run_dir);
    let remote = GitRemote::new(&shown, Git::new(Arc::clone(&run_dir), url));
    let wishes = GitOptions::default();
    let bearer = Enclosing::from_env(|name| std::env::var(name).ok()).map(Bearer::from);
    Helper { run_dir, number, remote, bearer, wishes, output, tell }.talk(input)
}

/// Git's options for the next push or fetch.
#[derive(Debug, Default)]
struct GitOptions {
    dry_run: bool,
    atomic: bool,
    progress: bool,
    signed: bool,
    /// `REF:OLD`
    leases: Vec<String>,
    push_options: Vec<String>,
    fetch: Vec<String>,
}

/// One `push` line.
struct Move {
    force: bool,
    source: String,
    name: String,
}

struct Helper<'a, W> {
    run_dir: Arc<RunDir>,
    /// None: not guarded.
    number: Option<usize>,
    remote: GitRemote,
    bearer: Option<Bearer>,
    wishes: GitOptions,
    output: W,
    tell: &'a mut dyn FnMut(HelperNotice<'_>),
}

impl<W: Write> Helper<'_, W> {
    fn talk(mut self, mut input: impl BufRead) -> io::Result<bool> {
        let mut line = String::new();
        loop {
            line.clear();
            if input.read_line(&mut line)? == 0 {
                return Ok(true);
            }
            let (word, rest) = line.trim_end_matches('\n').split_once(' ').unwrap_or((line.trim_end(), ""));
            let fine = match word {
                "" => return Ok(true),
                "capabilities" => self.say("option\nfetch\npush\n\n")?,
                "option" => {
                    let answer = self.wishes.hear(rest);
                    self.say(&format!("{answer}\n"))?
                }
                "list" => self.list(rest == "for-push")?,
                "fetch" => {
                    let batch = batch(rest, &mut input, "fetch ")?;
                    self.fetch(&batch)?
                }
                "push" => {
                    let batch = batch(rest, &mut input, "push ")?;
                    self.push(&batch)?
                }
                // Git ends when we do.
                _ => false,
            };
            if !fine {
                return Ok(false);
            }
        }
    }

    fn say(&mut self, text: &str) -> io::Result<bool> {
        self.output.write_all(text.as_bytes())?;
        self.output.flush()?;
        Ok(true)
    }

    fn list(&mut self, for_push: bool) -> io::Result<bool> {
        let listing = match self.remote.listing() {
            Ok(listing) => listing,
            Err(error) => return Ok(self.failed(&error)),
        };
        let fence = listing.lines().find_map(FenceCommit::parse);
        if for_push && self.number.is_some() && !self.may_push(fence.as_ref()) {
            return Ok(false);
        }
        let mut text = String::new();
        let known = |target: &str| listing.lines().any(|line| line.ends_with(&format!("\t{target}")));
        let symbolic: Vec<(&str, &str)> = listing
            .lines()
            .filter_map(|line| line.strip_prefix("ref: ")?.split_once('\t'))
            .filter(|(target, _)| known(target))
            .collect();
        for (first, name) in listing.lines().filter_map(|line| line.split_once('\t')) {
            // The fence is hidden, so that a mirror push does not delete it. HEAD is no ref to push to.
            if for_push && (is_fence(name) || !name.starts_with("refs/")) {
                continue;
            }
            let to = symbolic.iter().find(|(_, symbol)| *symbol == name).map(|(to, _)| to);
            match (to, first.starts_with("ref: ")) {
                (Some(to), true) => text.push_str(&format!("@{to} {name}\n")),
                (None, false) => text.push_str(&format!("{first} {name}\n")),
                // A symbolic ref is listed twice: with its target and with its commit.
                _ => {}
            }
        }
        self.say(&format!("{text}\n"))
    }

    /// Whether the fence is ours. Checked before git compares branches, because "fetch first" would be wrong advice for
    /// a run that lost its lease.
    fn may_push(&mut self, there: Option<&FenceCommit>) -> bool {
        let known = self.number.and_then(|number| self.run_dir.known(number));
        let fence = match known.filter(|(_, at)| Some(at) == there) {
            Some(known) => Ok(Some(known)),
            None => self.remote.fetch(),
        };
        let fence = match fence {
            Ok(fence) => fence,
            Err(error) => return self.failed(&error),
        };
        let Some(bearer) = self.bearer.clone() else { return self.failed(&no_run(&self.remote.shown)) };
        let record = fence.as_ref().map(|(record, _)| &record.fence);
        let next = next_seq(record);
        let offer = FenceOffer::Write { seq: next, digest: "?".into() };
        if let FenceVerdict::Refuse(reason) = verdict(record, &bearer, &offer) {
            let refused = Refused::new(RefusedAction::Write, reason, &self.remote.shown, &bearer, record);
            return self.failed(&TargetError::Refused(Box::new(refused)));
        }
        self.remote.hint = fence;
        true
    }

    fn failed(&mut self, error: &TargetError) -> bool {
        (self.tell)(HelperNotice::Failed(error));
        false
    }

    fn fetch(&mut self, batch: &[String]) -> io::Result<bool> {
        let mut command = self.remote.git.inside();
        command.args(["fetch", "--no-tags", "--no-write-fetch-head", "--refmap=", "--no-auto-gc"]);
        command.arg("--recurse-submodules=no").arg(if self.wishes.progress {
            "--progress"
        } else {
            "--quiet"
        });
        command.args(&self.wishes.fetch).args(["--", THERE]);
        command.args(batch.iter().filter_map(|line| line.split(' ').next()));
        let said = self.remote.git.run_shown(command)?;
        if !said.ok {
            return Ok(self.failed(&self.remote.complained("fetch from", &said)));
        }
        self.say("\n")
    }

    fn push(&mut self, batch: &[String]) -> io::Result<bool> {
        let mut moves: Vec<Move> = batch.iter().filter_map(|line| Move::parse(line)).collect();
        if !self.resolve(&mut moves)? {
            return Ok(false);
        }
        if self.number.is_some() && moves.iter().any(|one| is_fence(&one.name)) {
            return self.refuse_fence_refs(&moves);
        }
        let answer = match (self.number, self.wishes.dry_run) {
            (Some(number), false) => self.push_fenced(number, &moves)?,
            _ => self.push_plain(&moves)?,
        };
        self.say(&format!("{answer}\n"))
    }

    /// Refuses a push to one of the two fence refs. A branch of that name would be taken for a second fence.
    fn refuse_fence_refs(&mut self, moves: &[Move]) -> io::Result<bool> {
        let why = format!("keeps its fence at {FENCE_REF} or {FALLBACK_REF}, which nobody else may push to");
        let fix = "Choose another name; for a mirror, remove the copy in your clone: git update-ref -d with that name";
        self.failed(&unfit(&self.remote.shown, &why, fix));
        let line = |one: &Move| match is_fence(&one.name) {
            true => format!("error {} kept for the fence\n", one.name),
            false => format!("error {} atomic push failed\n", one.name),
        };
        let lines: Vec<String> = moves.iter().map(line).collect();
        self.say(&format!("{}\n", lines.concat()))
    }

    /// Replaces names with commits, because the names may move while we push.
    fn resolve(&self, moves: &mut [Move]) -> io::Result<bool> {
        if moves.iter().all(|one| one.source.is_empty()) {
            return Ok(true);
        }
        let mut command = self.remote.git.inside();
        command
            .arg("rev-parse")
            .args(moves.iter().map(|one| &one.source).filter(|source| !source.is_empty()));
        let said = self.remote.git.run_shown(command)?;
        let text = String::from_utf8_lossy(&said.out).into_owned();
        let mut oids = text.lines();
        for one in moves.iter_mut().filter(|one| !one.source.is_empty()) {
            let Some(oid) = oids.next() else { return Ok(false) };
            one.source = oid.into();
        }
        Ok(said.ok)
    }

    fn wanted(&self, moves: &[Move]) -> PushRequest {
        let wishes = &self.wishes;
        let refspec = |one: &Move| format!("{}{}:{}", if one.force { "+" } else { "" }, one.source, one.name);
        let mut options: Vec<String> =
            wishes.leases.iter().map(|lease| format!("--force-with-lease={lease}")).collect();
        options.extend(wishes.push_options.iter().map(|option| format!("--push-option={option}")));
        for (wished, option) in
            [(wishes.progress, "--progress"), (wishes.signed, "--signed"), (!wishes.signed, "--no-signed")]
        {
            options.extend(wished.then(|| option.to_owned()));
        }
        PushRequest { refspecs: moves.iter().map(refspec).collect(), options }
    }

    /// A push to a URL that is not guarded, or a dry run.
    fn push_plain(&mut self, moves: &[Move]) -> io::Result<String> {
        let wanted = self.wanted(moves);
        let mut command = self.remote.git.inside();
        command.args(["push", "--porcelain", "--no-verify", "--no-follow-tags", "--recurse-submodules=no"]);
        command.args(wanted.options).args(self.remote.git.other_end());
        if self.wishes.atomic {
            command.arg("--atomic");
        }
        if self.wishes.dry_run {
            command.arg("--dry-run");
        }
        command.args(["--", THERE]).args(wanted.refspecs);
        let said = self.remote.git.run_shown(command)?;
        let statuses = push_output::statuses(&said.out);
        if statuses.is_empty() && !said.ok {
            self.failed(&self.remote.complained("push to", &said));
        }
        let otherwise = if said.ok { "" } else { "the push was aborted" };
        Ok(moves.iter().map(|one| answer(one, &statuses, otherwise)).collect())
    }

    fn push_fenced(&mut self, number: usize, moves: &[Move]) -> io::Result<String> {
        let Some(bearer) = self.bearer.clone() else {
            let error = no_run(&self.remote.shown);
            (self.tell)(HelperNotice::Failed(&error));
            return Ok(moves.iter().map(|one| format!("error {} outside of a run\n", one.name)).collect());
        };
        let wanted = self.wanted(moves);
        let digest = GitTarget::digest(moves.iter().map(|one| (one.name.as_str(), one.source.as_str())));
        let written = cas_fence::write(&mut self.remote, &bearer, None, &digest, &wanted);
        if let Some((record, at)) = &self.remote.put {
            self.run_dir.remember(number, record, at);
        }
        let error = match written {
            Ok(written) => {
                if let Some(refused) = written.let_in {
                    (self.tell)(HelperNotice::LetIn(&refused));
                }
                let lines: Vec<String> =
                    moves.iter().map(|one| format!("{} {}\n", one.name, one.source)).collect();
                self.run_dir.note(number, &lines.concat());
                // There are no statuses if the answer was lost.
                return Ok(moves.iter().map(|one| answer(one, &self.remote.statuses, "")).collect());
            }
            Err(error) => error,
        };
        // It may have landed. Then it did not bypass the fence.
        if matches!(error, TargetError::InDoubt { .. } | TargetError::Unknown { .. }) {
            let lines = moves.iter().map(|one| format!("{DOUBT}{} {}\n", one.name, one.source));
            self.run_dir.note(number, &lines.collect::<Vec<_>>().concat());
        }
        let by_git = matches!(&error, TargetError::Remote { failure, .. }
            if failure.kind == FailureKind::Denied && !self.remote.statuses.is_empty());
        if by_git {
            // Git shows the reason for each ref.
            return Ok(moves
                .iter()
                .map(|one| answer(one, &self.remote.statuses, "atomic push failed"))
                .collect());
        }
        (self.tell)(HelperNotice::Failed(&error));
        let why = brief(&error);
        Ok(moves.iter().map(|one| format!("error {} {why}\n", one.name)).collect())
    }
}

fn is_fence(name: &str) -> bool {
    [FENCE_REF, FALLBACK_REF].contains(&name)
}

/// The rest of a batch, up to an empty line.
fn batch(first: &str, input: &mut impl BufRead, prefix: &str) -> io::Result<Vec<String>> {
    let mut batch = vec![first.to_owned()];
    let mut line = String::new();
    loop {
        line.clear();
        if input.read_line(&mut line)? == 0 || line == "\n" {
            return Ok(batch);
        }
        batch.extend(line.trim_end_matches('\n').strip_prefix(prefix).map(str::to_owned));
    }
}

impl Move {
    fn parse(line: &str) -> Option<Self> {
        let (force, line) = line.strip_prefix('+').map_or((false, line), |rest| (true, rest));
        let (source, name) = line.split_once(':')?;
        Some(Self { force, source: source.into(), name: name.into() })
    }
}

impl GitOptions {
    fn hear(&mut self, line: &str) -> &'static str {
        let (name, value) = line.split_once(' ').unwrap_or((line, ""));
        let yes = value == "true";
        match name {
            "progress" => self.progress = yes,
            "dry-run" => self.dry_run = yes,
            "atomic" => self.atomic = yes,
            "cas" => self.leases.push(value.into()),
            "push-option" => self.push_options.push(unquoted(value)),
            "pushcert" if value == "true" => self.signed = true,
            "pushcert" if value == "false" => {}
            "depth" => self.fetch.push(format!("--depth={value}")),
            "deepen-since" => self.fetch.push(format!("--shallow-since={}", unquoted(value))),
            "deepen-not" => self.fetch.push(format!("--shallow-exclude={}", unquoted(value))),
            "update-shallow" => self.fetch.extend(yes.then(|| "--update-shallow".into())),
            // Force comes with each ref. Our push is never quiet, because it must report each ref. Git handles the rest itself.
            "force" | "verbosity" | "followtags" | "cloning" | "check-connectivity" | "if-asked" => {}
            _ => return "unsupported",
        }
        "ok"
    }
}

/// A value without git's quotes.
fn unquoted(value: &str) -> String {
    let Some(inner) = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else {
        return value.into();
    };
    let (mut text, mut rest) = (String::new(), inner.chars());
    while let Some(c) = rest.next() {
        match c {
            '\\' => match rest.next() {
                Some('n') => text.push('\n'),
                Some('t') => text.push('\t'),
                Some(other) => text.push(other),
                None => {}
            },
            c => text.push(c),
        }
    }
    text
}

fn no_run(shown: &str) -> TargetError {
    let why = "is pushed to without a run: LEASEHOLD_LEASE, LEASEHOLD_TOKEN and LEASEHOLD_GRANT are not set";
    unfit(shown, why, &format!("Start it in a run: leasehold run NAME --fence {shown} -- COMMAND"))
}

/// The reason that git shows beside a ref.
fn brief(error: &TargetError) -> String {
    match error {
        TargetError::Refused(refused) => {
            let sealed = refused.sealed().map_or_else(|| "none".into(), |token| token.to_string());
            format!(
                "refused by the fence: token {}, newest {sealed} ({})",
                refused.token,
                refused.reason.word()
            )
        }
        TargetError::InDoubt { .. } | TargetError::Unknown { .. } => "outcome unknown".into(),
        _ => "not pushed".into(),
    }
}

/// The line for one ref.
fn answer(one: &Move, statuses: &[RefStatus], otherwise: &str) -> String {
    let name = &one.name;
    match statuses.iter().find(|status| status.name == *name) {
        Some(RefStatus { rejected: Some(why), .. }) => {
            format!("error {name} {}\n", push_output::for_git(why))
        }
        Some(RefStatus { forced: true, .. }) => format!("ok {name} forced update\n"),
        Some(_) => format!("ok {name}\n"),
        None if otherwise.is_empty() => format!("ok {name}\n"),
        None => format!("error {name} {otherwise}\n"),
    }
}
