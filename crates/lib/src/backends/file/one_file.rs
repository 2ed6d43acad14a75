//! One file as a target. It is replaced as a whole, by a rename.

use std::io;
use std::path::Path;

use leasehold_core::fence::Fence;
use rustix::fs::FileType;

use super::dir_fence::{DirFence, StagedPayload};
use super::lock_target::{CriticalSection, FileKind, LockTarget};
use crate::targets::{Content, TargetError};

/// A file that only the holder of a lease may replace.
pub type FileTarget = LockTarget<OneFile>;

/// One plain file.
#[derive(Debug)]
pub struct OneFile;

impl FileTarget {
    /// The file at `path`, which need not exist; its directory must.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, TargetError> {
        Self::at(path.as_ref(), OneFile)
    }
}

impl FileKind for OneFile {
    const SCHEME: &'static str = "file";

    fn fit(&self, beside: &DirFence) -> io::Result<Result<(), (String, String)>> {
        let Some(found) = beside.look()? else { return Ok(Ok(())) };
        let (why, fix) = match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile => return Ok(Ok(())),
            FileType::Symlink => (
                "is a symbolic link, and the file it points to may have another fence",
                "Name the file it points to",
            ),
            FileType::Directory => ("is a directory", "Name a file in it, or write it as a tree:"),
            _ => ("is not a plain file", "Name a plain file"),
        };
        Ok(Err((why.into(), fix.into())))
    }

    fn stage<'a>(&self, beside: &'a DirFence, content: Content<'_>) -> io::Result<StagedPayload<'a>> {
        match content {
            Content::Bytes(mut bytes) => beside.payload(&mut bytes),
            Content::Stream(stream) => beside.payload(stream),
            Content::Directory(path) => {
                let why = format!("{} is a directory, and this is one file", path.display());
                Err(io::Error::new(io::ErrorKind::InvalidInput, why))
            }
        }
    }

    fn place(&self, beside: &DirFence, inside: &CriticalSection, payload: &str, _: &Fence) -> io::Result<()> {
        beside.rename(inside, payload, beside.name())
    }

    fn waiting(&self, beside: &DirFence, payload: &str, _: &Fence) -> io::Result<Option<String>> {
        beside.digest_of(payload)
    }

    fn present(&self, beside: &DirFence, _: &Fence) -> io::Result<Option<String>> {
        beside.digest_of(beside.name())
    }

    fn fingerprint(&self, beside: &DirFence) -> Option<String> {
        beside.digest_of(beside.name()).ok().flatten()
    }

    fn sweep(&self, _: &DirFence, _: &Fence) {}

    fn read(&self, beside: &DirFence, to: &mut dyn io::Write) -> Option<io::Result<bool>> {
        Some(beside.copy(beside.name(), to))
    }
}
