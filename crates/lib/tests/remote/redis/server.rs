//! A redis-server of the test's own, which it may kill.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

pub(super) use crate::common::Scratch;

pub(crate) struct Server {
    child: Child,
    pub port: u16,
    scratch: Scratch,
    args: Vec<String>,
}

impl Server {
    pub fn start(args: &[&str]) -> Self {
        let scratch = Scratch::new();
        let args: Vec<String> = args.iter().map(ToString::to_string).collect();
        // Somebody else may take the port that was free a moment ago.
        for _ in 0..10 {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            if let Some(child) = spawn(port, &scratch, &args) {
                return Self { child, port, scratch, args };
            }
        }
        panic!("redis-server does not start with {args:?}");
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn file(&self, name: &str) -> String {
        self.scratch.join(name)
    }

    /// As a crash: nothing is flushed or said.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts again on what the last one left.
    pub fn again(&mut self) {
        self.child = spawn(self.port, &self.scratch, &self.args).expect("it started before");
    }

    /// Speaks TLS too, on the port that this gives: its certificate is for `localhost`, by an authority of its own.
    pub fn encrypted(&self) -> u16 {
        certificates(self);
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let tls =
            [("tls-ca-cert-file", "ca.pem"), ("tls-cert-file", "cert.pem"), ("tls-key-file", "cert.key")];
        let mut command = vec!["CONFIG".to_owned(), "SET".to_owned()];
        tls.iter().for_each(|(name, file)| command.extend([(*name).to_owned(), self.file(file)]));
        command.extend(["tls-auth-clients", "optional", "tls-port", &port.to_string()].map(str::to_owned));
        let _: () = self.admin(&command.iter().map(String::as_str).collect::<Vec<_>>());
        port
    }

    pub fn admin<T: ::redis::FromRedisValue>(&self, words: &[&str]) -> T {
        super::admin(&self.url(), words)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A certificate authority and a server's certificate, made for this test.
fn certificates(server: &Server) {
    let openssl = |words: &[&str]| {
        let made = Command::new("openssl").args(words).output();
        let made = made.unwrap_or_else(|e| panic!("SKIPPED: openssl cannot be started: {e}"));
        assert!(made.status.success(), "{words:?}: {}", String::from_utf8_lossy(&made.stderr));
    };
    let file = |name: &str| server.file(name);
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"];
    let (ca, ca_key, cert) = (file("ca.pem"), file("ca.key"), file("cert.pem"));
    openssl(
        &[&["req", "-x509"], &key[..], &["-keyout", &ca_key, "-out", &ca, "-subj", "/CN=test authority"]]
            .concat(),
    );
    let server_key = file("cert.key");
    let names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"];
    let end = ["-addext", "basicConstraints=critical,CA:FALSE", "-CA", &ca, "-CAkey", &ca_key];
    openssl(&[&["req", "-x509"], &key[..], &["-keyout", &server_key, "-out", &cert], &names, &end].concat());
}

/// Starts a server and waits until it says that it is ready.
fn spawn(port: u16, scratch: &Scratch, args: &[String]) -> Option<Child> {
    let mut child = Command::new("redis-server")
        .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--dir", &scratch.join("")])
        .args(["--enable-debug-command", "yes", "--daemonize", "no"])
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|e| panic!("SKIPPED: redis-server cannot be started: {e}"));
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let ready = lines.any(|line| line.contains("Ready to accept connections"));
    if !ready {
        let _ = child.wait();
        return None;
    }
    // Read on, or the server would stand still when the pipe is full.
    thread::spawn(move || lines.for_each(drop));
    Some(child)
}

/// Everything the server is told, while this lives.
pub(super) struct Monitor {
    lines: BufReader<TcpStream>,
    port: u16,
}

impl Monitor {
    pub fn of(server: &Server) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(b"MONITOR\r\n").unwrap();
        let mut lines = BufReader::new(stream);
        let mut first = String::new();
        lines.read_line(&mut first).unwrap();
        assert_eq!(first.trim(), "+OK");
        Self { lines, port: server.port }
    }

    /// The commands since the last time: the word, and whether a script said it.
    pub fn commands(&mut self) -> Vec<(String, bool)> {
        let _: String = super::admin(&format!("redis://127.0.0.1:{}", self.port), &["ECHO", "the end"]);
        let mut commands = Vec::new();
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "the server is gone");
            if line.contains("\"the end\"") {
                return commands;
            }
            // +1700000000.123456 [0 127.0.0.1:4242] "EVAL" "..."
            let (source, words) = line.split_once(']').unwrap();
            let word = words.split('"').nth(1).unwrap().to_ascii_uppercase();
            // The client library introduces itself to the admin's connections.
            if word != "CLIENT" {
                commands.push((word, source.ends_with("lua")));
            }
        }
    }

    /// What clients said, without what scripts did.
    pub fn asked(&mut self) -> Vec<String> {
        self.commands().into_iter().filter(|(_, script)| !script).map(|(word, _)| word).collect()
    }
}
