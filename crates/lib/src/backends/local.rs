//! Shared by the stores on this machine's disks: stamps of the boot-time clock, whether a file system is
//! local, and sentences for error numbers.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_core::time::BootTime;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::clock::{boot_id, boot_time, time_namespace};
use crate::stores::{Failure, FailureKind, Remark, RemarkLevel};

/// The clock domain of a boot-time reading: two readings compare only within one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Domain {
    /// `/etc/machine-id`; absent in many containers.
    machine: Option<String>,
    /// New at every boot.
    boot: Option<String>,
    /// The time namespace, which may shift the boot-time clock.
    time_namespace: Option<String>,
}

impl Domain {
    /// The domain this process runs in.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub fn here() -> Self {
        Self {
            machine: small_file("/etc/machine-id").and_then(|t| hex_id(&t)),
            boot: boot_id().and_then(hex_id),
            time_namespace: time_namespace(),
        }
    }

    /// The domain this process runs in. It is unknown here, so no age is known either.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub fn here() -> Self {
        Self::default()
    }

    /// The same clock, for a server that writes for holders on other machines. Its stamps name no machine, because a
    /// reboot of this machine says nothing about those holders.
    pub fn nameless(&self) -> Self {
        Self { machine: None, ..self.clone() }
    }

    /// A stamp for something written now.
    pub fn stamp(&self) -> Stamp {
        Stamp { domain: self.clone(), boot_time: boot_time() }
    }

    /// How long ago `stamp` was made, if that can be known here.
    ///
    /// If it was made in another boot of this machine, the process that made it has died with that boot, so the
    /// age is [`Duration::MAX`]. [`Domain::nameless`] prevents that for stamps on behalf of others.
    pub fn age(&self, stamp: &Stamp) -> Option<Duration> {
        self.age_at(stamp, boot_time())
    }

    fn age_at(&self, stamp: &Stamp, now: BootTime) -> Option<Duration> {
        let theirs = &stamp.domain;
        let (here, there) = (self.boot.as_ref()?, theirs.boot.as_ref()?);
        if here == there {
            let same_clock = self.time_namespace.is_some() && self.time_namespace == theirs.time_namespace;
            return same_clock.then(|| now.0.checked_sub(stamp.boot_time.0)).flatten();
        }
        (self.machine.is_some() && self.machine == theirs.machine).then_some(Duration::MAX)
    }
}

/// Reads a file of one short line with three system calls, because every run does this.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn small_file(path: &str) -> Option<String> {
    let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut bytes = [0_u8; 64];
    let length = rustix::io::read(&fd, &mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
}

/// 32 hexadecimal digits, with or without dashes, that are not all zero ("uninitialized" is common
/// in images).
fn hex_id(text: &str) -> Option<String> {
    let id: String = text.trim().chars().filter(|c| *c != '-').collect();
    let good = id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit()) && id.bytes().any(|b| b != b'0');
    good.then(|| id.to_ascii_lowercase())
}

/// When something was written, by the clock of the machine that wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The domain of the clock.
    pub domain: Domain,
    /// The clock's reading.
    pub boot_time: BootTime,
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn part(part: &Option<String>) -> &str {
            part.as_deref().unwrap_or("-")
        }
        let at = self.boot_time.0;
        write!(
            f,
            "{}/{}/{}/{}.{:09}",
            part(&self.domain.machine),
            part(&self.domain.boot),
            part(&self.domain.time_namespace),
            at.as_secs(),
            at.subsec_nanos()
        )
    }
}

impl Stamp {
    /// The stamp of a record that replaces one with the stamp `before`. It names no machine if `before` names none: a person
    /// on this machine may have changed the record of a holder elsewhere.
    pub fn after(self, before: Option<&Self>) -> Self {
        match before {
            Some(Self { domain: Domain { machine: Some(_), .. }, .. }) => self,
            _ => Self { domain: self.domain.nameless(), ..self },
        }
    }

    /// Reads the text that `Display` writes.
    pub fn parse(text: &str) -> Option<Self> {
        fn part(text: &str) -> Option<String> {
            (text != "-").then(|| text.to_owned())
        }
        let mut parts = text.split('/');
        let (machine, boot) = (part(parts.next()?), part(parts.next()?));
        let time_namespace = part(parts.next()?);
        let (seconds, nanos) = parts.next()?.split_once('.')?;
        let plain = |t: &str| !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit());
        if parts.next().is_some() || nanos.len() != 9 || !plain(seconds) || !plain(nanos) {
            return None;
        }
        Some(Self {
            domain: Domain { machine, boot, time_namespace },
            boot_time: BootTime(Duration::new(seconds.parse().ok()?, nanos.parse().ok()?)),
        })
    }
}

/// File systems that only this machine can have mounted. All others count as shared: a missing entry is
/// inconvenient, a wrong one breaks leases.
const LOCAL_FILE_SYSTEMS: [(u64, &str); 13] = [
    (0xEF53, "ext2, ext3, ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683E, "btrfs"),
    (0x0102_1994, "tmpfs"),
    (0x8584_58F6, "ramfs"),
    (0x2FC1_2FC1, "zfs"),
    (0xF2F5_2010, "f2fs"),
    (0x794C_7630, "overlayfs"),
    (0xCA45_1A4E, "bcachefs"),
    (0x3153_464A, "jfs"),
    (0x5265_4973, "reiserfs"),
    (0x3434, "nilfs2"),
    (0x2405_1905, "ubifs"),
];

/// Whether the file system under `fd` can be reached from this machine alone.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn is_local(fd: impl AsFd) -> Result<bool, Errno> {
    Ok(local_kind(fd)?.is_some())
}

/// The name of the local file system that this is, if it is one.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn local_kind(fd: impl AsFd) -> Result<Option<&'static str>, Errno> {
    // The field's width and sign differ by architecture; the magic numbers are 32 bits wide.
    #[allow(clippy::cast_sign_loss, clippy::cast_possible_truncation)]
    let kind = u64::from(rustix::fs::fstatfs(fd)?.f_type as u32);
    Ok(LOCAL_FILE_SYSTEMS.iter().find(|(magic, _)| *magic == kind).map(|(_, name)| *name))
}

/// The remark of `leasehold doctor` about the file system under `fd`.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn examined(fd: impl AsFd) -> Remark {
    let (verdict, text) = match local_kind(fd) {
        Ok(Some(name @ ("tmpfs" | "ramfs"))) => (
            RemarkLevel::Weak,
            format!("{name}, which is in memory: a reboot loses every lease and its token"),
        ),
        Ok(Some("overlayfs")) => (
            RemarkLevel::Weak,
            "overlayfs, as in a container: files outside of a volume are lost with the container".into(),
        ),
        Ok(Some(name)) => (RemarkLevel::Good, format!("local ({name})")),
        Ok(None) => (
            RemarkLevel::Weak,
            "not known to be local, so its server and caches decide whether a lease has only one holder"
                .into(),
        ),
        Err(e) => (RemarkLevel::Weak, format!("unknown ({e})")),
    };
    Remark { about: "filesystem", verdict, text }
}

/// The remark of `leasehold doctor` about the file system under `fd`, which is unknown here.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub fn examined(_fd: impl AsFd) -> Remark {
    Remark { about: "filesystem", verdict: RemarkLevel::Weak, text: "unknown on this system".into() }
}

/// Whether the file system under `fd` can be reached from this machine alone. Untested here.
#[cfg(any(target_os = "macos", target_os = "freebsd"))]
pub fn is_local(fd: impl AsFd) -> Result<bool, Errno> {
    const MNT_LOCAL: u64 = 0x1000;
    Ok(u64::from(rustix::fs::fstatfs(fd)?.f_flags) & MNT_LOCAL != 0)
}

/// Whether the file system under `fd` can be reached from this machine alone: unknown here.
#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "macos", target_os = "freebsd")))]
pub fn is_local(_fd: impl AsFd) -> Result<bool, Errno> {
    Ok(false)
}

/// A path whose directory was opened and made canonical. Its last component is as given.
#[derive(Debug)]
pub struct OpenedPath {
    /// The directory that holds it.
    pub parent: OwnedFd,
    /// That directory's path without symbolic links.
    pub parent_path: PathBuf,
    /// The last component.
    pub name: String,
}

impl OpenedPath {
    /// Opens the directory that holds `path`. Symbolic links in the path are followed.
    pub fn find(path: &str) -> Result<Self, Failure> {
        let given = Path::new(path);
        let name = given.file_name().and_then(|n| n.to_str());
        let Some(name) = name.filter(|_| !path.ends_with('/')) else {
            return Err(unusable(format!(
                "{path:?} does not end in a name. Give the full path, without a slash at the end."
            )));
        };
        let parent = match given.parent() {
            Some(p) if !p.as_os_str().is_empty() => p,
            _ => Path::new("."),
        };
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        let fd = rustix::fs::open(parent, flags, Mode::empty())
            .map_err(|e| trouble(e, &format!("The directory {} cannot be opened", parent.display())))?;
        let parent_path = real_path(&fd, parent)
            .map_err(|e| trouble(e, &format!("{} cannot be resolved", parent.display())))?;
        Ok(Self { parent: fd, parent_path, name: name.to_owned() })
    }

    /// The whole path.
    pub fn path(&self) -> PathBuf {
        self.parent_path.join(&self.name)
    }
}

/// The path of an open directory, with one system call if /proc has it.
fn real_path(fd: &OwnedFd, given: &Path) -> Result<PathBuf, Errno> {
    use rustix::fd::AsRawFd;
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    if let Ok(path) = std::fs::read_link(link)
        && path.is_absolute()
    {
        return Ok(path);
    }
    std::fs::canonicalize(given).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
}

/// A failure that a retry does not help.
pub(super) fn unusable(message: String) -> Failure {
    Failure::new(FailureKind::Unusable, message)
}

/// A failure that explains `errno`: of the call that writes, or of one before it. `what` is a sentence without its full stop.
pub(super) fn trouble(errno: Errno, what: &str) -> Failure {
    let (kind, advice) = match errno {
        Errno::ACCESS | Errno::PERM => {
            (FailureKind::Denied, "this user may not do that. Change the permissions, or use another store")
        }
        Errno::ROFS => (
            FailureKind::Denied,
            "the file system is mounted read-only. Mount it for writing, or use another store",
        ),
        Errno::NOSPC | Errno::DQUOT => (
            FailureKind::Unreachable,
            "the disk is full or the quota is used up, and nothing was written. Make room and try again",
        ),
        Errno::NOENT => (FailureKind::Unusable, "it does not exist. Create it, or correct the path"),
        Errno::NOTDIR => {
            (FailureKind::Unusable, "part of the path is a file, not a directory. Correct the path")
        }
        Errno::LOOP => (
            FailureKind::Unusable,
            "it is a symbolic link, which may lead anywhere. Give the real path, or remove the link",
        ),
        Errno::NAMETOOLONG => {
            (FailureKind::Unusable, "the name is too long for this file system. Use a shorter path")
        }
        Errno::NOSYS | Errno::OPNOTSUPP => (
            FailureKind::Unusable,
            "this file system cannot do that. Use another file system or another store",
        ),
        _ => (
            FailureKind::Unreachable,
            "the file system failed. Try again; if that does not help, look at the kernel's log",
        ),
    };
    let code = errno.raw_os_error();
    let message = format!("{what} (error {code}): {advice}.");
    match (errno, kind) {
        (Errno::NOSPC | Errno::DQUOT, _) | (_, FailureKind::Denied) => Failure::not_written(kind, message),
        _ => Failure::new(kind, message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domain(machine: &str, boot: &str, namespace: &str) -> Domain {
        let part = |t: &str| (!t.is_empty()).then(|| t.to_owned());
        Domain { machine: part(machine), boot: part(boot), time_namespace: part(namespace) }
    }

    fn at(domain: Domain, seconds: u64) -> Stamp {
        Stamp { domain, boot_time: BootTime(Duration::from_secs(seconds)) }
    }

    #[test]
    fn ages_are_told_only_where_they_are_sure() {
        let here = domain("m", "b", "1");
        let now = BootTime(Duration::from_secs(100));
        let age = |there: Domain, seconds| here.age_at(&at(there, seconds), now);
        assert_eq!(age(here.clone(), 40), Some(Duration::from_secs(60)));
        assert_eq!(age(here.clone(), 101), None, "from the future");
        assert_eq!(age(domain("other", "b", "1"), 40), Some(Duration::from_secs(60)));
        assert_eq!(age(domain("m", "b", "2"), 40), None, "another time namespace");
        assert_eq!(age(domain("m", "b", ""), 40), None);
        assert_eq!(age(domain("m", "old", "1"), 400), Some(Duration::MAX));
        assert_eq!(age(domain("m", "old", "7"), 400), Some(Duration::MAX));
        assert_eq!(age(domain("other", "old", "1"), 40), None, "another machine");
        assert_eq!(age(domain("", "old", "1"), 40), None);
        assert_eq!(age(domain("m", "", "1"), 40), None);
        assert_eq!(age(domain("m", "old", "1").nameless(), 40), None, "of a holder elsewhere");
        assert_eq!(age(here.nameless(), 40), Some(Duration::from_secs(60)));
        let nameless = domain("", "b", "1");
        assert_eq!(nameless.age_at(&at(domain("", "old", "1"), 1), now), None);
        assert_eq!(Domain::default().age_at(&at(Domain::default(), 1), now), None);
    }

    #[test]
    fn a_stamp_reads_only_what_it_writes() {
        for domain in [domain("m", "b", "1"), Domain::default(), Domain::here()] {
            let stamp = domain.stamp();
            assert_eq!(Stamp::parse(&stamp.to_string()), Some(stamp));
        }
        for bad in ["", "-", "-/-/-/1", "-/-/-/1.5", "-/-/-/+1.000000000", "a/b/c/1.000000000/d"] {
            assert_eq!(Stamp::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_was_stamped_for_others_stays_so() {
        let (own, served) = (at(domain("m", "b", "1"), 4), at(domain("m", "b", "1").nameless(), 4));
        assert_eq!(own.clone().after(Some(&own)), own);
        assert_eq!(own.clone().after(Some(&served)), served);
        assert_eq!(own.clone().after(None), served);
        assert_eq!(served.clone().after(Some(&own)), served);
    }

    #[test]
    fn an_image_without_a_machine_id_has_none() {
        assert_eq!(hex_id("uninitialized\n"), None);
        assert_eq!(hex_id(""), None);
        assert_eq!(hex_id(&"0".repeat(32)), None);
        assert_eq!(hex_id("90441ACA-1fb5-409f-ada6-610456225797\n").unwrap().len(), 32);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn proc_is_not_a_local_disk() {
        let proc = std::fs::File::open("/proc").unwrap();
        assert_eq!(is_local(&proc), Ok(false));
    }
}
