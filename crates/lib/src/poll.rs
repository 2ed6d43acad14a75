//! The sleep of the main thread: one `poll` on a timer that counts through suspend, and on wake-ups from
//! other threads.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use leasehold_core::time::BootTime;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

/// Most descriptors that one [`wait`] takes.
pub const MAX: usize = 8;

/// The descriptors given to [`wait`] that are ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready(u8);

impl Ready {
    /// Whether the descriptor at this position is ready. A hang-up or an error counts, because a read reports it.
    pub fn has(self, position: usize) -> bool {
        position < MAX && self.0 & (1 << position) != 0
    }

    /// Whether nothing is ready. Only without a timerfd, when the timeout passed.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Sleeps until one of `fds` is ready to read. A signal handler that interrupts the sleep is no event,
/// because it makes its own descriptor ready.
pub fn wait(fds: &[BorrowedFd<'_>]) -> io::Result<Ready> {
    if fds.len() > MAX {
        return Err(Errno::INVAL.into());
    }
    // Unused places repeat the first descriptor; the kernel gets only `fds.len()` of them.
    let Some(first) = fds.first() else {
        return Err(Errno::INVAL.into());
    };
    let mut polled: [PollFd<'_>; MAX] =
        std::array::from_fn(|i| PollFd::from_borrowed_fd(*fds.get(i).unwrap_or(first), PollFlags::IN));
    let polled = &mut polled[..fds.len()];
    loop {
        match rustix::event::poll(polled, None) {
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    let mut ready = Ready::default();
    for (i, fd) in polled.iter().enumerate() {
        if !fd.revents().is_empty() {
            ready.0 |= 1 << i;
        }
    }
    Ok(ready)
}

/// Whether a line can be written to `fd` now without waiting for its reader.
pub fn takes_a_line(fd: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    loop {
        match rustix::event::poll(&mut polled, Some(&now)) {
            Err(Errno::INTR) => {}
            Ok(1) => return polled[0].revents().contains(PollFlags::OUT),
            _ => return false,
        }
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod timer {
    use super::{AsFd, BootTime, BorrowedFd, Errno, OwnedFd, io};
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };

    /// One absolute alarm on the boot-time clock.
    #[derive(Debug)]
    pub struct Timer(OwnedFd);

    impl Timer {
        /// A timer that is not armed.
        pub fn new() -> io::Result<Self> {
            let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
            Ok(Self(timerfd_create(TimerfdClockId::Boottime, flags)?))
        }

        /// Makes the descriptor ready at `at`, at once if that has passed. Replaces the alarm before.
        pub fn arm(&self, at: BootTime) -> io::Result<()> {
            let value = Timespec {
                tv_sec: i64::try_from(at.0.as_secs()).unwrap_or(i64::MAX),
                // All zero would disarm.
                tv_nsec: i64::from(at.0.subsec_nanos().max(1)),
            };
            self.set(value)
        }

        /// Never fires until armed again. Forgets a firing that was not taken yet.
        pub fn disarm(&self) -> io::Result<()> {
            self.set(Timespec { tv_sec: 0, tv_nsec: 0 })
        }

        fn set(&self, it_value: Timespec) -> io::Result<()> {
            let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
            let spec = Itimerspec { it_interval, it_value };
            timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &spec)?;
            Ok(())
        }

        /// Clears the firing, so that the descriptor is not ready any more. Gives whether it had fired.
        pub fn take(&self) -> bool {
            let mut count = [0; 8];
            loop {
                match rustix::io::read(&self.0, &mut count) {
                    Ok(_) => return true,
                    Err(Errno::INTR) => {}
                    Err(_) => return false,
                }
            }
        }
    }

    impl AsFd for Timer {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }
}

/// Other systems have no timerfd. The thread `timer` sleeps on a channel and writes to a pipe. Untested.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod timer {
    use super::{AsFd, BootTime, BorrowedFd, OwnedFd, Wake, io};
    use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

    /// One absolute alarm on the boot-time clock.
    #[derive(Debug)]
    pub struct Timer {
        set: Sender<Option<BootTime>>,
        wake: Wake,
    }

    fn serve(set: &Receiver<Option<BootTime>>, wake: &Wake) {
        let mut at: Option<BootTime> = None;
        loop {
            let next = match at {
                None => set.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(t) => set.recv_timeout(t.since(crate::clock::boot_time())),
            };
            match next {
                Ok(new) => at = new,
                Err(RecvTimeoutError::Timeout) => {
                    wake.wake();
                    at = None;
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    impl Timer {
        /// A timer that is not armed.
        pub fn new() -> io::Result<Self> {
            let wake = Wake::new()?;
            let theirs = wake.clone();
            let (set, requests) = channel();
            let thread = std::thread::Builder::new().name("timer".into());
            thread.spawn(move || serve(&requests, &theirs))?;
            Ok(Self { set, wake })
        }

        /// Makes the descriptor ready at `at`, at once if that has passed. Replaces the alarm before.
        pub fn arm(&self, at: BootTime) -> io::Result<()> {
            self.set.send(Some(at)).map_err(io::Error::other)
        }

        /// Never fires until armed again.
        pub fn disarm(&self) -> io::Result<()> {
            self.set.send(None).map_err(io::Error::other)
        }

        /// Clears the firing, so that the descriptor is not ready any more. Gives whether it had fired.
        pub fn take(&self) -> bool {
            self.wake.take()
        }
    }

    impl AsFd for Timer {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.wake.as_fd()
        }
    }
}

pub use timer::Timer;

/// Reports that the wall clock was set, on systems that tell.
#[derive(Debug)]
pub struct ClockSet(#[cfg(any(target_os = "linux", target_os = "android"))] OwnedFd);

#[cfg(any(target_os = "linux", target_os = "android"))]
impl ClockSet {
    /// Reports from now on.
    pub fn new() -> io::Result<Self> {
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let this = Self(timerfd_create(TimerfdClockId::Realtime, flags)?);
        this.arm()?;
        Ok(this)
    }

    /// Sets an alarm so late that it never fires. The kernel cancels it when the clock is set.
    fn arm(&self) -> io::Result<()> {
        use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
        let (never, none) = (Timespec { tv_sec: 1 << 40, tv_nsec: 0 }, Timespec { tv_sec: 0, tv_nsec: 0 });
        let flags = TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET;
        timerfd_settime(&self.0, flags, &Itimerspec { it_interval: none, it_value: never })?;
        Ok(())
    }

    /// Whether the clock was set. Clears that, so that the descriptor is not ready any more.
    pub fn take(&self) -> bool {
        let set = rustix::io::read(&self.0, &mut [0; 8]) == Err(Errno::CANCELED);
        set && self.arm().is_ok()
    }

    /// Ready when the clock was set.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}

/// Other systems do not tell.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
impl ClockSet {
    /// Reports nothing.
    pub fn new() -> io::Result<Self> {
        Ok(Self())
    }

    /// Always false.
    pub fn take(&self) -> bool {
        false
    }

    /// Never ready.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Wakes the main thread from another one. Clones wake the same sleeper.
#[derive(Clone, Debug)]
pub struct Wake {
    read: Arc<OwnedFd>,
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    write: Arc<OwnedFd>,
}

impl Wake {
    /// A new wake-up, not ready.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub fn new() -> io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { read: Arc::new(fd) })
    }

    /// A new wake-up, not ready.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub fn new() -> io::Result<Self> {
        use std::os::unix::net::UnixStream;
        let (read, write) = UnixStream::pair()?;
        read.set_nonblocking(true)?;
        write.set_nonblocking(true)?;
        Ok(Self { read: Arc::new(read.into()), write: Arc::new(write.into()) })
    }

    /// Makes the descriptor ready. Never blocks: a full descriptor is ready already.
    pub fn wake(&self) {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let end = &self.read;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let end = &self.write;
        while let Err(Errno::INTR) = rustix::io::write(end, &1u64.to_ne_bytes()) {}
    }

    /// Clears all wake-ups, so that the descriptor is not ready any more. Gives whether there was one.
    pub fn take(&self) -> bool {
        let mut count = [0; 64];
        let mut any = false;
        loop {
            match rustix::io::read(&self.read, &mut count) {
                Ok(n) if n > 0 => any = true,
                Err(Errno::INTR) => continue,
                _ => return any,
            }
            // An eventfd is empty after one read; only a pipe can hold more.
            if cfg!(any(target_os = "linux", target_os = "android")) {
                return any;
            }
        }
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.read.as_fd()
    }
}
