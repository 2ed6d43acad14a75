//! What the main thread sleeps on: a timer that counts through suspend, a wake-up from the keeper
//! thread, and one `poll`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use leasehold_core::time::BootTime;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

/// Most descriptors one [`wait`] takes.
pub const MAX: usize = 8;

/// Which of the descriptors given to [`wait`] have something to say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready(u8);

impl Ready {
    /// Whether the descriptor at this position is ready. A hang-up or error counts: reading tells.
    pub fn has(self, position: usize) -> bool {
        position < MAX && self.0 & (1 << position) != 0
    }

    /// Whether nothing is ready. Only without a timerfd, when the timeout passed.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Sleeps until one of `fds` is ready to read. A signal handler that interrupts the sleep is not an
/// event: it has made its own descriptor ready.
pub fn wait(fds: &[BorrowedFd<'_>]) -> io::Result<Ready> {
    if fds.len() > MAX {
        return Err(Errno::INVAL.into());
    }
    // Unused places repeat the first; only `fds.len()` of them are given to the kernel.
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

/// Whether a line can be written to `fd` now without waiting for whoever reads there.
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

        /// Makes the descriptor ready at `at`, at once if that has passed. Replaces what was armed.
        pub fn arm(&self, at: BootTime) -> io::Result<()> {
            let value = Timespec {
                tv_sec: i64::try_from(at.0.as_secs()).unwrap_or(i64::MAX),
                // All zero would disarm.
                tv_nsec: i64::from(at.0.subsec_nanos().max(1)),
            };
            self.set(value)
        }

        /// Never fires until armed again; a firing nobody has seen yet is forgotten.
        pub fn disarm(&self) -> io::Result<()> {
            self.set(Timespec { tv_sec: 0, tv_nsec: 0 })
        }

        fn set(&self, it_value: Timespec) -> io::Result<()> {
            let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
            let spec = Itimerspec { it_interval, it_value };
            timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &spec)?;
            Ok(())
        }

        /// Takes the firing, so that the descriptor is quiet again. Whether it had fired.
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

/// Elsewhere there is no timerfd: a thread that sleeps on a channel writes to a pipe. Untested.
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
            std::thread::Builder::new().spawn(move || serve(&requests, &theirs))?;
            Ok(Self { set, wake })
        }

        /// Makes the descriptor ready at `at`, at once if that has passed. Replaces what was armed.
        pub fn arm(&self, at: BootTime) -> io::Result<()> {
            self.set.send(Some(at)).map_err(io::Error::other)
        }

        /// Never fires until armed again.
        pub fn disarm(&self) -> io::Result<()> {
            self.set.send(None).map_err(io::Error::other)
        }

        /// Takes the firing, so that the descriptor is quiet again. Whether it had fired.
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

/// Says when somebody sets the wall clock, where the system tells.
#[derive(Debug)]
pub struct ClockSet(#[cfg(any(target_os = "linux", target_os = "android"))] OwnedFd);

#[cfg(any(target_os = "linux", target_os = "android"))]
impl ClockSet {
    /// From now on.
    pub fn new() -> io::Result<Self> {
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let this = Self(timerfd_create(TimerfdClockId::Realtime, flags)?);
        this.arm()?;
        Ok(this)
    }

    /// An alarm in a time that never comes, which is called off when the clock is set.
    fn arm(&self) -> io::Result<()> {
        use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
        let (never, none) = (Timespec { tv_sec: 1 << 40, tv_nsec: 0 }, Timespec { tv_sec: 0, tv_nsec: 0 });
        let flags = TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET;
        timerfd_settime(&self.0, flags, &Itimerspec { it_interval: none, it_value: never })?;
        Ok(())
    }

    /// Whether it was set; the descriptor is quiet again.
    pub fn take(&self) -> bool {
        let set = rustix::io::read(&self.0, &mut [0; 8]) == Err(Errno::CANCELED);
        set && self.arm().is_ok()
    }

    /// Ready when it was set.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}

/// Elsewhere nobody tells.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
impl ClockSet {
    /// Of no use.
    pub fn new() -> io::Result<Self> {
        Ok(Self())
    }

    /// Nothing.
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
    /// A wake-up that nobody has asked for yet.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub fn new() -> io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { read: Arc::new(fd) })
    }

    /// A wake-up that nobody has asked for yet.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub fn new() -> io::Result<Self> {
        use std::os::unix::net::UnixStream;
        let (read, write) = UnixStream::pair()?;
        read.set_nonblocking(true)?;
        write.set_nonblocking(true)?;
        Ok(Self { read: Arc::new(read.into()), write: Arc::new(write.into()) })
    }

    /// Makes the descriptor ready. Never blocks: when it is full, it is ready already.
    pub fn wake(&self) {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let end = &self.read;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let end = &self.write;
        while let Err(Errno::INTR) = rustix::io::write(end, &1u64.to_ne_bytes()) {}
    }

    /// Takes all wake-ups so far, so that the descriptor is quiet again. Whether there was one.
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
