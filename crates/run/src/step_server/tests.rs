use std::time::Duration;

use leasehold_core::fence::{FenceMode, RefusalReason};
use leasehold_core::ids::{Epoch, Token};
use leasehold_core::ledger::{IfUnknown, Subject};
use leasehold_core::name::Name;
use leasehold_core::session::Granted;

use super::*;
use leasehold::backends::memory::MemoryStore;
use leasehold::host;
use leasehold::ledger::{Item, ItemRecorder};
use leasehold::state::StateDir;
use leasehold::targets::{RefusedAction, Target};
use leasehold::update::nothing;

const PATIENCE: Duration = Duration::from_secs(20);

/// A run that has started its item; a store thread without a session records its steps.
fn item_steps() -> ItemSteps {
    watched_steps().0
}

/// The same, and the thread that ends when nothing can call the store thread any more.
fn watched_steps() -> (ItemSteps, mpsc::Receiver<()>) {
    let (name, grant) = (Name::new("site").unwrap(), Grant(7));
    let item = Item {
        subject: Subject::Key("order".into()),
        if_unknown: IfUnknown::Refuse,
        attempts: 3,
        keep: None,
    };
    let mut recorder = ItemRecorder::new(item, None, name.clone(), host::holder("run", &name));
    let (epoch, token, ttl) = (Epoch::first(7), Token::new(1).unwrap(), Duration::from_secs(9));
    let granted = Granted { lease: name.clone(), epoch, token, grant, ttl };
    let mut store = MemoryStore::new().unwrap();
    recorder.open(&mut store, &granted);
    let (store_thread, inbox) = StepSender::alone().unwrap();
    let (ended, end) = mpsc::channel();
    std::thread::spawn(move || {
        let _ended: mpsc::Sender<()> = ended;
        for step in inbox {
            match step {
                StepTask::Stands { name, told } => drop(told.send(recorder.step_stands(&name))),
                StepTask::Done { name, output, until, told } => {
                    let _ = told.send(recorder.step(&mut store, &name, output, until, &mut nothing));
                }
            }
        }
    });
    (ItemSteps { grant, store_thread, patience: PATIENCE, under_way: Arc::default() }, end)
}

fn run(token: u64) -> Bearer {
    let (epoch, token) = (Epoch::first(7), Token::new(token).unwrap());
    Bearer { lease: Name::new("site").unwrap(), epoch, token, grant: Grant(7) }
}

/// A responder of a run with an item and without a gate.
fn whole(steps: ItemSteps) -> StepResponder {
    StepResponder { steps: Some(steps), ..StepResponder::new(run(1)) }
}

/// The answer to a process that asks for the step now and closes its connection.
fn asked(steps: &ItemSteps) -> StepAnswer {
    steps.begin("charge", steps.grant).map_or_else(|answer| answer, |_| StepAnswer::Begin)
}

fn done() -> StepAnswer {
    StepAnswer::Done { token: 1, output: None }
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

/// Two processes of a run ask for one step; the first does it while the second is about to start.
#[cfg(target_os = "linux")]
#[test]
fn a_step_is_not_begun_by_who_looked_before_it_was_done() {
    let steps = item_steps();
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        let first = steps.begin("charge", steps.grant).unwrap();
        // Without this the second could be further.
        let mut held = steps.under_way();
        let second = scope.spawn(|| {
            tell.send(rustix::thread::gettid().as_raw_pid()).unwrap();
            asked(&steps)
        });
        asleep(told.recv().unwrap());
        assert_eq!(steps.done("charge", None), StepAnswer::Recorded { left_out: false });
        held.remove("charge");
        drop(held);
        assert_eq!(second.join().unwrap(), done());
        drop(first);
    });
}

/// Many processes ask at once, until the step is done.
#[test]
fn of_many_that_come_at_once_one_does_it() {
    let steps = item_steps();
    let begun = std::sync::atomic::AtomicU32::new(0);
    let barrier = std::sync::Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                barrier.wait();
                loop {
                    match steps.begin("charge", steps.grant) {
                        Ok(_at_it) => {
                            begun.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                            steps.done("charge", None);
                        }
                        Err(StepAnswer::Busy) => std::thread::yield_now(),
                        Err(answer) => return assert_eq!(answer, done()),
                    }
                }
            });
        }
    });
    assert_eq!(begun.into_inner(), 1);
}

/// A process that closes its connection, before or after its answer, leaves the step to others.
#[test]
fn who_goes_away_leaves_the_step_to_others() {
    let steps = item_steps();
    let begin = StepRequest::Begin { step: "charge".into(), grant: steps.grant };
    let (ours, theirs) = UnixStream::pair().unwrap();
    send(&theirs, &begin).unwrap();
    drop(theirs);
    whole(steps.clone()).serve(&ours).unwrap_err();
    assert_eq!(asked(&steps), StepAnswer::Begin);
    std::thread::scope(|scope| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let serving = scope.spawn({
            let steps = whole(steps.clone());
            move || steps.serve(&ours).is_err()
        });
        send(&theirs, &begin).unwrap();
        assert_eq!(receive::<StepAnswer>(&mut BufReader::new(&theirs)).unwrap(), StepAnswer::Begin);
        assert_eq!(asked(&steps), StepAnswer::Busy);
        drop(theirs);
        assert!(serving.join().unwrap());
    });
    assert_eq!(asked(&steps), StepAnswer::Begin);
}

/// A process left behind may hold its connection. The threads end with the run all the same.
#[test]
fn who_answers_ends_with_the_run() {
    let dir = fresh("ends");
    let (steps, end) = watched_steps();
    let grant = steps.grant;
    let steps = StepServer::listen(&dir, whole(steps)).unwrap();
    let held = ["done", "begun"].map(|step| {
        let held = UnixStream::connect(steps.path()).unwrap();
        send(&held, &StepRequest::Begin { step: step.into(), grant }).unwrap();
        assert_eq!(receive::<StepAnswer>(&mut BufReader::new(&held)).unwrap(), StepAnswer::Begin);
        held
    });
    send(&held[0], &StepRequest::Done { output: None }).unwrap();
    let mut first = BufReader::new(&held[0]);
    assert_eq!(receive::<StepAnswer>(&mut first).unwrap(), StepAnswer::Recorded { left_out: false });
    // After that the connection is not kept.
    assert_eq!(receive::<StepAnswer>(&mut first).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    drop(steps);
    assert_eq!(end.recv_timeout(PATIENCE), Err(mpsc::RecvTimeoutError::Disconnected));
    drop(held);
    gone(&dir);
}

#[test]
fn what_cannot_be_begun_is_not_told_as_done() {
    let steps = item_steps();
    for name in ["", &"x".repeat(STEP_NAME_MAX + 1)] {
        assert_eq!(steps.begin(name, steps.grant).err(), Some(StepAnswer::BadName));
    }
    assert_eq!(steps.begin("charge", Grant(8)).err(), Some(StepAnswer::Superseded));
    let (store_thread, inbox) = StepSender::alone().unwrap();
    std::thread::spawn(move || {
        for step in inbox {
            let StepTask::Stands { told, .. } = step else { panic!("{step:?}") };
            let _ = told.send(None);
        }
    });
    let steps = ItemSteps { store_thread, ..steps };
    assert_eq!(asked(&steps), StepAnswer::NoItem);
    assert!(steps.under_way().is_empty());
}

fn fresh(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("leasehold-steps-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    StateDir::at(dir).sockets().unwrap()
}

fn gone(sockets: &Path) {
    std::fs::remove_dir_all(sockets.parent().unwrap()).unwrap();
}

/// The files of a killed run are removed, whichever it had made. Those of a living run are not, even before it listens.
#[test]
fn a_sweep_spares_what_does_not_listen_yet() {
    let dir = fresh("sweep");
    let [(left, first), (half, second), (about_to_listen, _third), (living, _fourth)] =
        std::array::from_fn(|_| place(&dir));
    drop((UnixListener::bind(&left).unwrap(), first));
    drop(second);
    drop(UnixListener::bind(&about_to_listen).unwrap());
    let _listener = UnixListener::bind(&living).unwrap();
    let end = clock::boot_time().plus(PATIENCE);
    // A child that another test has just forked holds our descriptors until it executes.
    while [&left, &half].iter().any(|path| run_files::lock_of(path).exists()) {
        assert!(clock::boot_time() < end, "it is left");
        sweep(&dir);
    }
    let there = [&left, &half, &about_to_listen, &living]
        .map(|path| (path.exists(), run_files::lock_of(path).exists()));
    assert_eq!(there, [(false, false), (false, false), (true, true), (true, true)]);
    gone(&dir);
}

/// A stopped wrapper accepts no connection, and with a full queue a new connection waits without end.
#[cfg(target_os = "linux")]
#[test]
fn a_sweep_waits_for_nobody() {
    let dir = fresh("stopped");
    let (stopped, _lock) = place(&dir);
    let _listener = UnixListener::bind(&stopped).unwrap();
    let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
    for _ in 0..=most.trim().parse::<u32>().unwrap() {
        drop(UnixStream::connect(&stopped).unwrap());
    }
    let (tell, told) = mpsc::channel();
    let next = dir.clone();
    std::thread::spawn(move || {
        sweep(&next);
        tell.send(()).unwrap();
    });
    told.recv_timeout(PATIENCE).unwrap();
    assert!(stopped.exists());
    gone(&dir);
}

/// Many runs start at once, and each removes old files: none removes those of another.
#[test]
fn who_sweeps_takes_nothing_from_who_begins() {
    let dir = fresh("many");
    let barrier = std::sync::Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                barrier.wait();
                for _ in 0..50 {
                    sweep(&dir);
                    let (place, lock) = place(&dir);
                    let (_listener, own) = bind(&place).unwrap();
                    sweep(&dir);
                    assert!(lock.is_some() && own.is_none() && UnixStream::connect(&place).is_ok());
                    remove(&place);
                }
            });
        }
    });
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    gone(&dir);
}

/// The answers at a gate, and until when they hold.
#[test]
fn a_gate_is_entered_only_by_its_own_run_and_in_time() {
    let store = MemoryStore::new().unwrap();
    let gates = Gates::new(Arc::new(move || Ok(Box::new(store.clone()))));
    let mail = Name::new("mail").unwrap();
    let responder = StepResponder::new(run(1)).with_gates(gates.clone(), PATIENCE);
    let refused = |answer| match answer {
        StepAnswer::Barred { refused } => (refused.attempt, refused.reason),
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(responder.enter(&mail, Grant(7))), (RefusedAction::Enter, RefusalReason::NotSealed));
    gates.gate(&mail).seal(&run(1), FenceMode::Enforce).unwrap();
    assert_eq!(responder.enter(&mail, Grant(7)), StepAnswer::Entered { by: None, let_in: None });
    let by = Duration::from_secs(5);
    *responder.ours_until.lock().unwrap() = Some(BootTime(by));
    assert_eq!(responder.enter(&mail, Grant(7)), StepAnswer::Entered { by: Some(by), let_in: None });
    // Not for another run, and not in a run without gates.
    assert_eq!(responder.enter(&mail, Grant(8)), StepAnswer::NoGate);
    assert_eq!(whole(item_steps()).enter(&mail, Grant(7)), StepAnswer::NoGate);
    let next = Bearer { grant: Grant(9), ..run(2) };
    gates.gate(&mail).seal(&next, FenceMode::Enforce).unwrap();
    assert_eq!(refused(responder.enter(&mail, Grant(7))), (RefusedAction::Enter, RefusalReason::Stale));
}

/// Without an answer of the store, or without time left, no command starts.
#[test]
fn a_store_that_does_not_answer_lets_nobody_in() {
    let mail = Name::new("mail").unwrap();
    let failure = Failure::new(FailureKind::Denied, "no");
    let said = failure.clone();
    let gates = Gates::new(Arc::new(move || Err(said.clone())));
    let responder = StepResponder::new(run(1)).with_gates(gates, PATIENCE);
    assert_eq!(responder.enter(&mail, Grant(7)), StepAnswer::Unentered { failure: failure.clone() });
    // For a run that was paused past its lease, the store is not at fault.
    let now = clock::boot_time();
    *responder.ours_until.lock().unwrap() = Some(now);
    assert_eq!(responder.enter(&mail, Grant(7)), StepAnswer::Late);
    *responder.ours_until.lock().unwrap() = Some(now.plus(PATIENCE));
    assert_eq!(responder.enter(&mail, Grant(7)), StepAnswer::Unentered { failure });
    let store = MemoryStore::new().unwrap();
    let gates = Gates::new(Arc::new(move || Ok(Box::new(store.clone()))));
    gates.gate(&mail).seal(&run(1), FenceMode::Enforce).unwrap();
    let responder = StepResponder::new(run(1)).with_gates(gates, Duration::ZERO);
    let answer = responder.enter(&mail, Grant(7));
    assert!(matches!(answer, StepAnswer::Unentered { .. }), "{answer:?}");
}
