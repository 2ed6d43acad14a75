//! A server of a test's own, which it may configure, kill and start again.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;
use std::{env, fs, thread};

use leasehold::clock::boot_time;

/// One PostgreSQL server in a directory of its own. Its superuser is `lease`, its database `postgres`.
pub struct Server {
    pub dir: PathBuf,
    pub port: u16,
    settings: Vec<String>,
    child: Option<Child>,
}

/// Where Debian keeps what is not on the path.
fn program(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = versions.map(|v| v.path().join("bin").join(name)).collect();
    found.sort();
    found.into_iter().rfind(|p| p.exists()).unwrap_or_else(|| name.into())
}

/// PostgreSQL refuses to run as root. It ends with the thread that starts it, so that a test that is killed
/// leaves no server behind.
pub fn command(name: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "QUIT"]);
    if rustix::process::geteuid().is_root() {
        command.args(["--reuid", "nobody", "--regid", "nogroup", "--clear-groups"]);
    }
    command.arg(program(name));
    command
}

/// Runs it to its end.
pub fn done(command: &mut Command) {
    let out = command.output().unwrap_or_else(|e| panic!("SKIPPED: {command:?} cannot be run: {e}"));
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// An empty server to copy, which takes a tenth of the time of making one. Kept where cargo keeps what tests
/// leave behind.
fn template() -> &'static Path {
    static TEMPLATE: OnceLock<PathBuf> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let initdb = program("initdb");
        let version = Command::new(&initdb).arg("--version").output();
        let version = version.unwrap_or_else(|e| panic!("SKIPPED: {} cannot be run: {e}", initdb.display()));
        let name: String =
            String::from_utf8_lossy(&version.stdout).replace(|c: char| !c.is_alphanumeric(), "-");
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        if !kept.exists() {
            let dir = scratch();
            let new = dir.join("data");
            let mut make = command("initdb");
            done(make.args(["-A", "trust", "-U", "lease", "--no-sync", "-D"]).arg(&new).current_dir("/"));
            // Whole or not at all; another process may be as far.
            let whole = kept.with_extension(super::corner().replace('/', ""));
            copy(&new, &whole);
            if fs::rename(&whole, &kept).is_err() {
                remove(&whole);
            }
            remove(&dir);
        }
        kept
    })
}

fn copy(from: &Path, to: &Path) {
    done(Command::new("cp").arg("-a").arg(from).arg(to));
}

/// A directory that the server's user may write to.
fn scratch() -> PathBuf {
    let dir = env::temp_dir().join(super::corner().replace('/', "-pg"));
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    dir
}

impl Server {
    pub fn start(settings: &[&str]) -> Self {
        let dir = scratch();
        copy(template(), &dir.join("data"));
        Self::begin(dir, settings)
    }

    /// A replica of this one.
    pub fn replica(&self) -> Self {
        let dir = scratch();
        let from = format!("host=127.0.0.1 port={} user=lease", self.port);
        done(
            command("pg_basebackup")
                .args(["-R", "-c", "fast", "-d", &from, "-D"])
                .arg(dir.join("data"))
                .current_dir("/"),
        );
        Self::begin(dir, &[])
    }

    fn begin(dir: PathBuf, settings: &[&str]) -> Self {
        let settings = settings.iter().map(|s| (*s).to_owned()).collect();
        let mut server = Self { dir, port: free_port(), settings, child: None };
        server.run();
        server
    }

    pub fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    pub fn url(&self) -> String {
        self.url_as("lease", "")
    }

    pub fn url_as(&self, user: &str, more: &str) -> String {
        format!("postgres://{user}@127.0.0.1:{}/postgres{more}", self.port)
    }

    /// Starts it and waits until it answers; after a kill its last processes may still be leaving.
    pub fn run(&mut self) {
        let mut told = Vec::new();
        let patience = boot_time().plus(Duration::from_secs(30));
        while boot_time() < patience {
            let (child, lines) = self.spawn();
            self.child = Some(child);
            while let Ok(line) = lines.recv_timeout(patience.since(boot_time())) {
                if line.contains("ready to accept") {
                    return;
                }
                told.push(line);
            }
            self.kill();
        }
        panic!("the server did not start: {told:#?}");
    }

    /// The process, and what it says until it ends.
    fn spawn(&self) -> (Child, Receiver<String>) {
        let mut command = command("postgres");
        command.arg("-D").arg(self.data()).args(["-p", &self.port.to_string(), "-k"]).arg(&self.dir);
        command.args(["-c", "listen_addresses=127.0.0.1", "-c", "max_connections=150"]);
        // One call in place of an fsync of every file, which takes most of a restart.
        command.args(["-c", "recovery_init_sync_method=syncfs"]);
        for setting in &self.settings {
            command.args(["-c", setting]);
        }
        command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (say, lines) = mpsc::channel();
        let log = BufReader::new(child.stderr.take().unwrap());
        // Read to its end, or the server would wait for its own log.
        thread::spawn(move || log.lines().map_while(Result::ok).for_each(|line| drop(say.send(line))));
        (child, lines)
    }

    /// As a power switch does, for the server.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub fn promote(&self) {
        done(command("pg_ctl").args(["promote", "-w", "-D"]).arg(self.data()).current_dir("/"));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            stop(child);
        }
        remove(&self.dir);
    }
}

/// At once, and with all its processes.
fn stop(mut child: Child) {
    let pid = rustix::process::Pid::from_child(&child);
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::QUIT);
    let _ = child.wait();
}

fn remove(dir: &Path) {
    // Best effort: the last processes of a killed server may still be writing.
    let _ = fs::remove_dir_all(dir);
}
