//! `leasehold push`, and this program as git's remote helper.

#[cfg(test)]
use leasehold::messages::Catalogue;
use leasehold::notes;

use super::failures;

/// What `push` says.
#[cfg(test)]
pub const CATALOGUE: Catalogue = Catalogue {
    name: "push",
    about: "`leasehold push`, and `git push` inside a run.",
    entries: &[NOTES, FAILURES],
};

notes! {
    would_be_refused(what) "this push {what}";
    git_gone(why) "the connection to git was lost: {why}";
    hook(path) "installed {path}";
    hooks_installed()
        "once a run has fenced this repository, its branches and tags move only together with the fence. To \
         test that, push from outside a run: git must refuse the push";
}

failures! {
    outside_a_run() Usage "usage"
        { "this command is not part of a run, so it has no token" "Nothing was pushed"
          "Start a run that names the repository: \
           leasehold run NAME --fence git:origin -- sh -c '... && leasehold push origin main'" }
    no_git(why) Unreachable "system" { "cannot run git: {why}" "Nothing was pushed" "" }
    /// A rule of the user's own wins over the one that a run sets.
    sent_elsewhere(remote) Config "config"
        { "a rule in your git settings (url.….insteadOf or pushInsteadOf) redirects pushes to {remote}. It \
           matches as many characters of the URL as Leasehold's rule does, so git would push without the fence"
          "Nothing was pushed"
          "Shorten the URL in your rule, or set remote.{remote}.pushurl instead" }
    past_the_fence(transport) Config "config"
        { "this push would have bypassed the fence: its destination is neither a remote of this clone nor the URL of \
           one (git would have pushed over '{transport}')"
          "Nothing was pushed"
          "Push a submodule in a run that names it. For any other destination, type git remote add NAME URL and use \
           NAME, also in branch.….pushRemote and remote.pushDefault" }
    hooks_not_installed(dir, why) Config "config"
        { "cannot install the hooks in {dir}: {why}" "Nothing was changed" "" }
}
