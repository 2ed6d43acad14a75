//! Finds, signals and reaps every process that the job started.
//!
//! This process is the subreaper: a descendant whose parent dies becomes its child, also in another session or group. So
//! the tree is empty exactly when there is no child left (`ECHILD`); until then a walk up the parents finds each process.
//! A control group is not used: to create one needs a delegated hierarchy and several system calls in every run, and
//! `cgroup.kill` finds nothing that this walk does not.

use std::collections::{HashMap, HashSet};
use std::io;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process, kill_process_group,
    pidfd_open, pidfd_send_signal, set_child_subreaper, wait, waitid,
};

use super::spawn::{self, CommandSpec, SpawnError};
pub use super::tree_types::{ProcessExit, Reaped, Survivor, Sweep};
use leasehold::liveness::proc::{self, Carries, Stat};

/// Passes over `/proc` before giving up on a tree that forks faster than it can be stopped.
const PASSES: usize = 100;

/// The processes of one run. Nothing else in this process may wait for children.
#[derive(Debug)]
pub struct ProcessTree {
    run_id: String,
    main: Option<Pid>,
    main_reaped: bool,
    foreground: bool,
    /// Children from before, of a shell that started them and then executed this program. They are left alone.
    foreign: Vec<Stat>,
    frozen: Vec<Stat>,
    /// The mark of every process of the job, if it could be set.
    mark: Option<u64>,
    /// Also wait for processes with the run id that are no descendants (`at`, `systemd-run`).
    strays: bool,
    /// Processes that the last KILL could not reach: they run as another user.
    untouchable: Vec<i32>,
    /// No child is left, so no process of the tree can appear any more.
    empty: bool,
}

impl ProcessTree {
    /// Makes this process the subreaper of everything the run will start.
    ///
    /// `run_id` must be new and hard to guess: a process with it in its environment counts as part of the run, and is
    /// killed with it.
    pub fn become_subreaper(run_id: &str) -> io::Result<Self> {
        if run_id.len() < leasehold::host::RUN_ID_SHORTEST {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the run id is too short"));
        }
        let me = rustix::process::getpid();
        let peek = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let foreign = match waitid(WaitId::All, peek) {
            Err(Errno::CHILD) => Vec::new(),
            _ => children(me.as_raw_pid())?,
        };
        set_child_subreaper(Some(me))?;
        Ok(Self {
            run_id: run_id.to_owned(),
            main: None,
            main_reaped: false,
            foreground: false,
            foreign,
            frozen: Vec::new(),
            mark: None,
            strays: false,
            untouchable: Vec::new(),
            empty: false,
        })
    }

    /// From now on the tree is not empty while a process with the run id lives, unless that could not be killed.
    pub(super) fn await_strays(&mut self) {
        self.strays = true;
    }

    /// Whether `/proc` shows our own processes. Without it a tree cannot be ended; in that of another namespace the numbers
    /// mean other processes.
    pub(super) fn can_see() -> bool {
        let me = rustix::process::getpid().as_raw_pid();
        let own = std::fs::read_link("/proc/self").ok();
        own.is_some_and(|own| own.as_os_str() == me.to_string().as_str()) && proc::stat(me).is_ok()
    }

    /// Starts the job in this tree. From the main thread only.
    pub fn start(&mut self, job: &CommandSpec<'_>) -> Result<Pid, SpawnError> {
        let pid = spawn::spawn(job)?;
        self.mark = job.mark;
        self.main = Some(pid);
        self.main_reaped = false;
        self.empty = false;
        self.foreground = job.foreground;
        Ok(pid)
    }

    /// Takes the exit of every child that has ended. Never blocks; no look at `/proc`.
    pub fn reap(&mut self) -> io::Result<Reaped> {
        let mut found = Reaped::default();
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if Some(pid) == self.main && !self.main_reaped => {
                    self.main_reaped = true;
                    found.main = ProcessExit::of(status);
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => break,
                Err(Errno::CHILD) => {
                    self.empty = !self.strays || !self.has_strays();
                    found.empty = self.empty;
                    return Ok(found);
                }
                Err(e) => return Err(e.into()),
            }
        }
        // With children from before there is never `ECHILD`.
        if !self.foreign.is_empty() && self.main_reaped {
            found.empty = self.members()?.is_empty();
        }
        Ok(found)
    }

    /// Passes a signal on to the job's process group; in the foreground, where the group is our
    /// own, to each process of the tree. (There the terminal has sent its own INT and QUIT to the
    /// job already.)
    pub fn signal_group(&mut self, signal: Signal) -> io::Result<()> {
        let Some(main) = self.main else {
            return Ok(());
        };
        if !self.foreground && !self.main_reaped {
            // Not reaped, so the number is still the job's.
            return match kill_process_group(main, signal) {
                Ok(()) | Err(Errno::SRCH) => Ok(()),
                Err(e) => Err(e.into()),
            };
        }
        for member in self.members()? {
            if self.foreground || member.group == main.as_raw_pid() {
                deliver(&member, signal)?;
            }
        }
        Ok(())
    }

    /// TERM to every process of the tree, once each, then CONT: a stopped process must wake to act on it, and one that
    /// was seen running may have stopped since.
    pub fn terminate(&mut self) -> io::Result<Sweep> {
        self.sweep(3, |member| {
            let sent = deliver(member, Signal::TERM)?;
            if sent == Delivery::Yes {
                deliver(member, Signal::CONT)?;
            }
            Ok(sent)
        })
    }

    /// KILL to every process of the tree, until a pass finds no new one. All are stopped first, so that none sees another
    /// die and starts a replacement. Returns before they are reaped.
    pub fn kill(&mut self) -> io::Result<Sweep> {
        // First the descendants: a look at every process of a busy machine may take longer than the lease lasts.
        let mut none = Sweep::default();
        self.descend(&mut none, &mut |member| deliver(member, Signal::STOP));
        self.descend(&mut none, &mut |member| deliver(member, Signal::KILL));
        self.sweep(PASSES, |member| deliver(member, Signal::STOP))?;
        self.frozen.clear();
        let sweep = self.sweep(PASSES, |member| deliver(member, Signal::KILL))?;
        self.untouchable = sweep.refused.iter().map(|refused| refused.pid).collect();
        Ok(sweep)
    }

    /// Stops every process of the tree until [`ProcessTree::thaw`].
    pub fn freeze(&mut self) -> io::Result<Sweep> {
        let mut frozen = std::mem::take(&mut self.frozen);
        let sweep = self.sweep(PASSES, |member| {
            // A process that the job itself has stopped stays stopped after the thaw.
            if !member.stopped() {
                frozen.push(*member);
            }
            deliver(member, Signal::STOP)
        });
        self.frozen = frozen;
        sweep
    }

    /// Wakes the processes that [`ProcessTree::freeze`] stopped.
    pub fn thaw(&mut self) -> io::Result<()> {
        let mut result = Ok(());
        for member in std::mem::take(&mut self.frozen) {
            // After a failure the others are woken all the same.
            result = deliver(&member, Signal::CONT).map(drop).and(result);
        }
        result
    }

    /// The processes of the tree that still run.
    pub fn survivors(&self) -> io::Result<Vec<Survivor>> {
        Ok(self.members()?.iter().map(survivor).collect())
    }

    /// Sends to all descendants without a look at other processes. Gives those it sent to. A process that is forked
    /// meanwhile may be missed.
    fn descend(&self, sweep: &mut Sweep, send: &mut impl FnMut(&Stat) -> io::Result<Delivery>) -> SentTo {
        let me = rustix::process::getpid().as_raw_pid();
        let mut seen = SentTo::new();
        for _ in 0..PASSES {
            let before = seen.len();
            let mut next = proc::children(me);
            next.retain(|child| self.belongs(child) && !child.kernel());
            while let Some(member) = next.pop() {
                let again = seen.contains(&(member.pid, member.start));
                // A process that was not reached is met again by the sweep.
                if !again && let Ok(sent) = send(&member) {
                    seen.insert((member.pid, member.start));
                    sweep.note(sent, &member);
                }
                next.extend(proc::children(member.pid));
            }
            if seen.len() == before {
                break;
            }
        }
        seen
    }

    /// Sends to every process of the tree, once each: first the descendants, then those that a look at all processes
    /// finds, until a pass finds no new one.
    fn sweep(&self, passes: usize, mut send: impl FnMut(&Stat) -> io::Result<Delivery>) -> io::Result<Sweep> {
        let mut sweep = Sweep { settled: self.empty, ..Sweep::default() };
        if self.empty {
            return Ok(sweep);
        }
        let mut seen = self.descend(&mut sweep, &mut send);
        for _ in 0..passes {
            let mut news = false;
            for member in self.census()? {
                if !seen.insert((member.pid, member.start)) {
                    continue;
                }
                // A new zombie counts too. A process that forks and ends faster than we look is never met alive, but
                // leaves a zombie: we do not reap now, and its parents are stopped.
                news = true;
                if !member.dead() {
                    sweep.note(send(&member)?, &member);
                }
            }
            if !news {
                sweep.settled = true;
                break;
            }
        }
        Ok(sweep)
    }

    /// Whether a process of the run is left that could be ended. False where processes cannot be looked at. Looks twice: a
    /// process that forks and ends could be missed by one look.
    fn has_strays(&self) -> bool {
        let ours = |stray: &Stat| !self.untouchable.contains(&stray.pid);
        let look = || self.members().is_ok_and(|members| members.iter().any(ours));
        look() || look()
    }

    /// The living processes of the run.
    fn members(&self) -> io::Result<Vec<Stat>> {
        let mut members = self.census()?;
        members.retain(|m| !m.dead());
        Ok(members)
    }

    /// Our descendants, also zombies, and the processes with the run id that are no descendants.
    fn census(&self) -> io::Result<Vec<Stat>> {
        let me = proc::stat(rustix::process::getpid().as_raw_pid())?;
        let (all, _) = proc::all()?;
        let mut known: HashMap<i32, Stat> = all.iter().map(|s| (s.pid, *s)).collect();
        let mut members = Vec::new();
        for process in all {
            if process.kernel() || process.pid == me.pid {
                continue;
            }
            let ours = match ancestor_below(&me, process, &mut known) {
                Some(top) => self.belongs(&top),
                None => process.start >= me.start && !process.dead() && self.carries(&process),
            };
            if ours {
                members.push(process);
            }
        }
        Ok(members)
    }

    /// Whether this child of ours, and so everything below it, is of this run.
    fn belongs(&self, child: &Stat) -> bool {
        if self.foreign.is_empty() || self.main.is_some_and(|m| m.as_raw_pid() == child.pid) {
            return true;
        }
        // An orphan: of the job, or of a child from before.
        let marked = self.mark.is_some() && proc::mark(child.pid) == self.mark;
        !self.foreign.iter().any(|f| f.same(child)) && (marked || self.carries(child))
    }

    fn carries(&self, process: &Stat) -> bool {
        proc::carries(process, &self.run_id) == Carries::Yes
    }
}

/// Processes that were sent to: number and start.
type SentTo = HashSet<(i32, u64)>;

impl Sweep {
    fn note(&mut self, sent: Delivery, member: &Stat) {
        if sent == Delivery::Refused {
            self.refused.push(survivor(member));
        }
    }
}

fn survivor(stat: &Stat) -> Survivor {
    Survivor { pid: stat.pid, command: proc::command(stat.pid) }
}

fn children(of: i32) -> io::Result<Vec<Stat>> {
    let (all, _) = proc::all()?;
    Ok(all.into_iter().filter(|s| s.parent == of).collect())
}

/// The child of `me` that `process` descends from (possibly itself).
///
/// The processes were not read at one instant. If a parent has ended since, its child is read again: it has a new parent
/// by now. A "parent" younger than its child is another process that got the same number.
fn ancestor_below(me: &Stat, process: Stat, known: &mut HashMap<i32, Stat>) -> Option<Stat> {
    let mut current = process;
    let mut repairs = 0;
    loop {
        if current.parent == me.pid {
            return (me.start <= current.start).then_some(current);
        }
        if current.parent == 0 {
            return None;
        }
        match known.get(&current.parent) {
            Some(parent) if parent.start <= current.start => current = *parent,
            _ if repairs == 8 => return None,
            _ => {
                repairs += 1;
                let again = proc::stat(current.pid).ok().filter(|s| s.same(&current))?;
                if again.parent != me.pid
                    && let Ok(parent) = proc::stat(again.parent)
                {
                    known.insert(parent.pid, parent);
                }
                known.insert(again.pid, again);
                current = again;
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivery {
    Yes,
    Gone,
    Refused,
}

/// Sends a signal to exactly that process. The handle is opened before the number is checked, so the signal cannot reach
/// another process that got the number since.
fn deliver(to: &Stat, signal: Signal) -> io::Result<Delivery> {
    let Some(pid) = Pid::from_raw(to.pid) else {
        return Ok(Delivery::Gone);
    };
    let handle = pidfd_open(pid, PidfdFlags::empty());
    if handle.as_ref().err() == Some(&Errno::SRCH) {
        return Ok(Delivery::Gone);
    }
    match proc::stat(to.pid) {
        Ok(now) if !now.same(to) => return Ok(Delivery::Gone),
        Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::NOENT | Errno::SRCH)) => {
            return Ok(Delivery::Gone);
        }
        // If nothing can be read any more, the earlier reading must do.
        Ok(_) | Err(_) => {}
    }
    // Without handles (an old kernel, a strict sandbox, no descriptor left) the number must do.
    let sent = match handle {
        Ok(handle) => pidfd_send_signal(&handle, signal),
        Err(_) => kill_process(pid, signal),
    };
    match sent {
        Ok(()) => Ok(Delivery::Yes),
        Err(Errno::SRCH) => Ok(Delivery::Gone),
        Err(Errno::PERM) => Ok(Delivery::Refused),
        Err(e) => Err(e.into()),
    }
}
