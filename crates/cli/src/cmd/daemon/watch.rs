//! Notices that a file was changed.

#[cfg(target_os = "linux")]
mod kernel {
    use std::ffi::OsString;
    use std::mem::MaybeUninit;
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    use rustix::fs::inotify::{CreateFlags, Reader, WatchFlags, add_watch, init};

    /// Watches the directory: editors and configuration tools put a new file in place of the old one.
    pub struct Watch(Option<(OwnedFd, OsString)>);

    impl Watch {
        /// From now on; if the system does not let us, a HUP has to do.
        pub fn new(path: &Path) -> Self {
            let watching = || {
                let path = std::path::absolute(path).ok()?;
                let inotify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
                let changes = WatchFlags::CLOSE_WRITE | WatchFlags::MOVED_TO | WatchFlags::CREATE;
                add_watch(&inotify, path.parent()?, changes).ok()?;
                Some((inotify, path.file_name()?.to_owned()))
            };
            Self(watching())
        }

        /// Ready when something happened.
        pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
            self.0.as_ref().map(|(inotify, _)| inotify.as_fd())
        }

        /// Whether it was changed since the last call.
        pub fn changed(&self) -> bool {
            let Some((inotify, name)) = &self.0 else { return false };
            let mut buffer = [MaybeUninit::uninit(); 4096];
            let mut reader = Reader::new(inotify, &mut buffer);
            let mut changed = false;
            while let Ok(event) = reader.next() {
                changed |= event.file_name().is_none_or(|file| file.to_bytes() == name.as_bytes());
            }
            changed
        }
    }
}

/// Elsewhere a HUP says so.
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

        pub fn changed(&self) -> bool {
            false
        }
    }
}

pub use kernel::Watch;
