use std::time::Duration;

use leasehold_core::ids::{Epoch, Token};
use leasehold_core::ledger::{IfUnknown, Subject};
use leasehold_core::name::Name;
use leasehold_core::session::Granted;

use super::*;
use crate::host;
use crate::ledger::{Item, nothing};
use crate::state::StateDir;
use crate::stores::memory::MemoryStore;

const PATIENCE: Duration = Duration::from_secs(20);

/// A run that has begun its item; a keeper without a session records its steps.
fn desk() -> Desk {
    let (name, grant) = (Name::new("site").unwrap(), Grant(7));
    let item = Item {
        subject: Subject::Key("order".into()),
        if_unknown: IfUnknown::Refuse,
        attempts: 3,
        keep: None,
    };
    let book = Book::new(item, None, name.clone());
    let (epoch, token, ttl) = (Epoch::first(7), Token::new(1).unwrap(), Duration::from_secs(9));
    let granted = Granted { lease: name.clone(), epoch, token, grant, ttl };
    let mut store = MemoryStore::new().unwrap();
    book.open(&mut store, &granted, &host::holder("run", &name));
    let (works, inbox) = WorkSender::alone().unwrap();
    std::thread::spawn(move || {
        for work in inbox {
            let Work::Step { book, name, output, until, told } = work else { panic!("{work:?}") };
            let _ = told.send(book.step(&mut store, &name, output, until, &mut nothing));
        }
    });
    Desk { book, grant, works, patience: PATIENCE, under_way: Arc::default() }
}

/// What is answered to whoever asks for the step now, and goes away again.
fn asked(desk: &Desk) -> Answer {
    desk.begin("charge", desk.grant).map_or_else(|answer| answer, |_| Answer::Begin)
}

fn done() -> Answer {
    Answer::Done { token: 1, output: None }
}

/// Waits until a thread of this process sleeps.
#[cfg(target_os = "linux")]
fn asleep(thread: i32) {
    let end = clock::boot_time().plus(PATIENCE);
    let stat = format!("/proc/self/task/{thread}/stat");
    while !std::fs::read_to_string(&stat).unwrap().contains(") S ") {
        assert!(clock::boot_time() < end, "it goes on");
        std::thread::yield_now();
    }
}

/// Two processes of a run come for a step; the first has done it while the second is about to begin.
#[cfg(target_os = "linux")]
#[test]
fn a_step_is_not_begun_by_who_looked_before_it_was_done() {
    let desk = desk();
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        let first = desk.begin("charge", desk.grant).unwrap();
        // The second comes as far as it does without this.
        let mut held = desk.under_way();
        let second = scope.spawn(|| {
            tell.send(rustix::thread::gettid().as_raw_pid()).unwrap();
            asked(&desk)
        });
        asleep(told.recv().unwrap());
        assert_eq!(desk.done("charge", None), Answer::Recorded { left_out: false });
        held.remove("charge");
        drop(held);
        assert_eq!(second.join().unwrap(), done());
        drop(first);
    });
}

/// Many come at once, and go on asking until it is done.
#[test]
fn of_many_that_come_at_once_one_does_it() {
    let desk = desk();
    let begun = std::sync::atomic::AtomicU32::new(0);
    let barrier = std::sync::Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                barrier.wait();
                loop {
                    match desk.begin("charge", desk.grant) {
                        Ok(_at_it) => {
                            begun.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                            desk.done("charge", None);
                        }
                        Err(Answer::Busy) => std::thread::yield_now(),
                        Err(answer) => return assert_eq!(answer, done()),
                    }
                }
            });
        }
    });
    assert_eq!(begun.into_inner(), 1);
}

/// One that goes away, before it hears that it may begin or after, leaves the step to others.
#[test]
fn who_goes_away_leaves_the_step_to_others() {
    let desk = desk();
    let begin = Ask::Begin { step: "charge".into(), grant: desk.grant };
    let (ours, theirs) = UnixStream::pair().unwrap();
    send(&theirs, &begin).unwrap();
    drop(theirs);
    desk.serve(&ours).unwrap_err();
    assert_eq!(asked(&desk), Answer::Begin);
    std::thread::scope(|scope| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let serving = scope.spawn({
            let desk = &desk;
            move || desk.serve(&ours).is_err()
        });
        send(&theirs, &begin).unwrap();
        assert_eq!(receive::<Answer>(&mut BufReader::new(&theirs)).unwrap(), Answer::Begin);
        assert_eq!(asked(&desk), Answer::Busy);
        drop(theirs);
        assert!(serving.join().unwrap());
    });
    assert_eq!(asked(&desk), Answer::Begin);
}

#[test]
fn what_cannot_be_begun_is_not_told_as_done() {
    let desk = desk();
    for name in ["", &"x".repeat(STEP_NAME_MAX + 1)] {
        assert_eq!(desk.begin(name, desk.grant).err(), Some(Answer::BadName));
    }
    assert_eq!(desk.begin("charge", Grant(8)).err(), Some(Answer::Superseded));
    let item = Item {
        subject: Subject::Key("other".into()),
        if_unknown: IfUnknown::Refuse,
        attempts: 3,
        keep: None,
    };
    let desk = Desk { book: Book::new(item, None, Name::new("site").unwrap()), ..desk };
    assert_eq!(asked(&desk), Answer::NoItem);
    assert!(desk.under_way().is_empty());
}

fn fresh(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("leasehold-steps-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    StateDir::at(dir).sockets().unwrap()
}

fn gone(sockets: &Path) {
    std::fs::remove_dir_all(sockets.parent().unwrap()).unwrap();
}

/// Between bind and listen a socket refuses like one that was left behind.
#[test]
fn a_sweep_spares_what_does_not_listen_yet() {
    let dir = fresh("sweep");
    for name in ["left", ".about-to-listen"] {
        drop(UnixListener::bind(dir.join(name)).unwrap());
    }
    let living = UnixListener::bind(dir.join("living")).unwrap();
    sweep(&dir);
    let left = ["left", ".about-to-listen", "living"].map(|name| dir.join(name).exists());
    assert_eq!(left, [false, true, true]);
    drop(living);
    gone(&dir);
}

/// … so it has no name that is swept before somebody answers there.
#[cfg(target_os = "linux")]
#[test]
fn a_socket_is_found_only_once_it_listens() {
    use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};
    let dir = fresh("found");
    let seen = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
    add_watch(&seen, &dir, WatchFlags::CREATE | WatchFlags::MOVED_TO).unwrap();
    let (_listener, path, own) = bind(&dir).unwrap();
    assert!(own.is_none() && UnixStream::connect(&path).is_ok());
    let mut buffer = [std::mem::MaybeUninit::uninit(); 1024];
    let mut events = Reader::new(&seen, &mut buffer);
    let mut found = Vec::new();
    while let Ok(event) = events.next() {
        let name = event.file_name().unwrap().to_str().unwrap().to_owned();
        found.push((event.events() == ReadFlags::MOVED_TO, name.starts_with('.')));
    }
    gone(&dir);
    assert_eq!(found, [(false, true), (true, false)], "made under a hidden name, then moved");
}
