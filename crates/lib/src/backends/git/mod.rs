//! Git: targets that are repositories.

mod examine;
pub mod hook;
mod push_output;
mod remote;
pub mod remote_helper;
mod repo_url;
mod run_dir;
mod target;
mod tool;
pub mod url_rewrite;

pub use self::run_dir::{HELPER, VARIABLE, is_helper};
pub use self::target::{BranchUpdate, GitTarget};
use super::{AsTarget, Backend, Scheme, whole_path};
use crate::targets::TargetError;

/// The ref with the fence: one for the whole repository, for all leases. If two leases guard the same
/// repository, the second is refused, and the refusal names the first.
pub const FENCE_REF: &str = "refs/leasehold/fence";
/// The ref with the fence on servers that accept only branches and tags.
pub const FALLBACK_REF: &str = "refs/heads/leasehold-fence";

const SCHEME: &str = "git";

/// Its entry in the list of backends.
pub(super) const BACKEND: Backend = Backend {
    show: |url| shown(super::rest(url)),
    variables: &[],
    store: None,
    target: Some(AsTarget {
        anywhere,
        reset: Some(|given| {
            format!(
                "delete its fence, from outside a run: git push {given} :{FENCE_REF} (docs/targets/git.md)"
            )
        }),
        after_stale: "What it committed is still in its clone: git fetch && git reset --hard @{u} there, or rebase it, before \
                      you run it again.",
        ..AsTarget::new(&[Scheme { name: SCHEME, example: "git:URL-OR-REMOTE" }], |_, given| {
            Ok(Box::new(GitTarget::open(given)?))
        })
    }),
};

/// A repository as people may see it, given what follows `git:`.
fn shown(given: &str) -> String {
    format!("{SCHEME}:{}", repo_url::shown(given))
}

/// Replaces the name of a remote, which belongs to one clone, and a relative path.
fn anywhere(sealed: &str) -> Option<String> {
    let given = super::rest(sealed);
    if !given.contains(['/', ':', '.']) {
        let url = url_rewrite::push_url(given)?;
        return Some(shown(url.trim()));
    }
    if given.contains(':') { Some(sealed.into()) } else { whole_path(sealed) }
}

fn unfit(target: &str, why: &str, fix: &str) -> TargetError {
    TargetError::Unfit { target: target.into(), why: why.into(), fix: fix.into() }
}
