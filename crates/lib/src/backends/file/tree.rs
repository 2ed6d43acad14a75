//! A directory as a target: every version is a directory of its own, and a symbolic link says which one
//! is current, so that readers always see one whole version.
//!
//! ```text
//! site -> .site.leasehold-v-42.1.3f9a…     the artefact
//! .site.leasehold-v-42.1.3f9a…             its current version: token, number of the write, digest
//! .site.leasehold-v-41.3.77c0…             one before, for readers that are still in it
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

/// How long a version that is no longer current stays, for readers that are still in it.
pub const READER_GRACE: Duration = Duration::from_secs(10 * 60);

/// A tree of files.
#[derive(Debug)]
pub struct DirTree {
    grace: Duration,
}

impl TreeTarget {
    /// The directory at `path`, which need not exist; the one above it must.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, TargetError> {
        Self::at(path.as_ref(), DirTree { grace: READER_GRACE })
    }

    /// The same, with another grace for readers of old versions.
    #[cfg(feature = "conformance")]
    pub fn open_with(path: impl AsRef<Path>, grace: Duration) -> Result<Self, TargetError> {
        Self::at(path.as_ref(), DirTree { grace })
    }
}

/// What the names of all versions begin with.
fn prefix(beside: &DirFence) -> String {
    beside.side("v-")
}

/// The name of the version that this fence announces. Enough of the digest to tell two apart.
fn version(beside: &DirFence, fence: &Fence) -> String {
    let digest = fence.digest.rsplit(':').next().unwrap_or_default();
    let short = digest.get(..16).unwrap_or(digest);
    format!("{}{}.{}.{short}", prefix(beside), fence.token, fence.seq)
}

/// The version that is current; nothing if what is there is not ours.
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
                "is a symbolic link that we did not make, and what it points to may have a fence of its own",
                "Name the directory it points to",
            ),
            FileType::RegularFile => ("is a file", "Write it as a file:"),
            _ => ("is not a directory", "Name a directory"),
        };
        Ok(Err((why.into(), fix.into())))
    }

    fn stage<'a>(&self, beside: &'a DirFence, content: Content<'_>) -> io::Result<StagedPayload<'a>> {
        let Content::Directory(source) = content else {
            let why = "this is a tree, and it was given one file; name a directory with --from";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        };
        let mut payload = beside.payload_directory()?;
        let to = beside.path(&payload.name);
        if fs::canonicalize(&to)?.starts_with(fs::canonicalize(source)?) {
            let why = "it would be copied into itself; keep what is written outside of what is copied";
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
            // The same content under the same number, as after a reset of the fence, and perhaps edited since.
            Ok(_) if there => {
                beside.exchange(inside, payload, &version)?;
                // It is in place; what is left under the payload's name is swept by the next seal.
                let _ = set_aside(beside, inside, payload);
            }
            Ok(_) => {
                // Left by a power cut: what is current is never removed.
                beside.discard(&version);
                beside.rename(inside, payload, &version)?;
                beside.sync()?;
            }
            // Whoever died in the middle of this had come so far; otherwise there is nothing to point to.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                fs::metadata(beside.path(&version))?;
            }
            Err(e) => return Err(e),
        }
        if !there {
            before.iter().for_each(|before| replaced_now(&beside.path(before)));
        }
        // Left by somebody who died here.
        for link in beside.names(&beside.side("link")) {
            set_aside(beside, inside, &link)?;
        }
        // A name that nobody else has: one who was overtaken cannot put another link under it.
        let link = beside.side(&format!("link-{:032x}", crate::random::seed()));
        symlink(&version, beside.path(&link))?;
        match beside.rename(inside, &link, beside.name()) {
            Err(e) if e.kind() == io::ErrorKind::IsADirectory => {
                beside.exchange(inside, &link, beside.name())?;
                // It is in place; whoever comes next tries this again.
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

/// Marks a version, right before its successor takes its place: the kernel notes the time of any change.
fn replaced_now(version: &Path) {
    if let Ok(found) = fs::metadata(version) {
        let _ = fs::set_permissions(version, found.permissions());
    }
}

/// When a version was replaced, by this machine's clock, or got its name if it was never current. Another user's
/// are that user's to mark, and to sweep.
fn replaced_at(version: &Path) -> Option<Duration> {
    let found = fs::symlink_metadata(version).ok()?;
    let ours = found.uid() == rustix::process::geteuid().as_raw();
    let changed = Duration::new(found.ctime().try_into().ok()?, found.ctime_nsec().try_into().ok()?);
    ours.then_some(changed)
}

/// A link that was never used goes; a plain directory that was there before the first write becomes a version
/// like the others, older than all of them.
fn set_aside(beside: &DirFence, inside: &CriticalSection, link: &str) -> io::Result<()> {
    if fs::symlink_metadata(beside.path(link)).is_ok_and(|found| found.is_dir()) {
        let id = crate::random::seed() as u64;
        return beside.rename(inside, link, &format!("{}0.0.{id:016x}", prefix(beside)));
    }
    beside.discard(link);
    Ok(())
}

/// Token and number of a version's name.
fn version_number(prefix: &str, name: &str) -> Option<(u64, u64)> {
    let mut parts = name.strip_prefix(prefix)?.splitn(3, '.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// The entries of a directory, in one order for all.
fn entries(dir: &Path) -> io::Result<Vec<(PathBuf, fs::Metadata)>> {
    let mut entries = Vec::new();
    // Not the standard library's way: that panics where a directory cannot be closed.
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

/// Copies what is in one directory into another, durably. Links are copied as links.
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

/// Opens a plain file; what has come in its place since it was looked at holds nobody up.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other(format!("{} is no file any more", path.display()))),
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
        // Each part with its length, so that no two trees read alike.
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
            // A pipe, a socket, a device: that it is there, for to open it could wait for ever.
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

    /// Somebody removed it while its writer waited for its turn.
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
        // Again, as after a crash: it has its name already.
        fs::remove_file(dir.join("site")).unwrap();
        tree.place(&beside, &inside, payload, &fence).unwrap();
        assert!(dir.join("site").is_dir());
        fs::remove_dir_all(dir).unwrap();
    }
}
