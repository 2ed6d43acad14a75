//! A directory as a target. Each version is a separate directory, and a symbolic link points to the current
//! one, so readers always see one whole version.
//!
//! ```text
//! site -> .site.leasehold-v-42.1.3f9a…     the artefact
//! .site.leasehold-v-42.1.3f9a…             its current version: token, number of the write, digest
//! .site.leasehold-v-41.3.77c0…             the version before, for readers that still use it
//! ```

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_core::fence::Fence;
use rustix::fs::{FileType, Mode, OFlags};
use sha2::{Digest, Sha256};

use super::dir_fence::{DirFence, StagedPayload, blocks, named};
use super::lock_target::{CriticalSection, FileKind, LockTarget};
use crate::clock;
use crate::targets::{Content, TargetError};

/// A directory that only the holder of a lease may replace.
pub type TreeTarget = LockTarget<DirTree>;

/// How long a replaced version is kept for readers that still use it.
pub const READER_GRACE: Duration = Duration::from_secs(10 * 60);

/// A tree of files.
#[derive(Debug)]
pub struct DirTree {
    grace: Duration,
}

impl TreeTarget {
    /// The directory at `path`, which need not exist; its parent must.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, TargetError> {
        Self::at(path.as_ref(), DirTree { grace: READER_GRACE })
    }

    /// The same, with another time for which replaced versions are kept.
    #[cfg(feature = "conformance")]
    pub fn open_with(path: impl AsRef<Path>, grace: Duration) -> Result<Self, TargetError> {
        Self::at(path.as_ref(), DirTree { grace })
    }
}

/// The first part of all versions' names.
fn prefix(beside: &DirFence) -> String {
    beside.side("v-")
}

/// The name of the version that this fence describes, with enough of the digest to tell two versions apart.
fn version(beside: &DirFence, fence: &Fence) -> String {
    let digest = fence.digest.rsplit(':').next().unwrap_or_default();
    let short = digest.get(..16).unwrap_or(digest);
    format!("{}{}.{}.{short}", prefix(beside), fence.token, fence.seq)
}

/// The current version. None if there is none, or the artefact is not our link.
fn current(beside: &DirFence) -> Option<String> {
    let link = fs::read_link(beside.path(beside.name())).ok()?;
    link.to_str().filter(|name| name.starts_with(&prefix(beside))).map(str::to_owned)
}

impl FileKind for DirTree {
    const SCHEME: &'static str = "tree";

    fn fit(&self, beside: &DirFence) -> io::Result<Result<(), (String, String)>> {
        let Some(found) = beside.look()? else { return Ok(Ok(())) };
        let (why, fix) = match FileType::from_raw_mode(found.st_mode) {
            // A plain directory becomes the first version that is replaced.
            FileType::Directory => return Ok(Ok(())),
            FileType::Symlink if current(beside).is_some() => return Ok(Ok(())),
            FileType::Symlink => (
                "is a symbolic link that Leasehold did not make, and the directory it points to may have another fence",
                "Name the directory it points to",
            ),
            FileType::RegularFile => ("is a file", "Write it as a file:"),
            _ => ("is not a directory", "Name a directory"),
        };
        Ok(Err((why.into(), fix.into())))
    }

    fn stage<'a>(&self, beside: &'a DirFence, content: Content<'_>) -> io::Result<StagedPayload<'a>> {
        let Content::Directory(source) = content else {
            let why = "a tree: target takes a directory and was given one file; name a directory with --from";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        };
        let mut payload = beside.payload_directory()?;
        let to = beside.path(&payload.name);
        if fs::canonicalize(&to)?.starts_with(fs::canonicalize(source)?) {
            let why = "the directory would be copied into itself; the target must lie outside of the directory in --from";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        copy(source, &to)?;
        payload.digest = digest(&to)?;
        Ok(payload)
    }

    fn place(
        &self,
        beside: &DirFence,
        inside: &CriticalSection,
        payload: &str,
        fence: &Fence,
    ) -> io::Result<()> {
        let version = version(beside, fence);
        let before = current(beside);
        let there = before.as_ref() == Some(&version);
        match fs::symlink_metadata(beside.path(payload)) {
            // The same content with the same number, as after a reset of the fence. It may have been edited since.
            Ok(_) if there => {
                beside.exchange(inside, payload, &version)?;
                // The new one is in place. The next seal sweeps the old one under the payload's name.
                let _ = set_aside(beside, inside, payload);
            }
            Ok(_) => {
                // A power cut may have left one. It is not the current version, so it can be removed.
                beside.discard(&version);
                beside.rename(inside, payload, &version)?;
                beside.sync()?;
            }
            // A writer that died here may have renamed it already. If not, there is nothing to point to.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                fs::metadata(beside.path(&version))?;
            }
            Err(e) => return Err(e),
        }
        if !there {
            before.iter().for_each(|before| replaced_now(&beside.path(before)));
        }
        // Links of writers that died here.
        for link in beside.names(&beside.side("link")) {
            set_aside(beside, inside, &link)?;
        }
        // A new name, so that an older writer cannot put another link under it.
        let link = beside.side(&format!("link-{:032x}", crate::random::seed()));
        symlink(&version, beside.path(&link))?;
        match beside.rename(inside, &link, beside.name()) {
            Err(e) if e.kind() == io::ErrorKind::IsADirectory => {
                beside.exchange(inside, &link, beside.name())?;
                // The link is in place. The next writer tries this again.
                let _ = set_aside(beside, inside, &link);
                Ok(())
            }
            other => other,
        }
    }

    fn waiting(&self, beside: &DirFence, payload: &str, fence: &Fence) -> io::Result<Option<String>> {
        for name in [payload, &version(beside, fence)] {
            if beside.path(name).is_dir() {
                return digest(&beside.path(name)).map(Some);
            }
        }
        Ok(None)
    }

    fn present(&self, beside: &DirFence, fence: &Fence) -> io::Result<Option<String>> {
        // A version is complete before it gets its name.
        let there = current(beside) == Some(version(beside, fence));
        Ok(there.then(|| fence.digest.clone()))
    }

    fn fingerprint(&self, beside: &DirFence) -> Option<String> {
        let path = beside.path(beside.name());
        path.is_dir().then(|| digest(&path).ok()).flatten()
    }

    fn sweep(&self, beside: &DirFence, now: &Fence) {
        let below = version_number(&prefix(beside), &version(beside, now));
        let keep = current(beside);
        for name in beside.names(&prefix(beside)) {
            let older = version_number(&prefix(beside), &name) < below && Some(&name) != keep.as_ref();
            let replaced = replaced_at(&beside.path(&name));
            let age = replaced.and_then(|replaced| clock::wall().checked_sub(replaced));
            if older && age.is_some_and(|age| age >= self.grace) {
                beside.discard(&name);
            }
        }
    }
}

/// Marks the time at which a version is replaced: a change of its permissions sets its ctime.
fn replaced_now(version: &Path) {
    if let Ok(found) = fs::metadata(version) {
        let _ = fs::set_permissions(version, found.permissions());
    }
}

/// When a version was replaced, by this machine's clock; or when it got its name, if it was never current. None for a
/// version of another user, who marks and sweeps it.
fn replaced_at(version: &Path) -> Option<Duration> {
    let found = fs::symlink_metadata(version).ok()?;
    let ours = found.uid() == rustix::process::geteuid().as_raw();
    let changed = Duration::new(found.ctime().try_into().ok()?, found.ctime_nsec().try_into().ok()?);
    ours.then_some(changed)
}

/// Removes a link that was never used. A plain directory, which was there before the first write, becomes the oldest
/// version.
fn set_aside(beside: &DirFence, inside: &CriticalSection, link: &str) -> io::Result<()> {
    if fs::symlink_metadata(beside.path(link)).is_ok_and(|found| found.is_dir()) {
        let id = crate::random::seed() as u64;
        return beside.rename(inside, link, &format!("{}0.0.{id:016x}", prefix(beside)));
    }
    beside.discard(link);
    Ok(())
}

/// The token and the number in a version's name.
fn version_number(prefix: &str, name: &str) -> Option<(u64, u64)> {
    let mut parts = name.strip_prefix(prefix)?.splitn(3, '.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// The entries of a directory, sorted by name.
fn entries(dir: &Path) -> io::Result<Vec<(PathBuf, fs::Metadata)>> {
    let mut entries = Vec::new();
    // Not std::fs::read_dir, which panics if closing the directory fails.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = rustix::fs::open(dir, flags, Mode::empty())?;
    for entry in rustix::fs::Dir::new(open)? {
        let name = entry?.file_name().to_owned();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let path = dir.join(std::ffi::OsStr::from_bytes(name.to_bytes()));
        let found = fs::symlink_metadata(&path)?;
        entries.push((path, found));
    }
    entries.sort_by(|a, b| a.0.file_name().cmp(&b.0.file_name()));
    Ok(entries)
}

/// Copies the entries of one directory into another, durably. Links are copied as links.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    for (path, found) in entries(from)? {
        let target = to.join(path.file_name().unwrap_or_default());
        if found.is_symlink() {
            symlink(fs::read_link(&path)?, &target)?;
        } else if found.is_dir() {
            fs::create_dir(&target)?;
            copy(&path, &target)?;
        } else if found.is_file() {
            let (mut source, new) = (open(&path)?, File::create_new(&target)?);
            io::copy(&mut source, &mut &new)?;
            new.set_permissions(found.permissions())?;
            new.sync_all()?;
        } else {
            let why = format!("{} is neither a file, a directory nor a link", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
    }
    fs::set_permissions(to, fs::metadata(from)?.permissions())?;
    File::open(to)?.sync_all()
}

/// Opens a plain file. It does not block if something else has taken its place.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other(format!("{} is no longer a plain file", path.display()))),
    }
}

/// The digest of everything in a directory: names, kinds, permissions, contents.
pub fn digest(dir: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    add(&mut hash, dir)?;
    Ok(named(hash))
}

fn add(hash: &mut Sha256, dir: &Path) -> io::Result<()> {
    for (path, found) in entries(dir)? {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        // Each part has its length, so that no two trees give the same bytes.
        let mut part = |kind: u8, bytes: &[u8]| {
            hash.update([kind]);
            hash.update((bytes.len() as u64).to_be_bytes());
            hash.update(bytes);
        };
        part(b'n', name);
        if found.is_symlink() {
            part(b'l', fs::read_link(&path)?.as_os_str().as_encoded_bytes());
            continue;
        }
        part(b'm', &(found.permissions().mode() & 0o7777).to_be_bytes());
        if found.is_dir() {
            part(b'd', b"");
            add(hash, &path)?;
            hash.update(b"e");
        } else if found.is_file() {
            part(b'f', &found.len().to_be_bytes());
            blocks(&mut open(&path)?, |block| {
                hash.update(block);
                Ok(())
            })?;
        } else {
            // A pipe, a socket or a device: only that it exists, because opening it could block.
            part(b'o', &found.mode().to_be_bytes());
            hash.update(found.rdev().to_be_bytes());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::fence::FenceMode;
    use leasehold_core::ids::{Epoch, Grant, Token};
    use leasehold_core::name::Name;

    /// The payload was removed while its writer waited for the lock.
    #[test]
    fn what_vanished_is_not_put_in_place() {
        let dir = std::env::temp_dir().join(format!("leasehold-tree-{:x}", crate::random::seed()));
        fs::create_dir_all(&dir).unwrap();
        let beside = DirFence::open(&dir, "site").unwrap();
        let fence = Fence {
            lease: Name::new("a").unwrap(),
            epoch: Epoch::first(1),
            token: Token::FIRST,
            grant: Grant(1),
            seq: 1,
            digest: String::new(),
            done: false,
            mode: FenceMode::Enforce,
            let_in: 0,
        };
        let inside = beside.enter(Duration::ZERO).ok().unwrap();
        let (tree, payload) = (DirTree { grace: Duration::ZERO }, "payload");
        assert_eq!(
            tree.place(&beside, &inside, payload, &fence).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        assert!(fs::symlink_metadata(dir.join("site")).is_err(), "points to nothing");
        fs::create_dir(dir.join(payload)).unwrap();
        tree.place(&beside, &inside, payload, &fence).unwrap();
        // Again, as after a crash: the version has its name already.
        fs::remove_file(dir.join("site")).unwrap();
        tree.place(&beside, &inside, payload, &fence).unwrap();
        assert!(dir.join("site").is_dir());
        fs::remove_dir_all(dir).unwrap();
    }
}
