//! Real repositories behind real servers: by path, `git daemon`, and `git-http-backend` behind a small HTTP
//! server. Also hooks that stop a push until a test lets it go on.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);

/// Git with the settings of the tests only.
pub fn git(dir: &Path) -> Command {
    let mut command = Command::new("git");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("GIT_")) {
        command.env_remove(name);
    }
    command.envs(SETTINGS).current_dir(dir).stdin(Stdio::null());
    command
}

/// The environment of every git of a test.
pub const SETTINGS: [(&str, &str); 8] = [
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ("GIT_AUTHOR_NAME", "a"),
    ("GIT_AUTHOR_EMAIL", "a@localhost"),
    ("GIT_COMMITTER_NAME", "a"),
    ("GIT_COMMITTER_EMAIL", "a@localhost"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("LC_ALL", "C"),
];

/// Runs git; gives its output.
///
/// # Panics
/// If it fails.
pub fn must(dir: &Path, args: &[&str]) -> String {
    let output = git(dir).args(args).output().unwrap();
    assert!(output.status.success(), "git {args:?}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

/// The output of a command, with its errors.
pub fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A directory with a bare repository and clones of it. Dropping it removes the directory.
#[derive(Debug)]
pub struct Yard {
    dir: PathBuf,
}

impl Yard {
    /// With an empty bare repository.
    pub fn new(base: &Path) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = base.join(format!("leasehold-yard-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        let dir = dir.canonicalize().unwrap();
        must(&dir, &["init", "--quiet", "--bare", "--initial-branch=main", "r.git"]);
        Self { dir }
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The bare repository.
    pub fn bare(&self) -> PathBuf {
        self.dir.join("r.git")
    }

    /// A clone with one commit more, not pushed.
    pub fn clone(&self, name: &str, url: &str) -> PathBuf {
        must(&self.dir, &["clone", "--quiet", url, name]);
        let clone = self.dir.join(name);
        // No hooks of the machine that runs the test.
        let _ = std::fs::create_dir(clone.join(".git/hooks"));
        // No maintenance in the background after a fetch.
        must(&clone, &["config", "maintenance.auto", "false"]);
        self.commit(&clone, name);
        clone
    }

    /// Another commit there.
    pub fn commit(&self, clone: &Path, text: &str) -> String {
        must(clone, &["commit", "--quiet", "--allow-empty", "-m", text]);
        must(clone, &["rev-parse", "HEAD"])
    }

    /// The value of a ref of the bare repository; empty: there is none.
    pub fn at(&self, name: &str) -> String {
        let output = git(&self.bare()).args(["rev-parse", "--quiet", "--verify", name]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}

impl Drop for Yard {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Writes an executable script.
pub fn script(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// A hook that stops once, until the test lets it go on.
#[derive(Debug)]
pub struct StoppedHook {
    dir: PathBuf,
    ready: mpsc::Receiver<()>,
}

impl StoppedHook {
    /// Makes the hook at `path` stop the next time it runs, and only then.
    pub fn at(path: &Path) -> Self {
        let dir = path.with_extension("stop");
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        for name in ["ready", "go"] {
            assert!(Command::new("mkfifo").arg(dir.join(name)).status().unwrap().success());
        }
        std::fs::write(dir.join("armed"), "").unwrap();
        let d = dir.display();
        let text = format!(
            "#!/bin/sh\nif rm '{d}/armed' 2>/dev/null; then : >'{d}/ready'; read -r _ <'{d}/go'; fi\nexit 0\n"
        );
        // A script cannot be executed while it is written, so an equal one stays.
        if std::fs::read_to_string(path).ok().as_ref() != Some(&text) {
            script(path, &text);
        }
        let (tell, ready) = mpsc::channel();
        let fifo = dir.join("ready");
        thread::spawn(move || {
            let mut nothing = Vec::new();
            let _ = std::fs::File::open(fifo).and_then(|mut file| file.read_to_end(&mut nothing));
            let _ = tell.send(());
        });
        Self { dir, ready }
    }

    /// Waits until the hook has stopped.
    ///
    /// # Panics
    /// If it does not run.
    pub fn reached(&self) {
        self.ready.recv_timeout(PATIENCE).expect("the hook was never reached");
    }

    /// Lets it go on.
    pub fn go(&self) {
        std::fs::write(self.dir.join("go"), "\n").unwrap();
    }
}

/// How a repository is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepoAccess {
    /// `file://`
    File,
    /// `git://`
    Daemon,
    /// `http://`
    Http,
}

/// All of them.
pub const WAYS: [RepoAccess; 3] = [RepoAccess::File, RepoAccess::Daemon, RepoAccess::Http];

/// Serves the repositories of one directory.
#[derive(Debug)]
pub struct Server {
    url: String,
    daemon: Option<Child>,
}

impl Server {
    /// Starts it.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(way: RepoAccess, dir: &Path) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        match way {
            RepoAccess::File => Self { url: format!("file://{}", dir.display()), daemon: None },
            RepoAccess::Http => {
                let root = dir.to_owned();
                thread::spawn(move || serve(&free, &root));
                Self { url: format!("http://127.0.0.1:{port}"), daemon: None }
            }
            RepoAccess::Daemon => {
                drop(free);
                let mut command = Command::new(exec_path().join("git-daemon"));
                command.args(["--verbose", "--export-all", "--enable=receive-pack", "--listen=127.0.0.1"]);
                command.arg(format!("--port={port}")).arg(format!("--base-path={}", dir.display())).arg(dir);
                let mut child = command.envs(SETTINGS).stderr(Stdio::piped()).spawn().unwrap();
                let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
                let ready =
                    lines.by_ref().any(|line| line.is_ok_and(|line| line.contains("Ready to rumble")));
                assert!(ready, "git daemon did not start");
                // Reads on, because the daemon would block on a full pipe.
                thread::spawn(move || lines.for_each(drop));
                Self { url: format!("git://127.0.0.1:{port}"), daemon: Some(child) }
            }
        }
    }

    /// A server that claims atomic pushes and does not compare. `how`: see `scripts/liars/git.py`.
    ///
    /// # Panics
    /// If it does not start.
    pub fn lying(how: &str, dir: &Path) -> Self {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/liars/git.py");
        let mut command = Command::new("python3");
        command.arg(program).arg(dir).arg(how).envs(SETTINGS).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut port = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut port).unwrap();
        Self { url: format!("git://127.0.0.1:{}", port.trim()), daemon: Some(child) }
    }

    /// The bare repository of a yard.
    pub fn url(&self) -> String {
        format!("{}/r.git", self.url)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(daemon) = &mut self.daemon {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

fn exec_path() -> PathBuf {
    let output = Command::new("git").arg("--exec-path").output().unwrap();
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
}

fn serve(listener: &TcpListener, root: &Path) {
    let backend = exec_path().join("git-http-backend");
    for stream in listener.incoming() {
        let (Ok(stream), backend, root) = (stream, backend.clone(), root.to_owned()) else { continue };
        thread::spawn(move || {
            let _ = answer(stream, &backend, &root);
        });
    }
}

/// One request of a connection, by CGI; then it is closed.
fn answer(stream: TcpStream, backend: &Path, root: &Path) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut command = Command::new(backend);
    command.envs(SETTINGS).env("GIT_PROJECT_ROOT", root).env("GIT_HTTP_EXPORT_ALL", "1");
    command.env("REMOTE_USER", "test").env("REQUEST_METHOD", method).env("PATH_INFO", path);
    command.env("QUERY_STRING", query).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let (mut length, mut chunked, mut stream) = (0, false, stream);
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        let Some((name, value)) = header.trim_end().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().unwrap_or(0),
            "content-type" => drop(command.env("CONTENT_TYPE", value)),
            "content-encoding" => drop(command.env("HTTP_CONTENT_ENCODING", value)),
            "git-protocol" => drop(command.env("GIT_PROTOCOL", value)),
            "transfer-encoding" => chunked = value == "chunked",
            "expect" => stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?,
            _ => {}
        }
    }
    let body = if chunked { chunks(&mut reader)? } else { exactly(&mut reader, length)? };
    let mut child = command.env("CONTENT_LENGTH", body.len().to_string()).spawn()?;
    let mut stdin = child.stdin.take();
    let feeder = thread::spawn(move || stdin.as_mut().map(|stdin| stdin.write_all(&body)));
    let mut out = Vec::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_end(&mut out)?;
    }
    let _ = feeder.join();
    child.wait()?;
    let end = out.windows(4).position(|w| w == b"\r\n\r\n").map_or(out.len(), |at| at + 4);
    let head = String::from_utf8_lossy(&out[..end]).into_owned();
    let status = head.lines().find_map(|line| line.strip_prefix("Status: ")).unwrap_or("200 OK").to_owned();
    let length = out.len() - end;
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n")?;
    stream.write_all(&out)?;
    stream.flush()
}

fn exactly(reader: &mut impl Read, length: usize) -> io::Result<Vec<u8>> {
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(body)
}

fn chunks(reader: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let length = usize::from_str_radix(line.trim(), 16).unwrap_or(0);
        body.extend(exactly(reader, length)?);
        reader.read_line(&mut String::new())?;
        if length == 0 {
            return Ok(body);
        }
    }
}
