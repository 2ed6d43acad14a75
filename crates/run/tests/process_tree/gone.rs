//! After the supervisor is killed: the job dies with it, and `Gone` is said only once all of it is.

use std::path::Path;

use leasehold::clock;
use leasehold::core::ids::Grant;
use leasehold::liveness::lock::{self, HolderLock};
use leasehold::liveness::{Probe, explain, probe};

use crate::dead::{HEADLESS, SETSID};
use crate::driver::{Dir, Driven, Seen, eventually, new_run, supervisor};
use crate::role::grant;

crate::tests!(
    the_job_dies_with_its_supervisor,
    a_grandchild_that_closed_everything_is_not_gone,
    one_without_environment_in_the_same_group_is_not_gone,
    one_without_environment_group_or_descriptors_is_not_gone,
    a_run_inside_the_run_is_not_gone,
    a_leader_that_ended_before_its_threads_is_not_gone,
    what_does_not_match_is_unsure,
    a_lock_file_is_made_once_and_swept_when_stray,
    a_sweeper_cannot_hurt_one_who_is_just_creating,
    a_clean_end_leaves_no_file,
);

fn ask(run: &Driven, dir: &Dir) -> (Probe, &'static str) {
    explain(&dir.0, grant(&run.run), &run.run, &run.text)
}

/// Gone, unless somebody else's processes on this machine cannot be looked at. On a busy machine
/// there may be doubt for a moment.
fn assert_gone(run: &Driven, dir: &Dir) {
    let mut last = (Probe::Alive, "");
    let settled = eventually(|| {
        last = ask(run, dir);
        assert_ne!(last.0, Probe::Alive, "{last:?}");
        last.0 == Probe::Gone || last.1.contains("may not be")
    });
    assert!(settled, "{last:?}");
    if last.0 != Probe::Gone {
        eprintln!("not checked: {}", last.1);
    }
}

/// Noticed for that reason, and never taken for gone.
fn assert_noticed(run: &Driven, dir: &Dir, why: &str) {
    let mut last = (Probe::Gone, "");
    let settled = eventually(|| {
        last = ask(run, dir);
        assert_ne!(last.0, Probe::Gone);
        last == (Probe::Alive, why)
    });
    assert!(settled, "{last:?}");
}

fn the_job_dies_with_its_supervisor() {
    let dir = Dir::new();
    let mut run = Driven::shell(Some(&dir.0), "echo up job $$; exec sleep 1000");
    let job = run.up("job");
    assert_eq!(ask(&run, &dir), (Probe::Alive, "its lock is held"));
    run.murder();
    assert!(job.ends());
    let begun = clock::boot_time();
    assert_gone(&run, &dir);
    println!("probe: {:?}", clock::boot_time().since(begun));
    lock::discard(&dir.0, grant(&run.run)).unwrap();
    lock::discard(&dir.0, grant(&run.run)).unwrap();
    assert_eq!(ask(&run, &dir).0, Probe::Unsure);
}

/// Kills the supervisor, expects the named process to be noticed for that reason, ends it, and
/// expects `Gone`.
fn outlives(script: &str, name: &str, why: &str) {
    let dir = Dir::new();
    let mut run = Driven::job(Some(&dir.0), &["bash", "-c", &format!("{script} wait; sleep 1000")]);
    let main = Seen::now(run.main).unwrap();
    let left = run.up(name);
    run.murder();
    assert!(main.ends());
    assert!(left.alive());
    assert_noticed(&run, &dir, why);
    left.kill();
    assert!(left.ends());
    assert_gone(&run, &dir);
}

/// The shell in front lets go of the lock, so that nothing it starts inherits it.
fn closed(script: &str) -> String {
    format!("exec 100>&-; {script}")
}

fn a_grandchild_that_closed_everything_is_not_gone() {
    outlives(SETSID, "setsid", "its lock is held");
    // Python is the job and dies with the supervisor; what it started never had the lock.
    let script = r#"exec python3 -c '
import subprocess
subprocess.Popen(["sh", "-c", "echo up python $$; exec sleep 1000"], start_new_session=True).wait()
';"#;
    outlives(script, "python", "a process has its mark");
}

fn one_without_environment_in_the_same_group_is_not_gone() {
    // It takes the mark off too, so that only the group is left to tell.
    let script = closed("env -i bash -c 'ulimit -R unlimited; echo up bare $$; exec sleep 1000' &");
    outlives(&script, "bare", "a process is in its process group");
}

fn one_without_environment_group_or_descriptors_is_not_gone() {
    let script = closed("env -i setsid sh -c 'echo up hidden $$; exec sleep 1000' &");
    outlives(&script, "hidden", "a process has its mark");
}

fn a_run_inside_the_run_is_not_gone() {
    // What an inner supervisor would have set, with both supervisors and the lock gone, and the
    // mark taken off: only the chain in the environment is left to tell.
    let script = closed(
        "export LEASEHOLD_RUN_ID=inner LEASEHOLD_RUN_CHAIN=\"$LEASEHOLD_RUN_CHAIN inner\";
        setsid bash -c 'ulimit -R unlimited; echo up inner $$; exec sleep 1000' &",
    );
    outlives(&script, "inner", "a process has its run id");
}

fn a_leader_that_ended_before_its_threads_is_not_gone() {
    let script = closed(&format!("setsid {HEADLESS}"));
    outlives(&script, "headless", "a process has its mark");
    let script = closed(&format!("ulimit -R unlimited; setsid {HEADLESS}"));
    outlives(&script, "headless", "a process has its run id");
}

fn what_does_not_match_is_unsure() {
    let dir = Dir::new();
    let mut run = Driven::shell(Some(&dir.0), "echo up job $$; exec sleep 1000");
    let job = run.up("job");
    run.murder();
    assert!(job.ends());
    assert_gone(&run, &dir);
    let id = grant(&run.run);
    let unsure = |text: &str, run_id: &str| {
        assert_eq!(probe(&dir.0, id, run_id, text), Probe::Unsure, "{text} {run_id}");
    };
    unsure(&run.text, "");
    unsure("", &run.run);
    let parts: Vec<&str> = run.text.split(' ').collect();
    for (i, other) in
        [(0, "2"), (1, "0"), (2, "pid:[1]"), (3, "-x"), (4, "ffff"), (5, "1"), (6, "99999999999")]
    {
        let mut changed = parts.clone();
        changed[i] = other;
        unsure(&changed.join(" "), &run.run);
    }
    // Another file under the same name, as after a restore or a deletion.
    let path = dir.0.join(format!("{id}.lock"));
    let kept = dir.0.join("kept");
    std::fs::rename(&path, &kept).unwrap();
    std::fs::write(&path, std::fs::read(&kept).unwrap()).unwrap();
    unsure(&run.text, &run.run);
    // A link to the right file is not the file.
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&kept, &path).unwrap();
    unsure(&run.text, &run.run);
}

fn files(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn a_lock_file_is_made_once_and_swept_when_stray() {
    use std::os::unix::fs::PermissionsExt;
    let dir = Dir::new();
    let nested = dir.0.join("a/b");
    let [held, stray, named] = [1, 2, 3].map(Grant);
    let lock = HolderLock::create(&nested, held).unwrap();
    drop(HolderLock::create(&nested, stray).unwrap());
    drop(HolderLock::create(&nested, named).unwrap());
    std::fs::write(nested.join(format!("{}.new", Grant(4))), "").unwrap();
    std::fs::write(nested.join("notes.lock"), "").unwrap();
    let mode = |p: &Path| std::fs::metadata(p).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&nested), 0o700);
    assert_eq!(mode(&nested.join(format!("{held}.lock"))), 0o600);
    assert_eq!(lock::sweep(&nested, |g| g == named).unwrap(), 2);
    let left = [format!("{held}.lock"), format!("{named}.lock"), "notes.lock".into()];
    assert_eq!(files(&nested), left);
    lock.remove().unwrap();
    assert_eq!(lock::sweep(&dir.0.join("absent"), |_| false).unwrap(), 0);
}

fn a_sweeper_cannot_hurt_one_who_is_just_creating() {
    let dir = Dir::new();
    std::fs::create_dir(&dir.0).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                lock::sweep(&dir.0, |_| false).unwrap();
            }
        });
        let made = (0..3000).try_for_each(|n| {
            let lock = HolderLock::create(&dir.0, Grant(n))?;
            // In place and locked: no sweeper may take it now.
            lock::sweep(&dir.0, |_| false)?;
            lock.remove()
        });
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        made.unwrap();
    });
}

fn a_clean_end_leaves_no_file() {
    let dir = Dir::new();
    let mut command = supervisor("plain", &new_run(), Some(&dir.0));
    assert_eq!(command.args(["sh", "-c", "exit 7"]).status().unwrap().code(), Some(7));
    assert_eq!(files(&dir.0), [""; 0]);
}
