//! Files and directory trees of this machine as targets.

mod critical_section;
mod dir_fence;
mod git_exclude;
mod lock_target;
mod one_file;
pub mod tree;

pub(super) use self::dir_fence::StagedPayload;
pub use self::dir_fence::{DirFence, digest};
pub use self::lock_target::{CriticalSection, FileKind, LockTarget};
pub use self::one_file::{FileTarget, OneFile};
use self::tree::{DirTree, TreeTarget};
use super::{AsTarget, Backend, OpenTarget, Scheme, whole_path};

/// The entry of files in the list of backends.
pub(super) const FILE: Backend =
    backend(&[Scheme { name: OneFile::SCHEME, example: "file:PATH" }], |_, path| {
        Ok(Box::new(FileTarget::open(path)?))
    });

/// The entry of directory trees in the list of backends.
pub(super) const TREE: Backend =
    backend(&[Scheme { name: DirTree::SCHEME, example: "tree:PATH" }], |_, path| {
        Ok(Box::new(TreeTarget::open(path)?))
    });

const fn backend(schemes: &'static [Scheme], open: OpenTarget) -> Backend {
    Backend {
        show: str::to_owned,
        variables: &[],
        store: None,
        target: Some(AsTarget { path: true, anywhere: whole_path, ..AsTarget::new(schemes, open) }),
    }
}
