//! Reads the output of `git push --porcelain`, and git's error messages.

/// The outcome for one ref.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RefStatus {
    /// The ref on the server.
    pub(super) name: String,
    /// Why it was rejected. None: it was pushed, or was up to date.
    pub(super) rejected: Option<String>,
    /// The update was no fast-forward.
    pub(super) forced: bool,
}

impl RefStatus {
    /// Git found that the ref is not the expected one, and sent nothing.
    pub(super) fn stale(&self) -> bool {
        self.rejected.as_deref() == Some("stale info")
    }

    /// Git or the server rejected it, so it did not move.
    pub(super) fn answered(&self) -> bool {
        self.rejected.as_deref().is_some_and(|why| !why.starts_with("remote failed to report"))
    }

    /// The server rejected it.
    pub(super) fn refused(&self) -> bool {
        self.answered() && !self.stale()
    }
}

/// The refs in git's output.
pub(super) fn statuses(out: &[u8]) -> Vec<RefStatus> {
    let text = String::from_utf8_lossy(out);
    let status = |line: &str| {
        let mut fields = line.split('\t');
        let (flag, refs, summary) = (fields.next()?, fields.next()?, fields.next()?);
        if flag.len() != 1 || !" +-*!=".contains(flag) {
            return None;
        }
        let name = refs.rsplit_once(':')?.1.to_owned();
        let rejected = (flag == "!").then(|| reason(summary));
        Some(RefStatus { name, rejected, forced: flag == "+" })
    };
    text.lines().filter_map(status).collect()
}

/// The reason in `[remote rejected] (hook declined)`.
fn reason(summary: &str) -> String {
    match summary.split_once("] (") {
        Some((_, why)) => why.strip_suffix(')').unwrap_or(why).into(),
        None => summary.into(),
    }
}

/// The reason as git expects it from a remote helper.
pub(super) fn for_git(reason: &str) -> &str {
    match reason {
        "non-fast-forward" => "non-fast forward",
        other => other,
    }
}

/// Whether git found the request wrong before it connected.
pub(super) fn not_even_tried(err: &str) -> bool {
    const ASKED: [&str; 6] = [
        "receives from more than one src",
        "src refspec",
        "dst refspec",
        "unable to delete 'HEAD'",
        "invalid refspec",
        "cannot be resolved to branch",
    ];
    ASKED.iter().any(|asked| ours(err).any(|line| line.contains(asked)))
}

/// Whether git failed before it sent anything, so that nothing can have landed.
pub(super) fn never_sent(err: &str) -> bool {
    const EARLY: [&str; 9] = [
        "unable to access",
        "Authentication failed",
        "Could not read from remote repository",
        "hung up upon initial contact",
        "does not appear to be a git repository",
        "the receiving end does not support",
        "unable to connect to",
        "unable to look up",
        "could not read Username",
    ];
    EARLY.iter().any(|early| ours(err).any(|line| line.contains(early)))
}

/// Git's own lines, without the server's: a hook on the server may print the same words.
fn ours(err: &str) -> impl Iterator<Item = &str> {
    err.split(['\n', '\r']).filter(|line| !line.trim_start().starts_with("remote:"))
}

/// Whether the failure is about credentials or permissions.
pub(super) fn denied(err: &str) -> bool {
    const DENIED: [&str; 7] = [
        "dubious ownership",
        "Authentication failed",
        "could not read Username",
        "Permission denied",
        "error: 403",
        "error: 401",
        "access denied",
    ];
    DENIED.iter().any(|denied| ours(err).any(|line| line.contains(denied)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_push() {
        let said = b"To /r.git\n!\trefs/heads/main:refs/heads/main\t[rejected] (fetch first)\n\
            +\tabc:refs/x/y\tabc...def (forced update)\n*\trefs/tags/v:refs/tags/v\t[new tag]\n\
            -\t:refs/heads/old\t[deleted]\nDone\n";
        let statuses = statuses(said);
        let names: Vec<&str> = statuses.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["refs/heads/main", "refs/x/y", "refs/tags/v", "refs/heads/old"]);
        assert_eq!(statuses[0].rejected.as_deref(), Some("fetch first"));
        assert_eq!((statuses[1].forced, statuses[1].rejected.as_deref()), (true, None));
    }

    #[test]
    fn what_git_finds_by_itself_was_not_sent() {
        for said in [
            "error: dst ref refs/leasehold/fence receives from more than one src\n",
            "error: src refspec nosuch does not match any\n",
            "error: unable to delete 'HEAD': remote ref does not exist\n",
        ] {
            assert!(not_even_tried(said), "{said}");
            assert!(!not_even_tried(&format!("remote: {said}")), "a hook may say that, too");
        }
        assert!(!not_even_tried("fatal: the remote end hung up unexpectedly\n"));
    }

    #[test]
    fn a_server_does_not_speak_for_git() {
        let said = "remote: unable to connect to ci.example\nremote: Permission denied\rremote: access denied\n\
            fatal: the remote end hung up unexpectedly\n";
        assert!(!never_sent(said) && !denied(said));
        let said = "remote: hello\nfatal: unable to connect to git.example\nPermission denied (publickey).\n";
        assert!(never_sent(said) && denied(said));
    }
}
