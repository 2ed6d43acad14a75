//! The supervisor under test: this binary started again, driven by lines on standard input.

use std::ffi::OsString;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::PathBuf;

use leasehold::clock;
use leasehold::core::ids::Grant;
use leasehold::host::{RUN_CHAIN, RUN_ID, run_chain};
use leasehold::liveness::lock::{HolderLock, new_mark};
use leasehold::poll;
use leasehold_run::runner::lookup::lookup;
use leasehold_run::runner::signals::Signals;
use leasehold_run::runner::spawn::CommandSpec;
use leasehold_run::runner::tree::{ProcessTree, Sweep};
use rustix::process::{Signal, kill_process, kill_process_group};

pub(crate) const ROLE: &str = "LEASEHOLD_TEST_ROLE";
pub(crate) const RUN: &str = "LEASEHOLD_TEST_RUN";
pub(crate) const DIR: &str = "LEASEHOLD_TEST_DIR";

pub(crate) fn grant(run: &str) -> Grant {
    Grant::parse(run).unwrap()
}

fn say(line: &str) {
    // One write, so that lines of the job do not get mixed in.
    let mut out = std::io::stdout();
    out.write_all(format!("{line}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

pub(crate) fn play(role: &str) -> ! {
    let code = match role {
        "driven" => driven(),
        "plain" => plain(),
        "deaf" if Signals::install().unwrap().deaf() => {
            say("deaf");
            0
        }
        "deaf" => plain(),
        "thread" => std::thread::spawn(plain).join().unwrap(),
        other => panic!("no role {other}"),
    };
    std::process::exit(code)
}

struct Started {
    signals: Signals,
    tree: ProcessTree,
    lock: Option<HolderLock>,
    main: rustix::process::Pid,
}

fn start() -> Result<Started, (i32, String)> {
    let run = std::env::var(RUN).unwrap();
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let program = lookup(&args[0], std::env::var_os("PATH").as_deref())
        .map_err(|e| (e.exit_code().into(), e.to_string()))?;
    let signals = Signals::install().unwrap();
    let mut tree = ProcessTree::become_subreaper(&run).unwrap();
    let dir = std::env::var_os(DIR).map(PathBuf::from);
    let lock = dir.map(|dir| HolderLock::create(&dir, grant(&run)).unwrap());
    let env = [
        (RUN_ID.into(), Some(run.clone().into())),
        (RUN_CHAIN.into(), Some(run_chain(&run).into())),
        (ROLE.into(), None),
        (RUN.into(), None),
        (DIR.into(), None),
    ];
    let (foreground, output) = (false, None);
    let (lock_ref, mark) = (lock.as_ref(), new_mark(grant(&run)));
    let job = CommandSpec {
        program: &program,
        args: &args[1..],
        env: &env,
        foreground,
        lock: lock_ref,
        mark,
        output,
        by: None,
    };
    let main = tree.start(&job).map_err(|e| (e.exit_code().into(), e.to_string()))?;
    Ok(Started { signals, tree, lock, main })
}

/// As `run` does it: start, pass signals on, wait for the empty tree, exit like the job.
fn plain() -> i32 {
    let mut run = match start() {
        Ok(run) => run,
        Err((code, why)) => {
            eprintln!("{why}");
            return code;
        }
    };
    let mut code = 0;
    loop {
        let reaped = run.tree.reap().unwrap();
        if let Some(exit) = reaped.main {
            code = exit.code().into();
        }
        if reaped.empty {
            break;
        }
        poll::wait(&[run.signals.as_fd()]).unwrap();
        for signal in run.signals.pending().forward {
            run.tree.signal_group(signal).unwrap();
        }
    }
    if let Some(lock) = run.lock {
        lock.remove().unwrap();
    }
    code
}

fn driven() -> i32 {
    let mut run = start().unwrap();
    let text = run.lock.as_ref().map_or("-", |l| l.describe());
    say(&format!("started {} {text}", run.main.as_raw_pid()));
    let stdin = std::io::stdin();
    let mut buffer = Vec::new();
    let mut said_empty = false;
    loop {
        let ready = poll::wait(&[stdin.as_fd(), run.signals.as_fd()]).unwrap();
        if ready.has(1) {
            run.signals.pending();
            let reaped = run.tree.reap().unwrap();
            if let Some(exit) = reaped.main {
                say(&format!("main {}", exit.code()));
            }
            if reaped.empty && !said_empty {
                said_empty = true;
                say(&format!("tree empty {}", clock::boot_time().0.as_micros()));
            }
        }
        if ready.has(0) {
            let mut bytes = [0; 512];
            match rustix::io::read(&stdin, &mut bytes).unwrap() {
                0 => {
                    run.tree.kill().unwrap();
                    return 0;
                }
                n => buffer.extend_from_slice(&bytes[..n]),
            }
            while let Some(end) = buffer.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = buffer.drain(..=end).collect();
                command(&mut run, std::str::from_utf8(&line).unwrap().trim());
            }
        }
    }
}

fn swept(verb: &str, begun: u128, sweep: &Sweep) {
    say(&format!("done {verb} {begun} {} {}", sweep.refused.len(), sweep.settled));
}

fn command(run: &mut Started, line: &str) {
    let begun = clock::boot_time().0.as_micros();
    match line {
        "kill" => swept(line, begun, &run.tree.kill().unwrap()),
        "terminate" => swept(line, begun, &run.tree.terminate().unwrap()),
        "freeze" => swept(line, begun, &run.tree.freeze().unwrap()),
        "thaw" => {
            run.tree.thaw().unwrap();
            say("done thaw");
        }
        "usr1" => {
            run.tree.signal_group(Signal::USR1).unwrap();
            say("done usr1");
        }
        // The two ways that do not work, to show that the tests would notice.
        "kill main only" => {
            kill_process(run.main, Signal::KILL).unwrap();
            say("done main");
        }
        "killpg only" => {
            kill_process_group(run.main, Signal::KILL).unwrap();
            say("done killpg");
        }
        "survivors" => {
            for survivor in run.tree.survivors().unwrap() {
                say(&format!("survivor {} {}", survivor.pid, survivor.command));
            }
            say("done survivors");
        }
        other => panic!("no command {other}"),
    }
}
