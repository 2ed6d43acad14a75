//! What the job gets from us: the command a shell would find, its own streams, its own signals.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use leasehold::clock;
use leasehold::poll::{Timer, Wake, wait};
use leasehold_run::runner::lookup::{LookupError, lookup};
use std::os::fd::AsFd;
use std::time::Duration;

use crate::driver::{Dir, Driven, new_run, supervisor};

crate::tests!(
    a_command_is_found_as_a_shell_would,
    a_job_that_cannot_start_says_why,
    a_script_without_interpreter_line_runs,
    streams_and_descriptors_are_untouched,
    ignored_signals_stay_ignored,
    blocked_signals_stay_blocked_and_are_noticed,
    signals_reach_the_group_and_no_further,
    the_exit_code_is_the_jobs,
    only_the_main_thread_starts_jobs,
    the_timer_and_the_wake_up,
);

fn find(name: &str, path: Option<&str>) -> Result<String, LookupError> {
    lookup(OsStr::new(name), path.map(OsStr::new)).map(|p| p.path.display().to_string())
}

fn refusal(name: &str, path: Option<&str>) -> (u8, String) {
    let e = find(name, path).unwrap_err();
    (e.exit_code(), e.to_string())
}

fn a_command_is_found_as_a_shell_would() {
    let dir = Dir::new();
    let (plain, sub) = (dir.0.join("plain"), dir.0.join("sub"));
    std::fs::create_dir_all(&sub).unwrap();
    std::fs::write(&plain, "").unwrap();
    std::fs::set_permissions(&plain, PermissionsExt::from_mode(0o644)).unwrap();
    let at = dir.0.display().to_string();
    assert_eq!(find("sh", Some("/nowhere:/bin")).unwrap(), "/bin/sh");
    assert_eq!(find("/bin/sh", None).unwrap(), "/bin/sh");
    assert_eq!(find("sh", None).unwrap(), "/bin/sh");
    let (code, why) = refusal("no-such-command", Some("/bin"));
    assert_eq!((code, why.as_str()), (127, "no-such-command: command not found in PATH"));
    assert_eq!(refusal("./no-such-file", Some("/bin")).0, 127);
    assert_eq!(refusal("", Some("/bin")).0, 127);
    let (code, why) = refusal("plain", Some(&at));
    assert!(code == 126 && why.contains("not executable (chmod +x "), "{why}");
    assert_eq!(refusal(&plain.display().to_string(), None).0, 126);
    let (code, why) = refusal("sub", Some(&at));
    assert!(code == 126 && why.ends_with("is a directory"), "{why}");
    assert_eq!(refusal(&at, None).0, 126);
    assert_eq!(refusal(&format!("{at}/plain/x"), None).0, 127);
    // A file that may not run does not hide one that may, further on.
    let other = dir.0.join("sh");
    std::fs::write(other, "").unwrap();
    assert_eq!(find("sh", Some(&format!("{at}:/bin"))).unwrap(), "/bin/sh");
}

fn plain(argv: &[&str]) -> Output {
    let mut command = supervisor("plain", &new_run(), None);
    command.args(argv).output().unwrap()
}

fn script(dir: &Dir, text: &str) -> String {
    std::fs::create_dir_all(&dir.0).unwrap();
    let path = dir.0.join("script");
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    path.display().to_string()
}

fn a_job_that_cannot_start_says_why() {
    let dir = Dir::new();
    let out = plain(&[&script(&dir, "#!/no/such/interpreter\n")]);
    let why = String::from_utf8(out.stderr).unwrap();
    assert!(out.status.code() == Some(126) && why.contains("interpreter"), "{why}");
}

fn a_script_without_interpreter_line_runs() {
    let dir = Dir::new();
    let out = plain(&[&script(&dir, "echo $1\nexit 3\n"), "hello"]);
    assert_eq!((out.status.code(), &out.stdout[..]), (Some(3), &b"hello\n"[..]));
}

/// What a process finds: where each descriptor leads and how it is opened; its name; its signals,
/// read by the shell itself, because it blocks them for the moment in which it starts another.
const LOOK: &str = r#"for f in /proc/$$/fd/*; do n=${f##*/};
    if [ -e $f ]; then echo $n $(readlink /proc/$$/fd/$n) $(grep flags /proc/$$/fdinfo/$n); fi; done;
    echo name $0; while read -r line; do case $line in Sig[BIC]*) echo "$line";; esac; done </proc/$$/status;
    ulimit -n"#;

fn look(mut command: Command, dir: &Dir) -> String {
    let open = |name: &str| {
        let mut options = std::fs::OpenOptions::new();
        options.read(true).append(true).create(true);
        options.open(dir.0.join(name)).unwrap()
    };
    std::fs::create_dir_all(&dir.0).unwrap();
    command.args(["sh", "-c", LOOK]);
    command.stdin(open("in")).stdout(open("out")).stderr(open("err"));
    assert!(command.status().unwrap().success());
    let text = std::fs::read_to_string(dir.0.join("out")).unwrap();
    std::fs::write(dir.0.join("out"), "").unwrap();
    text
}

fn streams_and_descriptors_are_untouched() {
    let dir = Dir::new();
    let mut direct = Command::new("env");
    direct.arg("--");
    let direct = look(direct, &dir);
    let under = look(supervisor("plain", &new_run(), Some(&dir.0.join("locks"))), &dir);
    let (lock, rest): (Vec<&str>, Vec<&str>) = under.lines().partition(|l| l.starts_with("100 "));
    assert!(lock.len() == 1 && lock[0].contains(".lock"), "{under}");
    assert_eq!(rest, direct.lines().collect::<Vec<_>>());
}

fn ignored_signals_stay_ignored() {
    let run = new_run();
    let supervisor = supervisor("plain", &run, None);
    let mut nohup = Command::new("sh");
    nohup.args(["-c", r#"trap "" HUP; exec "$0" "$@""#]);
    nohup.arg(supervisor.get_program());
    nohup.args(["sh", "-c", "kill -HUP $PPID; kill -HUP $$; echo both live"]);
    for (key, value) in supervisor.get_envs() {
        nohup.env(key, value.unwrap());
    }
    let out = nohup.output().unwrap();
    assert_eq!(String::from_utf8(out.stdout).unwrap(), "both live\n");
    assert!(out.status.success());
    // Without nohup the supervisor passes it on and the job dies of it.
    let out = plain(&["sh", "-c", "kill -HUP $PPID; while :; do sleep 0.01; done"]);
    assert_eq!(out.status.code(), Some(129));
}

fn blocked_signals_stay_blocked_and_are_noticed() {
    let run = new_run();
    let blocking = |signal: &str| {
        let supervisor = supervisor("deaf", &run, None);
        let mut python = Command::new("python3");
        let script = "import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [getattr(signal, sys.argv[1])])
os.execv(sys.argv[2], sys.argv[2:])";
        python.args(["-c", script, signal]);
        python.arg(supervisor.get_program());
        python.args(["grep", "SigBlk", "/proc/self/status"]);
        for (key, value) in supervisor.get_envs() {
            python.env(key, value.unwrap());
        }
        String::from_utf8(python.output().unwrap().stdout).unwrap()
    };
    assert_eq!(blocking("SIGCHLD"), "deaf\n");
    assert_eq!(blocking("SIGWINCH"), "SigBlk:\t0000000008000000\n");
}

fn signals_reach_the_group_and_no_further() {
    let trap = |name: &str| {
        format!("sh -c 'trap \"echo got {name}\" USR1; echo up {name} $$; while :; do sleep 0.01; done' &")
    };
    let script = format!(
        "trap 'echo got main' USR1; {} setsid {} while :; do sleep 0.01; done",
        trap("inside"),
        trap("outside")
    );
    // The short sleeps of the shells would die of USR1 and be of no interest.
    let mut run = Driven::shell(None, &script);
    let (_, outside) = (run.up("inside"), run.up("outside"));
    run.ask("usr1");
    run.expect("got main");
    run.expect("got inside");
    assert!(outside.alive());
    run.kill_all();
}

fn the_exit_code_is_the_jobs() {
    for (script, code) in [("exit 0", 0), ("exit 42", 42), ("kill -9 $$", 137), ("kill $$", 143)] {
        assert_eq!(plain(&["sh", "-c", script]).status.code(), Some(code), "{script}");
    }
    assert_eq!(plain(&["no-such-command"]).status.code(), Some(127));
}

fn only_the_main_thread_starts_jobs() {
    let out = supervisor("thread", &new_run(), None).arg("true").output().unwrap();
    let why = String::from_utf8(out.stderr).unwrap();
    assert!(out.status.code() == Some(126) && why.contains("main thread"), "{why}");
}

fn the_timer_and_the_wake_up() {
    let (timer, wake) = (Timer::new().unwrap(), Wake::new().unwrap());
    let fds = [timer.as_fd(), wake.as_fd()];
    let until = clock::boot_time().plus(Duration::from_millis(5));
    timer.arm(until).unwrap();
    let ready = wait(&fds).unwrap();
    assert!(ready.has(0) && !ready.has(1) && clock::boot_time() >= until);
    assert!(timer.take() && !timer.take());
    timer.arm(Default::default()).unwrap();
    assert!(wait(&fds).unwrap().has(0), "the past is now");
    timer.disarm().unwrap();
    let other = wake.clone();
    let thread = std::thread::spawn(move || {
        other.wake();
        other.wake();
    });
    let ready = wait(&fds).unwrap();
    assert!(ready.has(1) && !ready.has(0));
    thread.join().unwrap();
    assert!(wake.take() && !wake.take());
    assert!(wait(&[]).is_err());
}
