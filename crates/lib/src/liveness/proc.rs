//! Reads `/proc`. A run that goes well uses only [`signal_state`].

use std::fs::File;
use std::io::{self, Read};

use rustix::io::Errno;

/// The flag of the kernel's threads.
const PF_KTHREAD: u64 = 0x0020_0000;

/// One process as `/proc/PID/stat` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Its id.
    pub pid: i32,
    state: u8,
    /// Its parent's id.
    pub parent: i32,
    /// The id of its process group.
    pub group: i32,
    /// The id of its session.
    pub session: i32,
    flags: u64,
    threads: u64,
    /// Clock ticks after boot. With the pid it names a process for good: a pid is not reused
    /// within one tick.
    pub start: u64,
    memory: u64,
}

impl Stat {
    /// Dead but not reaped. A leader that ended before its threads shows as a zombie too, and the
    /// process lives on in them.
    pub fn dead(&self) -> bool {
        matches!(self.state, b'X' | b'x') || (self.zombie() && self.threads <= 1)
    }

    /// Whether the leader is a zombie. Its threads may run on.
    pub fn zombie(&self) -> bool {
        self.state == b'Z'
    }

    /// Whether it has given its memory back, so that it runs no more code. A process that is just executing a
    /// program has memory, but no environment yet.
    pub fn dying(&self) -> bool {
        self.memory == 0 && self.threads <= 1
    }

    /// Stopped by a signal.
    pub fn stopped(&self) -> bool {
        self.state == b'T'
    }

    /// A thread of the kernel.
    pub fn kernel(&self) -> bool {
        self.flags & PF_KTHREAD != 0
    }

    /// The same process, not just the same pid.
    pub fn same(&self, other: &Stat) -> bool {
        self.pid == other.pid && self.start == other.start
    }
}

/// Reads a small file in one call.
fn small<'a>(path: &str, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
    let n = File::open(path)?.read(buffer)?;
    Ok(&buffer[..n])
}

/// The process of that number.
pub fn stat(pid: i32) -> io::Result<Stat> {
    let mut buffer = [0; 1024];
    let text = small(&format!("/proc/{pid}/stat"), &mut buffer)?;
    parse(pid, text).ok_or_else(|| Errno::SRCH.into())
}

fn parse(pid: i32, text: &[u8]) -> Option<Stat> {
    // The name is in parentheses and may itself contain any of them: the last one closes it.
    let close = text.iter().rposition(|b| *b == b')')?;
    let rest = std::str::from_utf8(text.get(close + 1..)?).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().take(21).collect();
    let number = |i: usize| fields.get(i)?.parse::<i64>().ok();
    let unsigned = |i: usize| fields.get(i)?.parse::<u64>().ok();
    Some(Stat {
        pid,
        state: *fields.first()?.as_bytes().first()?,
        parent: i32::try_from(number(1)?).ok()?,
        group: i32::try_from(number(2)?).ok()?,
        session: i32::try_from(number(3)?).ok()?,
        flags: unsigned(6)?,
        threads: unsigned(17)?,
        start: unsigned(19)?,
        memory: unsigned(20)?,
    })
}

fn numbers(dir: &str) -> io::Result<Vec<i32>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        if let Some(n) = entry?.file_name().to_str().and_then(|n| n.parse().ok()) {
            found.push(n);
        }
    }
    Ok(found)
}

/// Every process that can be read, in the order of their numbers, and whether some cannot. Processes that end
/// meanwhile are left out.
pub fn all() -> io::Result<(Vec<Stat>, bool)> {
    let mut found = Vec::new();
    let mut hidden = false;
    for pid in numbers("/proc")? {
        match stat(pid) {
            Ok(stat) => found.push(stat),
            Err(e) if vanished(&e) => {}
            Err(_) => hidden = true,
        }
    }
    Ok((found, hidden))
}

fn vanished(e: &io::Error) -> bool {
    matches!(Errno::from_io_error(e), Some(Errno::NOENT | Errno::SRCH))
}

/// Whether an environment names a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carries {
    /// It names the run.
    Yes,
    /// It does not.
    No,
    /// It is empty: the process was started with none, is just executing a program, or is about to end.
    Empty,
    /// It may not be read.
    Unreadable,
    /// The process has gone.
    Vanished,
}

/// Whether the process was started with this run id in [`crate::host::RUN_ID`] or [`crate::host::RUN_CHAIN`].
pub fn carries(stat: &Stat, run_id: &str) -> Carries {
    if !stat.zombie() {
        return environ(&format!("/proc/{}/environ", stat.pid), run_id);
    }
    // The leader has given its memory back, but its threads still have it.
    let mut best = Carries::Vanished;
    for thread in numbers(&format!("/proc/{}/task", stat.pid)).unwrap_or_default() {
        if thread == stat.pid {
            continue;
        }
        match environ(&format!("/proc/{}/task/{thread}/environ", stat.pid), run_id) {
            Carries::Vanished => {}
            answer @ (Carries::Yes | Carries::No) => return answer,
            other => best = other,
        }
    }
    best
}

/// Whether the process was started with all of these in its environment.
pub fn started_with(stat: &Stat, entries: &[String]) -> bool {
    let environ = large(&format!("/proc/{}/environ", stat.pid)).unwrap_or_default();
    entries.iter().all(|entry| environ.split(|byte| *byte == 0).any(|own| own == entry.as_bytes()))
}

/// No environment or list of children is larger. Limits the cost of one read.
const LONGEST: u64 = 4 << 20;

/// Reads a file of unknown size in few calls. (`/proc` reports the size 0 for every file.)
fn large(path: &str) -> io::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(8192);
    File::open(path)?.take(LONGEST).read_to_end(&mut text)?;
    Ok(text)
}

/// The living children of all threads of a process, from the kernel's own list. It is empty where the kernel
/// has none, and may miss some while they fork.
pub fn children(of: i32) -> Vec<Stat> {
    let mut found = Vec::new();
    for thread in numbers(&format!("/proc/{of}/task")).unwrap_or_default() {
        let list = large(&format!("/proc/{of}/task/{thread}/children")).unwrap_or_default();
        let list = String::from_utf8_lossy(&list);
        let pids = list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
        found.extend(pids.filter_map(|pid| stat(pid).ok()).filter(|child| !child.dead()));
    }
    found
}

fn environ(path: &str, run_id: &str) -> Carries {
    let read = large(path);
    match read {
        Ok(text) if text.is_empty() => Carries::Empty,
        Ok(text) if names(&text, run_id) => Carries::Yes,
        Ok(_) => Carries::No,
        // No memory: the process is about to end.
        Err(e) if Errno::from_io_error(&e) == Some(Errno::SRCH) => Carries::Empty,
        Err(e) if vanished(&e) => Carries::Vanished,
        Err(_) => Carries::Unreadable,
    }
}

fn names(environ: &[u8], run_id: &str) -> bool {
    environ.split(|b| *b == 0).any(|entry| {
        let value = |key: &str| entry.strip_prefix(key.as_bytes())?.strip_prefix(b"=");
        value(crate::host::RUN_ID) == Some(run_id.as_bytes())
            || value(crate::host::RUN_CHAIN)
                .is_some_and(|ids| ids.split(|b| *b == b' ').any(|id| id == run_id.as_bytes()))
    })
}

/// The soft limit of real-time CPU time, which may be a mark ([`super::lock`]). It can be read for processes
/// of all users.
pub fn mark(pid: i32) -> Option<u64> {
    let mut buffer = [0; 4096];
    let text = small(&format!("/proc/{pid}/limits"), &mut buffer).ok()?;
    let text = std::str::from_utf8(text).ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("Max realtime timeout"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// The command line for people to read, on one line.
pub fn command(pid: i32) -> String {
    const LONGEST: usize = 200;
    let mut buffer = [0; 4096];
    let args = small(&format!("/proc/{pid}/cmdline"), &mut buffer).unwrap_or_default();
    let args = args.strip_suffix(b"\0").unwrap_or(args);
    let text: String = String::from_utf8_lossy(args)
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(LONGEST)
        .collect();
    if !text.trim().is_empty() {
        return text;
    }
    let mut buffer = [0; 64];
    let name = small(&format!("/proc/{pid}/comm"), &mut buffer).unwrap_or_default();
    format!("[{}]", String::from_utf8_lossy(name).trim())
}

/// The signals this thread blocks and this process ignores: bit `n - 1` for signal `n`.
pub fn signal_state() -> Option<(u64, u64)> {
    let mut buffer = [0; 4096];
    let text = small("/proc/thread-self/status", &mut buffer).ok()?;
    // Every run does this, so it must be quick.
    let after = |text: &[u8], key: &[u8; 8]| Some(text.windows(8).position(|window| window == key)? + 8);
    let bits = |text: &[u8]| {
        let line = text.split(|byte| *byte == b'\n').next()?;
        u64::from_str_radix(std::str::from_utf8(line).ok()?.trim(), 16).ok()
    };
    // The kernel writes them in this order.
    let blocked = text.get(after(text, b"\nSigBlk:")?..)?;
    let ignored = blocked.get(after(blocked, b"\nSigIgn:")?..)?;
    Some((bits(blocked)?, bits(ignored)?))
}

/// Whether this `/proc` shows every process of our own pid namespace.
pub fn complete() -> bool {
    let me = rustix::process::getpid().as_raw_pid();
    let own = std::fs::read_link("/proc/self").ok();
    if own.is_none_or(|own| own.as_os_str() != me.to_string().as_str()) || stat(1).is_err() {
        return false;
    }
    // Process 1 may be our own and visible although others are hidden.
    let Ok(mounts) = std::fs::read_to_string("/proc/self/mountinfo") else {
        return false;
    };
    let limited = |line: &str| {
        line.split(' ').nth(4) == Some("/proc")
            && (line.contains("subset=") || (line.contains("hidepid=") && !line.contains("hidepid=0")))
    };
    !mounts.lines().any(limited)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_full_of_parentheses_is_skipped() {
        let line = b"7 (a) R 1 (b) Z 3 4 5 0 -1 2097152 0 0 0 0 0 0 0 0 20 0 2 0 99 0 0\n";
        let stat = parse(7, line).unwrap();
        assert_eq!((stat.parent, stat.group, stat.session, stat.start), (3, 4, 5, 99));
        assert!(stat.kernel() && stat.zombie() && !stat.dead());
        assert_eq!(parse(7, b"7 (short) R 1"), None);
    }

    #[test]
    fn only_our_own_variables_name_a_run() {
        assert!(names(b"A=1\0LEASEHOLD_RUN_ID=abc\0", "abc"));
        assert!(names(b"LEASEHOLD_RUN_CHAIN=abc def\0", "abc"));
        for other in [&b"LEASEHOLD_RUN_ID=abcd\0"[..], b"X=abc\0", b"", b"XLEASEHOLD_RUN_ID=abc"] {
            assert!(!names(other, "abc"));
        }
    }

    #[test]
    fn we_see_ourselves() {
        let me = rustix::process::getpid().as_raw_pid();
        let mine = stat(me).unwrap();
        assert!(all().unwrap().0.iter().any(|s| s.same(&mine)));
        assert!(!command(me).is_empty());
    }
}
