//! Starts the job: the only place with `unsafe`, and the only place that forks.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use leasehold_core::time::BootTime;
use rustix::io::{Errno, FdFlags};
use rustix::process::Pid;

use super::environment::{self, Variable};
use super::lookup::Program;
use super::tee::PipeEnds;
use leasehold::clock::boot_time;
use leasehold::liveness::lock::HolderLock;

/// What to start, and how.
#[derive(Debug)]
pub struct CommandSpec<'a> {
    /// The command, looked up beforehand.
    pub program: &'a Program,
    /// Its arguments, without its own name.
    pub args: &'a [OsString],
    /// Variables to set or to remove; all others are inherited.
    pub env: &'a [Variable],
    /// Leave the job in our own process group, because it shares a terminal with us.
    pub foreground: bool,
    /// The lock that the job inherits: while it is held, the job lives.
    pub lock: Option<&'a HolderLock>,
    /// The mark of all its processes, also of those that are no descendants ([`leasehold::liveness::lock::new_mark`]).
    pub mark: Option<u64>,
    /// The pipes for its output and error, if they are not our own.
    pub output: Option<&'a PipeEnds>,
    /// The command is executed by then, or never.
    pub by: Option<BootTime>,
}

/// Why the job was not started although its command was found.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The kernel refused to execute it: 126.
    #[error("{program}: {why}")]
    Refused {
        /// The command as the user wrote it.
        program: String,
        /// A sentence.
        why: String,
    },
    /// The job would be killed as soon as this thread ends: `PR_SET_PDEATHSIG` is per thread.
    #[error("a job can only be started from the main thread")]
    NotMainThread,
    /// Its lease was about to expire before it could be executed.
    #[error("{program} was not executed: the lease would have expired before it could start")]
    TooLate {
        /// The command as the user wrote it.
        program: String,
    },
}

impl SpawnError {
    /// The exit code a shell would give.
    pub fn exit_code(&self) -> u8 {
        if self.is_too_late() { 75 } else { 126 }
    }

    /// Whether nothing is wrong with the command.
    pub fn is_too_late(&self) -> bool {
        matches!(self, Self::TooLate { .. })
    }
}

/// Starts the job from the main thread and returns once it executes.
///
/// The job inherits standard input, the signal mask and ignored signals as they were; and output and error, unless its
/// output is kept. Only SIGPIPE has its default action in the job: Rust ignores it in this process from the start, and
/// how it was before is lost.
pub fn spawn(job: &CommandSpec<'_>) -> Result<Pid, SpawnError> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    if rustix::thread::gettid() != rustix::process::getpid() {
        return Err(SpawnError::NotMainThread);
    }
    let mut command = Command::new(&job.program.path);
    command.arg0(&job.program.name).args(job.args);
    environment::apply(&mut command, job.env);
    if !job.foreground {
        command.process_group(0);
    }
    let program = job.program.name.display().to_string();
    match given(&mut command, job.output).and_then(|()| forked(command, job)) {
        // Dropping the handle neither waits nor kills; the tree reaps.
        Ok(child) => Ok(Pid::from_child(&child)),
        Err(e) if Errno::from_io_error(&e) == Some(Errno::TIME) => Err(SpawnError::TooLate { program }),
        Err(e) => Err(SpawnError::Refused { program, why: sentence(&e) }),
    }
}

fn given(command: &mut Command, output: Option<&PipeEnds>) -> io::Result<()> {
    if let Some(ends) = output {
        command.stdout(ends.out.try_clone()?).stderr(ends.err.try_clone()?);
    }
    Ok(())
}

/// Makes a write beyond `ulimit -f` fail instead of killing this process. Call it first. The job is not affected: exec
/// removes a handler, and an ignored signal stays ignored.
#[allow(unsafe_code)]
pub fn outlive_full_files() {
    extern "C" fn nothing(_: libc::c_int) {}
    let handler = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: the handler does nothing, so it may come at any time.
    unsafe {
        if libc::signal(libc::SIGXFSZ, handler) == libc::SIG_IGN {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        }
    }
}

/// Keep clear of the low numbers that scripts redirect by hand (`exec 3>…`, `flock 9`).
const LOCK_FD: RawFd = 100;

#[allow(unsafe_code)]
fn forked(mut command: Command, job: &CommandSpec<'_>) -> io::Result<Child> {
    let (parent, mark) = (rustix::process::getpid(), job.mark);
    let fd = job.lock.map(|lock| lock.as_fd().as_raw_fd());
    let by = job.by;
    // SAFETY: between fork and exec the closure only makes system calls and formats two integers
    // on the stack: no allocation, no lock, no memory shared with the parent. The descriptor is
    // open in the child because the lock is borrowed, hence open, until `spawn` returns.
    unsafe {
        command.pre_exec(move || {
            die_with(parent)?;
            if let Some(mark) = mark {
                leasehold::liveness::lock::put_mark(mark);
            }
            if let Some(fd) = fd {
                leave_evidence(BorrowedFd::borrow_raw(fd))?;
            }
            by.map_or(Ok(()), in_time)
        });
    }
    command.spawn()
}

/// In the child, as the last thing: makes sure that the command is executed by then or never. The exec may take long (a
/// network mount, a virus scanner), so the kernel kills the child there.
fn in_time(by: BootTime) -> io::Result<()> {
    // Before the timer: if that killed a late child, the parent could not tell that nothing was executed.
    if boot_time() >= by {
        return Err(Errno::TIME.into());
    }
    end_at(by)
}

/// Sets a timer that kills the child. Exec removes the timer.
#[cfg(any(target_os = "linux", target_os = "android"))]
#[allow(unsafe_code)]
fn end_at(by: BootTime) -> io::Result<()> {
    let at = libc::timespec {
        tv_sec: by.0.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: by.0.subsec_nanos().into(),
    };
    // SAFETY: two system calls, with structures of ours that live as long as they take; zeros are a valid `sigevent` and
    // a valid `itimerspec`. Not by the functions of the C library: those may allocate.
    let made = unsafe {
        let mut event: libc::sigevent = std::mem::zeroed();
        (event.sigev_notify, event.sigev_signo) = (libc::SIGEV_SIGNAL, libc::SIGKILL);
        let mut times: libc::itimerspec = std::mem::zeroed();
        times.it_value = at;
        let mut timer: libc::c_int = 0;
        let none: *mut libc::itimerspec = std::ptr::null_mut();
        let made =
            libc::syscall(libc::SYS_timer_create, libc::CLOCK_BOOTTIME, &raw mut event, &raw mut timer);
        if made == 0 {
            libc::syscall(libc::SYS_timer_settime, timer, libc::TIMER_ABSTIME, &raw const times, none)
        } else {
            made
        }
    };
    // Not the system's own error, which would mean too many processes.
    if made == 0 { Ok(()) } else { Err(Errno::NOSR.into()) }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn end_at(_: BootTime) -> io::Result<()> {
    Ok(())
}

/// Has the kernel kill the job when this process dies. If it has died before, the job must not start.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn die_with(parent: Pid) -> io::Result<()> {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() != Some(parent) {
        return Err(Errno::SRCH.into());
    }
    Ok(())
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn die_with(_: Pid) -> io::Result<()> {
    Ok(())
}

/// Passes the lock on through exec and writes the job's process into it. The child does it, so that no job runs whose
/// process group is not written down.
fn leave_evidence(fd: BorrowedFd<'_>) -> io::Result<()> {
    use rustix::process::{getpgrp, getpid};
    let mut line = [0u8; 48];
    let mut rest = &mut line[..];
    // It fits: two numbers of at most ten digits.
    let (pid, group) = (getpid().as_raw_pid(), getpgrp().as_raw_pid());
    let _ = io::Write::write_fmt(&mut rest, format_args!("job {pid} {group}\n"));
    let used = 48 - rest.len();
    // A full disk must not keep the job from running. The mark is enough to find it.
    let _ = rustix::io::pwrite(fd, &line[..used], 0);
    match rustix::io::fcntl_dupfd_cloexec(fd, LOCK_FD) {
        Ok(high) => {
            rustix::io::fcntl_setfd(&high, FdFlags::empty())?;
            // Meant to outlive this function, through exec.
            std::mem::forget(high);
        }
        // Few descriptors allowed: then the number it has.
        Err(_) => rustix::io::fcntl_setfd(fd, FdFlags::empty())?,
    }
    Ok(())
}

fn sentence(e: &io::Error) -> String {
    match Errno::from_io_error(e) {
        // The file was found a moment ago, so its interpreter is missing.
        Some(Errno::NOENT) => {
            "cannot be executed: the interpreter on its first line, or its loader, does not exist".into()
        }
        Some(Errno::NOEXEC) => "cannot be executed: not a program for this machine".into(),
        Some(Errno::TOOBIG) => "the arguments and environment are too long".into(),
        Some(Errno::AGAIN) => "cannot be started: too many processes".into(),
        Some(Errno::NOSR) => {
            "cannot be started: the timer that would end it in time could not be made (ulimit -i)".into()
        }
        Some(Errno::NOMEM) => "cannot be started: out of memory".into(),
        Some(Errno::TXTBSY) => "cannot be executed: something is still writing to it".into(),
        Some(Errno::ACCESS) => "cannot be executed: permission denied".into(),
        _ => format!("cannot be started: {e}"),
    }
}
