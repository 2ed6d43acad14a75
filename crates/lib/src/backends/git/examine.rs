//! Makes a server show that it compares the old fence with its own.
//!
//! Git's client compares the expected fence with the refs that the server listed at the start. So the condition must become
//! false after that. A push runs its `pre-push` hook after it has the list and before it sends anything. In that hook a
//! second push moves the fence. The first push then sends an outdated condition, and the server must refuse it. No other
//! writer can make the condition true again, because no commit is used as a fence twice. Both pushes have the same fence.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use leasehold_core::fence_record::FenceRecord;
use leasehold_core::store::FailureKind;
use rustix::process::{Pid, Signal, kill_process};

use super::push_output::{self, RefStatus};
use super::remote::{FenceCommit, FencePush, GitRemote, took, unknown};
use super::tool::GitOutput;
use super::unfit;
use crate::targets::TargetError;
use crate::targets::cas_fence::{Swap, does_not_compare};
use crate::{clock, random};

impl GitRemote {
    /// Moves the fence from `old` to `new` in the middle of another push, which the server must refuse.
    pub(super) fn overtaken(
        &mut self,
        old: Option<&FenceCommit>,
        new: &FenceCommit,
        record: &FenceRecord,
    ) -> Result<Swap, TargetError> {
        let late = self.successor(old, new.name, record)?;
        let first = FencePush { old, new, content: None };
        let second = FencePush { new: &late, ..first };
        let hook = Hook::new(self.git.run_dir.path(), &self.pushing(first, None))
            .map_err(|e| self.system("check", &e))?;
        let command = self.pushing(second, Some(&hook.dir));
        let start = clock::boot_time();
        let outer = self.git.run(command, b"").map_err(|e| self.system("check", &e))?;
        let inner = hook.said(|err| self.git.hidden(err));
        if outer.late {
            hook.end();
            // The fence can still be read: give that more time.
            self.git.until = self.git.until.map(|until| until.plus(clock::boot_time().since(start)));
        }
        let Some(inner) = inner else {
            // The hook did not run: the push failed before it, or git ran no hook.
            if took(&outer, &late) {
                return Err(not_run(&self.shown));
            }
            return self.judged(second, &outer);
        };
        if took(&outer, &late) && (took(&inner, new) || is(&inner, new, RefStatus::stale)) {
            return Err(does_not_compare(&self.shown));
        }
        match self.judged(first, &inner)? {
            Swap::Done if outer.late => {
                Err(self.failed("check", FailureKind::Unreachable, outer.complaint()))
            }
            // The server did not refuse the outdated push, so it has shown nothing.
            Swap::Done if !is(&outer, &late, RefStatus::refused) => Ok(unknown(outer.complaint())),
            swap => Ok(swap),
        }
    }
}

/// Whether git's answer for the fence is `what`.
fn is(said: &GitOutput, fence: &FenceCommit, what: fn(&RefStatus) -> bool) -> bool {
    push_output::statuses(&said.out).iter().any(|status| status.name == fence.name && what(status))
}

fn not_run(shown: &str) -> TargetError {
    let why = "could not be checked: git ran no hook from the state directory, which may be mounted noexec";
    unfit(shown, why, "Set XDG_STATE_HOME to a directory on a file system without noexec")
}

/// A directory with the hook in it. Dropping this removes it.
struct Hook {
    dir: PathBuf,
}

impl Drop for Hook {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl Hook {
    /// A hook that runs this command.
    fn new(run_dir: &Path, command: &Command) -> io::Result<Self> {
        let hook = Self { dir: run_dir.join(format!("hooks-{:032x}", random::seed())) };
        fs::DirBuilder::new().mode(0o700).create(&hook.dir)?;
        let mut script = b"#!/bin/sh\n".to_vec();
        for word in std::iter::once(command.get_program()).chain(command.get_args()) {
            script.extend(quoted(word.as_bytes()));
        }
        for (sign, name) in [("<", "/dev/null"), (">", "out"), ("2>", "err")] {
            script.extend(sign.as_bytes());
            script.extend(quoted(hook.dir.join(name).as_os_str().as_bytes()));
        }
        script.extend(b"&\necho $! >");
        script.extend(quoted(hook.dir.join("pid").as_os_str().as_bytes()));
        script.extend(b"\nwait $!\necho $? >");
        script.extend(quoted(hook.dir.join("code").as_os_str().as_bytes()));
        script.push(b'\n');
        let path = hook.dir.join("pre-push");
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?.write_all(&script)?;
        fs::set_permissions(&path, Permissions::from_mode(0o700))?;
        Ok(hook)
    }

    /// Kills its command, which does not end when the push is killed.
    fn end(&self) {
        let pid = fs::read_to_string(self.dir.join("pid")).ok().and_then(|pid| pid.trim().parse().ok());
        // While there is no exit code, the hook waits for exactly that process.
        if let Some(pid) = pid.and_then(Pid::from_raw)
            && !self.dir.join("code").exists()
        {
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// The output of its command, if it was run.
    fn said(&self, hidden: impl Fn(&[u8]) -> String) -> Option<GitOutput> {
        let out = fs::read(self.dir.join("out")).ok()?;
        let err = fs::read(self.dir.join("err")).unwrap_or_default();
        let code = fs::read(self.dir.join("code")).unwrap_or_default();
        Some(GitOutput { ok: code == b"0\n", out, err: hidden(&err), late: code.is_empty() })
    }
}

/// One word for a shell, and a space.
fn quoted(word: &[u8]) -> Vec<u8> {
    let mut quoted = vec![b'\''];
    for byte in word {
        match byte {
            b'\'' => quoted.extend(b"'\\''"),
            other => quoted.push(*other),
        }
    }
    quoted.extend(b"' ");
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hook_runs_what_it_was_told() {
        let run_dir = std::env::temp_dir();
        let mut command = Command::new("printf");
        command.args(["%s|", "it's", "two words", "$HOME", "", "a\nb"]);
        let hook = Hook::new(&run_dir, &command).unwrap();
        let said = || hook.said(|err| String::from_utf8_lossy(err).into_owned());
        assert!(said().is_none());
        assert!(Command::new(hook.dir.join("pre-push")).status().unwrap().success());
        let said = said().unwrap();
        assert!(said.ok && !said.late, "{said:?}");
        assert_eq!(said.out, b"it's|two words|$HOME||a\nb|");
    }

    #[test]
    fn a_hook_whose_command_does_not_end_is_ended() {
        let mut command = Command::new("sh");
        command.args(["-c", "kill -STOP $$"]);
        let hook = Hook::new(&std::env::temp_dir(), &command).unwrap();
        let mut run = Command::new(hook.dir.join("pre-push")).spawn().unwrap();
        let pid = hook.dir.join("pid");
        while fs::read_to_string(&pid).unwrap_or_default().is_empty() {
            std::thread::yield_now();
        }
        hook.end();
        assert!(run.wait().unwrap().success(), "the hook itself goes on");
        assert_eq!(fs::read(hook.dir.join("code")).unwrap(), b"137\n");
    }
}
