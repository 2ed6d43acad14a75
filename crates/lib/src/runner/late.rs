//! A command that is not executed in time is not executed at all.
//!
//! Between fork and exec the main thread waits, and an exec can take long: a network mount, a scanner. So the child itself
//! looks at the clock right before, and a thread ends it if it comes no further.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread::JoinHandle;

use leasehold_core::time::BootTime;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

use super::poll::{self, Timer};
use crate::clock::boot_time;

/// Watches over one start.
pub(super) struct Watch {
    /// Open in the child until it executes, and in us until it has been started.
    child: OwnedFd,
    thread: JoinHandle<()>,
}

impl Watch {
    /// Whatever is started from now on executes by then, or never.
    pub(super) fn begin(by: BootTime) -> io::Result<Self> {
        let (ours, child) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let timer = Timer::new()?;
        timer.arm(by)?;
        let watching = std::thread::Builder::new().name("start".into()).stack_size(64 * 1024);
        let thread = watching.spawn(move || {
            let _ = watched(&ours, &timer);
        })?;
        Ok(Self { child, thread })
    }

    /// What the child says by, and to.
    pub(super) fn descriptor(&self) -> &OwnedFd {
        &self.child
    }

    /// It executes, or is gone.
    pub(super) fn end(self) {
        drop(self.child);
        // While the thread may still end somebody, nobody reaps: a number stays the child's.
        let _ = self.thread.join();
    }
}

/// In the child, right before it executes: says who it is, and whether it is too late.
pub(super) fn in_time(said: impl AsFd, by: BootTime) -> io::Result<()> {
    rustix::io::write(said, &getpid().as_raw_pid().to_ne_bytes())?;
    // After it has said so: whoever comes past this is known when the time is up.
    if boot_time() >= by { Err(rustix::io::Errno::TIME.into()) } else { Ok(()) }
}

/// Ends the child when the time is up, unless it executes before, or is gone.
fn watched(said: &OwnedFd, timer: &Timer) -> io::Result<()> {
    let mut child = None;
    loop {
        let ready = poll::wait(&[timer.as_fd(), said.as_fd()])?;
        let mut number = [0; 4];
        match rustix::io::read(said, &mut number) {
            Ok(4) => child = Pid::from_raw(i32::from_ne_bytes(number)),
            Ok(_) => return Ok(()),
            Err(_) => {}
        }
        if ready.has(0) {
            let Some(child) = child else { return Ok(()) };
            return Ok(pidfd_send_signal(pidfd_open(child, PidfdFlags::empty())?, Signal::KILL)?);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::time::Duration;

    use super::*;

    /// A start that gets no further than the check: the child has said who it is, and hangs.
    #[test]
    fn a_start_that_hangs_is_ended_when_its_time_is_up() {
        let mut hanging = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let watch = Watch::begin(boot_time().plus(Duration::from_millis(50))).unwrap();
        let number = i32::try_from(hanging.id()).unwrap();
        rustix::io::write(watch.descriptor(), &number.to_ne_bytes()).unwrap();
        assert_eq!(hanging.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
        watch.end();
    }

    #[test]
    fn one_that_executes_in_time_is_left_alone() {
        let watch = Watch::begin(boot_time().plus(Duration::from_secs(3600))).unwrap();
        in_time(watch.descriptor(), boot_time().plus(Duration::from_secs(3600))).unwrap();
        watch.end();
    }

    #[test]
    fn who_comes_too_late_is_told_so() {
        let (_kept, said) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        assert!(in_time(&said, boot_time()).is_err());
        assert!(in_time(&said, boot_time().plus(Duration::from_secs(3600))).is_ok());
    }
}
