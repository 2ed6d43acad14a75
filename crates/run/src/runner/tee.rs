//! Passes a job's output on, byte for byte, and keeps its last lines.
//!
//! Each stream has a pipe and a thread. A thread writes all it has read before it reads more, so a slow reader slows the
//! job as it would without us. A reader that is gone, or a full disk, does not: then the output is read and dropped.

use std::collections::VecDeque;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use super::signals::Signals;
use leasehold::poll::{self, Wake};
use leasehold::text::harmless;

/// Most that is kept, in bytes.
pub const TAIL_MAX: usize = 2 * 1024;
/// What a pipe with room takes without waiting (`PIPE_BUF`).
const AT_ONCE: usize = 4096;
/// Most that is read after the job's end. No process of the job is left, and another writer might never stop.
const REST_MAX: usize = 4 * 1024 * 1024;
/// How long the end of a run waits for the threads to read the rest.
const PATIENCE: Duration = Duration::from_secs(2);

/// The job's ends of both pipes. They are closed here once the job has them, or the threads would never see the end.
#[derive(Debug)]
pub struct PipeEnds {
    /// For its standard output.
    pub out: PipeWriter,
    /// For its standard error.
    pub err: PipeWriter,
}

/// The output that passes through.
#[derive(Debug)]
pub struct Tee {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<TeeState>,
    changed: Condvar,
    /// The job has ended, so nothing more comes into the pipes. Never taken, so that both threads see it.
    stop: Wake,
    /// A thread has written all it had.
    written: Wake,
}

#[derive(Debug, Default)]
struct TeeState {
    last: Last,
    reading: usize,
    writing: usize,
    /// Why something could not be passed on.
    unwritten: Option<String>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, TeeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, change: impl FnOnce(&mut TeeState)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }
}

impl Tee {
    /// Starts to pass everything on that is written to the ends, to our own output and error.
    pub fn start() -> io::Result<(Self, PipeEnds)> {
        let ((from_out, out), (from_err, err)) = (io::pipe()?, io::pipe()?);
        let (state, stop, written) = (Mutex::default(), Wake::new()?, Wake::new()?);
        let shared = Arc::new(Shared { state, changed: Condvar::new(), stop, written });
        for (name, which, from) in [("stdout", OUT, from_out), ("stderr", ERR, from_err)] {
            // Only our end: the job's stays as it expects it.
            rustix::io::ioctl_fionbio(&from, true)?;
            shared.note(|state| (state.reading, state.writing) = (state.reading + 1, state.writing + 1));
            let theirs = Arc::clone(&shared);
            let pass = move || match which {
                OUT => pass_on(from, which, io::stdout().as_fd(), &theirs),
                _ => pass_on(from, which, io::stderr().as_fd(), &theirs),
            };
            thread::Builder::new().name(name.into()).stack_size(128 * 1024).spawn(pass)?;
        }
        Ok((Self { shared }, PipeEnds { out, err }))
    }

    /// The job has ended. Gives the last lines of its output.
    pub fn stop(&self) -> String {
        self.shared.stop.wake();
        let state = self.shared.lock();
        // With a limit: a reader that stands still may block a thread in a write.
        let waited = self.shared.changed.wait_timeout_while(state, PATIENCE, |state| state.reading > 0);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.last.clone().text()
    }

    /// Waits until all is passed on, as the job itself would have, or until a signal comes. Gives why a part was not.
    pub fn finish(self, signals: &mut Signals) -> Option<String> {
        self.shared.stop.wake();
        while self.shared.lock().writing > 0 {
            let ready = poll::wait(&[self.shared.written.as_fd(), signals.as_fd()]);
            self.shared.written.take();
            let Ok(ready) = ready else { break };
            if ready.has(1) && !signals.pending().forward.is_empty() {
                break;
            }
        }
        self.shared.lock().unwritten.take()
    }
}

/// Reads to the end, and passes it all on.
fn pass_on(from: PipeReader, which: usize, to: BorrowedFd<'_>, shared: &Shared) {
    let mut stream = Stream { from, which, to, shared, pending: Vec::new(), written: 0, gone: false };
    stream.while_the_job_lives();
    stream.rest();
    shared.note(|state| state.reading -= 1);
    while !stream.pending.is_empty() {
        ready(&mut [PollFd::from_borrowed_fd(to, PollFlags::OUT)]);
        stream.write();
    }
    shared.note(|state| state.writing -= 1);
    shared.written.wake();
}

struct Stream<'a> {
    from: PipeReader,
    which: usize,
    to: BorrowedFd<'a>,
    shared: &'a Shared,
    /// Read, and not all of it written.
    pending: Vec<u8>,
    written: usize,
    /// The reader is gone.
    gone: bool,
}

impl Stream<'_> {
    fn while_the_job_lives(&mut self) {
        loop {
            let next = match self.pending.is_empty() {
                true => PollFd::new(&self.from, PollFlags::IN),
                false => PollFd::from_borrowed_fd(self.to, PollFlags::OUT),
            };
            let mut both = [next, PollFd::new(&self.shared.stop, PollFlags::IN)];
            ready(&mut both);
            if !both[1].revents().is_empty() {
                return;
            }
            if !self.pending.is_empty() {
                self.write();
            } else if self.read() == Some(0) {
                return;
            }
        }
    }

    /// Reads what is left in the pipe.
    fn rest(&mut self) {
        while self.pending.len() < REST_MAX && self.read().is_some_and(|n| n > 0) {}
    }

    /// Reads once. Gives the number of bytes, 0 at the end, `None` if there is nothing now.
    fn read(&mut self) -> Option<usize> {
        let before = self.pending.len();
        self.pending.resize(before + 16 * AT_ONCE, 0);
        let read = rustix::io::read(&self.from, &mut self.pending[before..]);
        self.pending.truncate(before + read.unwrap_or(0));
        match read {
            Err(Errno::AGAIN | Errno::INTR) => return None,
            Err(_) => return Some(0),
            Ok(_) => {}
        }
        let new = &self.pending[before..];
        self.shared.note(|state| state.last.keep(self.which, new));
        if self.gone {
            self.pending.truncate(before);
        }
        read.ok()
    }

    fn forget(&mut self) {
        self.pending.clear();
        self.written = 0;
    }

    fn write(&mut self) {
        let left = &self.pending[self.written..];
        match rustix::io::write(self.to, &left[..left.len().min(AT_ONCE)]) {
            Ok(n) if n < left.len() => self.written += n,
            Ok(_) => self.forget(),
            Err(Errno::INTR | Errno::AGAIN) => {}
            // The reader has gone, which is no failure.
            Err(Errno::PIPE) => {
                self.gone = true;
                self.forget();
            }
            // The job goes on; later writes may succeed.
            Err(e) => {
                self.forget();
                self.shared.note(|state| state.unwritten = Some(io::Error::from(e).to_string()));
            }
        }
    }
}

/// Sleeps until one of them is ready.
fn ready(fds: &mut [PollFd<'_>]) {
    while let Err(Errno::INTR) = rustix::event::poll(fds, None) {}
}

const OUT: usize = 0;
const ERR: usize = 1;

/// The last output of both streams. Much output on one does not push out the few lines of the other, which often tell
/// what went wrong.
#[derive(Clone, Debug, Default)]
struct Last {
    /// In the order of arrival.
    parts: VecDeque<(usize, VecDeque<u8>)>,
    /// Bytes of each stream.
    kept: [usize; 2],
    /// Older output was dropped.
    cut: [bool; 2],
}

impl Last {
    fn keep(&mut self, which: usize, new: &[u8]) {
        let skipped = new.len().saturating_sub(TAIL_MAX);
        self.cut[which] |= skipped > 0;
        self.kept[which] += new.len() - skipped;
        match self.parts.back_mut().filter(|(last, _)| *last == which) {
            Some((_, part)) => part.extend(&new[skipped..]),
            None => self.parts.push_back((which, new[skipped..].iter().copied().collect())),
        }
        self.limit(which, TAIL_MAX);
    }

    fn limit(&mut self, which: usize, most: usize) {
        let over = self.kept[which].saturating_sub(most);
        self.cut[which] |= over > 0;
        self.drop_first(which, over);
    }

    fn drop_first(&mut self, which: usize, mut bytes: usize) {
        self.kept[which] -= bytes;
        for (_, part) in self.parts.iter_mut().filter(|(stream, _)| *stream == which) {
            let some = bytes.min(part.len());
            part.drain(..some);
            bytes -= some;
        }
        self.parts.retain(|(_, part)| !part.is_empty());
    }

    /// As text that may be shown. If older output was dropped, it starts at the beginning of a line.
    fn text(mut self) -> String {
        let room = self.kept.map(|other| TAIL_MAX.saturating_sub(other).max(TAIL_MAX / 2));
        for (which, room) in [(OUT, room[ERR]), (ERR, room[OUT])] {
            self.limit(which, room);
            if self.cut[which] {
                self.drop_first(which, self.torn(which));
            }
        }
        let bytes: Vec<u8> = self.parts.into_iter().flat_map(|(_, part)| part).collect();
        let text = harmless(&String::from_utf8_lossy(&bytes));
        let text = text.trim_end();
        let from = text.len().saturating_sub(TAIL_MAX);
        let from = (from..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
        text[from..].into()
    }

    /// The length of the first line, or else character, if its beginning was dropped.
    fn torn(&self, which: usize) -> usize {
        let parts = self.parts.iter().filter(|(stream, _)| *stream == which);
        let bytes: Vec<u8> = parts.flat_map(|(_, part)| part).copied().collect();
        let line = bytes.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
        let character = || bytes.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count();
        line.filter(|line| *line < bytes.len()).unwrap_or_else(character)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(printed: &[&[u8]]) -> String {
        let mut last = Last::default();
        printed.iter().for_each(|part| last.keep(OUT, part));
        assert!(last.kept[OUT] <= TAIL_MAX);
        last.text()
    }

    #[test]
    fn neither_stream_pushes_out_the_other() {
        let mut last = Last::default();
        last.keep(ERR, b"no way\n");
        for n in 0..1000 {
            last.keep(OUT, format!("line {n}\n").as_bytes());
        }
        let text = last.clone().text();
        assert!(text.starts_with("no way\nline ") && text.ends_with("\nline 999"), "{text}");
        assert!(text.len() <= TAIL_MAX && text.len() > TAIL_MAX - 20, "{}", text.len());
        // Each has half of it if both have much to say, in the order in which it came.
        for n in 0..1000 {
            last.keep(ERR, format!("oops {n}\n").as_bytes());
        }
        let text = last.text();
        assert!(text.starts_with("line ") && text.ends_with("\noops 999"), "{text}");
        assert!(text.contains("\nline 999\noops "), "{text}");
        let of_out = text.lines().filter(|line| line.starts_with("line")).count();
        assert!((TAIL_MAX / 2 / 9 - 1..=TAIL_MAX / 2 / 9).contains(&of_out), "{of_out}");
    }

    #[test]
    fn it_is_text_that_may_be_shown() {
        assert_eq!(tail(&[b"one\n", b"two\r\n\tthree\n\n"]), "one\ntwo\n\tthree");
        assert_eq!(tail(&[b"\x1b[2Jred\x07\xff\x00"]), "\u{fffd}[2Jred\u{fffd}\u{fffd}\u{fffd}");
        assert_eq!(tail(&[]), "");
    }

    #[test]
    fn only_the_last_lines_are_kept() {
        let lines: Vec<String> = (0..1000).map(|n| format!("line {n}\n")).collect();
        let kept = tail(&lines.iter().map(String::as_bytes).collect::<Vec<_>>());
        assert!(kept.len() <= TAIL_MAX && kept.len() > TAIL_MAX - 20, "{}", kept.len());
        assert!(kept.starts_with("line ") && kept.ends_with("\nline 999"), "{kept}");
        assert_eq!(tail(&[lines.concat().as_bytes()]), kept);
        // One line that is too long, cut within a character, at each of its bytes.
        for start in 0..4 {
            let long = format!("{}{}", "x".repeat(start), "🦀".repeat(TAIL_MAX));
            let kept = tail(&[long.as_bytes()]);
            assert!(kept.len() <= TAIL_MAX && kept.chars().all(|c| c == '🦀'), "{kept}");
        }
        // Replacement characters are longer than the bytes, and the text must not exceed the limit.
        let kept = tail(&[&[0xff; 5000]]);
        assert!(kept.len() <= TAIL_MAX && kept.chars().all(|c| c == '\u{fffd}'));
    }
}
