//! Notices that a file was changed.

#[cfg(target_os = "linux")]
mod kernel {
    use std::ffi::OsString;
    use std::mem::MaybeUninit;
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::MetadataExt;
    use std::path::{Path, PathBuf};

    use rustix::fs::inotify::{CreateFlags, Reader, WatchFlags, add_watch, init};

    /// Watches the directory: editors and configuration tools replace the file, or a link that leads to it.
    pub struct Watch(Option<Watching>);

    struct Watching {
        inotify: OwnedFd,
        path: PathBuf,
        name: OsString,
        seen: Option<Stamp>,
    }

    /// Identifies a file and its state, links followed: device, inode, length, and the times of the last change of its
    /// content and of its metadata.
    type Stamp = [i128; 5];

    fn stamp(path: &Path) -> Option<Stamp> {
        let meta = std::fs::metadata(path).ok()?;
        let nanos = |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
        let (written, changed) =
            (nanos(meta.mtime(), meta.mtime_nsec()), nanos(meta.ctime(), meta.ctime_nsec()));
        Some([meta.dev().into(), meta.ino().into(), meta.size().into(), written, changed])
    }

    impl Watching {
        fn new(path: &Path) -> Option<Self> {
            let path = std::path::absolute(path).ok()?;
            let inotify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
            let name = path.file_name()?.to_owned();
            let mut watching = Self { inotify, path, name, seen: None };
            watching.add(watching.path.parent()?)?;
            watching.look();
            Some(watching)
        }

        fn add(&self, dir: &Path) -> Option<()> {
            let changes = WatchFlags::CLOSE_WRITE | WatchFlags::MOVED_TO | WatchFlags::CREATE;
            add_watch(&self.inotify, dir, changes).ok().map(|_| ())
        }

        /// Whether the file has changed since the last look. A file that is gone has not: the next one has.
        fn look(&mut self) -> bool {
            // The file that a link leads to may change too.
            if let Ok(real) = self.path.canonicalize() {
                real.parent().and_then(|dir| self.add(dir));
            }
            let found = stamp(&self.path);
            let changed = found.is_some() && found != self.seen;
            self.seen = found.or(self.seen);
            changed
        }
    }

    impl Watch {
        /// From now on. If the system does not allow it, only a HUP reads the file again.
        pub fn new(path: &Path) -> Self {
            Self(Watching::new(path))
        }

        /// Ready when something happened.
        pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
            self.0.as_ref().map(|watching| watching.inotify.as_fd())
        }

        /// Whether it was changed since the last call.
        pub fn changed(&mut self) -> bool {
            let Some(watching) = &mut self.0 else { return false };
            let mut buffer = [MaybeUninit::uninit(); 4096];
            let mut reader = Reader::new(&watching.inotify, &mut buffer);
            let (mut any, mut named) = (false, false);
            while let Ok(event) = reader.next() {
                any = true;
                named |= event.file_name().is_none_or(|file| file.to_bytes() == watching.name.as_bytes());
            }
            // Another file of the directory may be a link to this one.
            let other = any && watching.look();
            named || other
        }
    }
}

/// Elsewhere only a HUP reads the file again.
#[cfg(not(target_os = "linux"))]
mod kernel {
    use std::os::fd::BorrowedFd;
    use std::path::Path;

    pub struct Watch;

    impl Watch {
        pub fn new(_: &Path) -> Self {
            Self
        }

        pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
            None
        }

        pub fn changed(&mut self) -> bool {
            false
        }
    }
}

pub use kernel::Watch;
