//! Finds out whether a holder on this machine is gone, so that the next run can take the lease at once after a
//! crash and need not wait until it expires. In doubt the answer is [`Probe::Unsure`].

pub mod lock;
#[cfg(any(target_os = "linux", target_os = "android"))]
pub mod proc;

use std::fmt;
use std::io;
use std::path::Path;

use leasehold_core::ids::Grant;

/// The state of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Nothing of its run is left on this machine, and it never ran elsewhere.
    Gone,
    /// A process of its run lives.
    Alive,
    /// Unknown; the lease must expire.
    Unsure,
}

/// In place of the name of an unknown namespace.
const UNKNOWN: &str = "-";

/// The description of a lock file in a lease record.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LockText {
    boot: String,
    pid_ns: String,
    time_ns: String,
    dev: u64,
    ino: u64,
    /// When the file was made, in clock ticks after boot. No process of the run is older.
    born: u64,
    mark: Option<u64>,
}

impl fmt::Display for LockText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { boot, pid_ns, time_ns, dev, ino, born, mark } = self;
        let mark = mark.unwrap_or(0);
        write!(f, "1 {boot} {pid_ns} {time_ns} {dev:x} {ino} {born} {mark:x}")
    }
}

impl LockText {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(' ');
        if parts.next() != Some("1") {
            return None;
        }
        let mut word = || parts.next().filter(|w| !w.is_empty());
        let text = Self {
            boot: word()?.to_owned(),
            pid_ns: word()?.to_owned(),
            time_ns: word()?.to_owned(),
            dev: u64::from_str_radix(word()?, 16).ok()?,
            ino: word()?.parse().ok()?,
            born: word()?.parse().ok()?,
            mark: Some(u64::from_str_radix(word()?, 16).ok()?).filter(|m| *m != 0),
        };
        parts.next().is_none().then_some(text)
    }
}

/// Whether the run that holds `grant` still has a living process. `text` names its lock file and comes from
/// [`lock::HolderLock::describe`]. Only for a holder on a store that is local to this machine. It disturbs no
/// other process.
pub fn probe(dir: &Path, grant: Grant, run_id: &str, text: &str) -> Probe {
    explain(dir, grant, run_id, text).0
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod here {
    use super::{Grant, LockText, Path, Probe, UNKNOWN, io};

    impl LockText {
        pub(super) fn here(dev: u64, ino: u64, mark: Option<u64>) -> io::Result<Self> {
            let none = || UNKNOWN.to_owned();
            Ok(Self { boot: none(), pid_ns: none(), time_ns: none(), dev, ino, born: 0, mark })
        }
    }

    /// [`super::probe`], with the reason.
    pub fn explain(_: &Path, _: Grant, _: &str, text: &str) -> (Probe, &'static str) {
        let _ = LockText::parse(text);
        (Probe::Unsure, "not supported on this system")
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod here {
    use std::fs::{File, TryLockError};
    use std::io::Read;
    use std::os::unix::fs::MetadataExt;
    use std::time::Duration;

    use super::lock;
    use super::proc::{self, Carries, Stat};
    use super::{Grant, LockText, Path, Probe, UNKNOWN, io};

    impl LockText {
        /// Describes a file just made by this process.
        pub(super) fn here(dev: u64, ino: u64, mark: Option<u64>) -> io::Result<Self> {
            let none = || UNKNOWN.to_owned();
            let pid_ns = std::fs::read_link("/proc/self/ns/pid");
            let boot = crate::clock::boot_id().ok_or(rustix::io::Errno::NOENT)?;
            Ok(Self {
                boot: boot.replace(' ', "_"),
                pid_ns: pid_ns.map_or_else(|_| none(), |link| link.to_string_lossy().replace(' ', "_")),
                time_ns: crate::clock::time_namespace().unwrap_or_else(none),
                dev,
                ino,
                born: ticks_now(),
                mark,
            })
        }
    }

    fn ticks_now() -> u64 {
        let now = crate::clock::boot_time().0;
        let hz = rustix::param::clock_ticks_per_second();
        now.as_secs() * hz + u64::from(now.subsec_nanos()) * hz / 1_000_000_000
    }

    /// [`super::probe`], with the reason.
    pub fn explain(dir: &Path, grant: Grant, run_id: &str, text: &str) -> (Probe, &'static str) {
        match question(dir, grant, run_id, text) {
            Ok(()) => (Probe::Gone, "nothing of its run is left"),
            Err(answer) => answer,
        }
    }

    fn unsure(why: &'static str) -> (Probe, &'static str) {
        (Probe::Unsure, why)
    }

    fn question(dir: &Path, grant: Grant, run_id: &str, text: &str) -> Result<(), (Probe, &'static str)> {
        if run_id.len() < crate::host::RUN_ID_SHORTEST {
            return Err(unsure("the run id is too short"));
        }
        let recorded = LockText::parse(text).ok_or(unsure("the record describes no lock we know"))?;
        let file = lock::open(dir, grant).map_err(|_| unsure("no lock file"))?;
        let meta = file.metadata().map_err(|_| unsure("lock file unreadable"))?;
        let ours = LockText::here(meta.dev(), meta.ino(), None);
        let ours = ours.map_err(|_| unsure("this boot has no identity"))?;
        if ours.boot != recorded.boot {
            return Err(unsure("another boot"));
        }
        if ours.pid_ns != recorded.pid_ns
            || ours.time_ns != recorded.time_ns
            || recorded.pid_ns == UNKNOWN
            || recorded.time_ns == UNKNOWN
        {
            return Err(unsure("another container"));
        }
        if (ours.dev, ours.ino) != (recorded.dev, recorded.ino) || recorded.born > ours.born {
            return Err(unsure("another lock file"));
        }
        let local = crate::backends::local::is_local(&file).unwrap_or(false);
        if !local {
            return Err(unsure("not on a local file system"));
        }
        // A shared lock for a moment: `lock` says why that disturbs no other process.
        match file.try_lock_shared() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err((Probe::Alive, "its lock is held")),
            Err(TryLockError::Error(_)) => return Err(unsure("the lock cannot be asked")),
        }
        let search = Search {
            run_id,
            mark: recorded.mark,
            // Start times of processes are rounded down to whole ticks.
            born: recorded.born.saturating_sub(1),
            job: job(&file),
        };
        drop(file);
        // The lock stays free, because nobody can take it again. Processes that closed it are searched for
        // twice: one that forks and ends could be missed by one search.
        search.search()?;
        search.search()
    }

    /// The pid and process group that the job wrote into the file just before it executed its command.
    fn job(mut file: &File) -> Option<(i32, i32)> {
        let mut line = [0; 64];
        let n = file.read(&mut line).ok()?;
        let line = std::str::from_utf8(&line[..n]).ok()?;
        let (pid, group) = line.strip_prefix("job ")?.strip_suffix('\n')?.split_once(' ')?;
        Some((pid.parse().ok()?, group.parse().ok()?))
    }

    const EMPTY: &str = "a process with an empty environment";
    /// Milliseconds between looks at an executing process. In sum a third of the time in which a run must start
    /// after a crash.
    const EXECUTING: [u64; 6] = [0, 1, 2, 4, 8, 16];

    /// What a look at one process shows.
    enum Judged {
        /// It does not belong to the run, or has ended.
        Gone,
        /// It belongs to the run.
        Alive(&'static str),
        /// Its environment is empty: it was started by `env -i`, or is just executing a program, which passes.
        Executing,
        /// It cannot be examined.
        Unsure(&'static str),
    }

    struct Search<'a> {
        run_id: &'a str,
        mark: Option<u64>,
        born: u64,
        job: Option<(i32, i32)>,
    }

    impl Search<'_> {
        /// Looks at every process until none was just executing a program.
        fn search(&self) -> Result<(), (Probe, &'static str)> {
            let me = rustix::process::getpid().as_raw_pid();
            for _ in 0..5 {
                let executing = self.pass(me)?;
                if executing.is_empty() {
                    return Ok(());
                }
                self.executed(executing, me)?;
            }
            Err(unsure(EMPTY))
        }

        /// Looks at every process once; gives those that were just executing a program.
        fn pass(&self, me: i32) -> Result<Vec<Stat>, (Probe, &'static str)> {
            // Inside another run, or under such a limit set by the user, the job could not be marked.
            if self.mark.is_none() {
                return Err(unsure("the job has no mark"));
            }
            if !proc::complete() {
                return Err(unsure("/proc does not show every process"));
            }
            let (all, hidden) = proc::all().map_err(|_| unsure("/proc is unreadable"))?;
            let mut doubt = hidden.then_some("a process may not be looked at");
            let mut executing = Vec::new();
            for process in all {
                // No process of the run is older than its lock. So our ancestors do not count, unless they
                // were started inside the run; then the run is not gone.
                if process.start < self.born || process.dead() || process.kernel() {
                    continue;
                }
                match self.judge(&process, process.pid == me) {
                    Judged::Gone => {}
                    Judged::Executing => executing.push(process),
                    Judged::Alive(why) => return Err((Probe::Alive, why)),
                    Judged::Unsure(why) => doubt = Some(why),
                }
            }
            doubt.map_or(Ok(executing), |why| Err(unsure(why)))
        }

        /// Waits until these processes run their next program. On a slow disk that takes time.
        fn executed(&self, mut executing: Vec<Stat>, me: i32) -> Result<(), (Probe, &'static str)> {
            for wait in EXECUTING {
                if executing.is_empty() {
                    return Ok(());
                }
                std::thread::park_timeout(Duration::from_millis(wait));
                let mut still = Vec::new();
                for process in executing {
                    match self.judge(&process, process.pid == me) {
                        Judged::Gone => {}
                        Judged::Executing => still.push(process),
                        Judged::Alive(why) => return Err((Probe::Alive, why)),
                        Judged::Unsure(why) => return Err(unsure(why)),
                    }
                }
                executing = still;
            }
            if executing.is_empty() { Ok(()) } else { Err(unsure(EMPTY)) }
        }

        fn judge(&self, process: &Stat, myself: bool) -> Judged {
            // The mark first: a process keeps it while it executes a program, when its environment looks empty.
            if self.mark.is_some() && proc::mark(process.pid) == self.mark {
                return Judged::Alive("a process has its mark");
            }
            let carries = proc::carries(process, self.run_id);
            if carries == Carries::Yes {
                return Judged::Alive("a process has its run id");
            }
            // A job in the foreground has its caller's group, and this process may be in it too.
            if !myself && self.job.is_some_and(|job| in_job(process, job)) {
                return Judged::Alive("a process is in its process group");
            }
            match carries {
                Carries::Empty if lives(process) => Judged::Executing,
                Carries::Unreadable if !myself && lives(process) => {
                    Judged::Unsure("a process whose environment may not be read")
                }
                _ => Judged::Gone,
            }
        }
    }

    fn in_job(process: &Stat, (pid, group): (i32, i32)) -> bool {
        process.pid == pid || process.group == group || process.group == pid || process.session == pid
    }

    fn lives(process: &Stat) -> bool {
        proc::stat(process.pid).is_ok_and(|now| now.same(process) && !now.dead() && !now.dying())
    }
}

pub use here::explain;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_reads_only_what_it_writes() {
        let text = LockText::here(0x801, 42, Some(7)).unwrap();
        assert_eq!(LockText::parse(&text.to_string()), Some(text.clone()));
        for bad in ["", "1", "2 a b c 1 2 3 0", "1 a b c 1 2 3", "1 a b c 1 2 3 0 x", "1 a  c 1 2 3 0"] {
            assert_eq!(LockText::parse(bad), None, "{bad}");
        }
    }
}
