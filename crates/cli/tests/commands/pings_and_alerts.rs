//! Others are told how runs go, over real sockets: in order, once, and without holding anything up.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::clock::boot_time;
use leasehold_testkit::messages::note_seen;
use serde_json::Value;

use crate::schedules::kit::{RARE, Site, job, lines};
use crate::world::{Ended, Running, World, binary, until};

/// A part of the URL that must not be shown.
const SECRET: &str = "5e7c1a-secret";

/// What a server was asked.
#[derive(Clone, Debug)]
struct Asked {
    path: String,
    query: String,
    body: String,
}

/// A server of this test.
struct Listener {
    port: u16,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Listener {
    /// One that answers each request.
    fn new() -> Self {
        Self::answering("200 OK")
    }

    fn answering(status: &'static str) -> Self {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, asked) = (socket.local_addr().unwrap().port(), Arc::new(Mutex::new(Vec::new())));
        let noted = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in socket.incoming().flatten() {
                if let Some(request) = request(&stream) {
                    noted.lock().unwrap().push(request);
                }
                let _ =
                    write!(&stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            }
        });
        Self { port, asked }
    }

    /// One that takes connections and never answers.
    fn hanging() -> Self {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let streams: Vec<TcpStream> = socket.incoming().flatten().collect();
            drop(streams);
        });
        Self { port, asked: Arc::default() }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/{SECRET}", self.port)
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// The last parts of the URLs that were asked, in order.
    fn parts(&self) -> Vec<String> {
        let part = |asked: &Asked| asked.path.strip_prefix(&format!("/{SECRET}/")).unwrap().to_owned();
        self.asked().iter().map(part).collect()
    }

    /// The messages that it got.
    fn messages(&self) -> Vec<Value> {
        let messages: Vec<Value> =
            self.asked().iter().map(|asked| serde_json::from_str(&asked.body).unwrap()).collect();
        messages.iter().for_each(|message| note_seen(message["text"].as_str().unwrap()));
        messages
    }
}

fn request(stream: &TcpStream) -> Option<Asked> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let target = line.split(' ').nth(1)?.to_owned();
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        match header.trim().split_once(':') {
            None => break,
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.trim().parse().ok()?;
            }
            Some(_) => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    Some(Asked { path: path.into(), query: query.into(), body: String::from_utf8(body).ok()? })
}

#[test]
fn a_run_pings_its_start_and_its_exit_code_in_order() {
    let (world, server) = (World::new(), Listener::new());
    let url = server.url();
    let run = |args: &[&str]| world.run(&[&["run", "site", "--ping", &url], args].concat());
    run(&["true"]).is(0, "").quiet();
    run(&["sh", "-c", "exit 3"]).is(3, "");
    world.run(&["once", "key", "--ping", &url, "true"]).is(0, "");
    assert_eq!(server.parts(), ["start", "0", "start", "3", "start", "0"]);
    let asked = server.asked();
    let rid = |at: usize| asked[at].query.strip_prefix("rid=").unwrap().to_owned();
    assert_eq!((rid(0), rid(2), rid(0).len()), (rid(1), rid(3), 36));
    assert_ne!(rid(0), rid(2));
}

#[test]
fn a_skip_is_a_log_and_no_start() {
    let (world, server) = (World::new(), Listener::new());
    let url = server.url();
    world.run(&["once", "key", "true"]).is(0, "");
    world.run(&["once", "key", "--ping", &url, "true"]).is(0, "");
    world.run(&["acquire", "site"]).token();
    world.run(&["run", "site", "--ping", &url, "-E", "9", "true"]).is(9, "run.skipped");
    assert_eq!(server.parts(), ["log", "log"]);
    assert!(server.asked()[1].body.contains("overlap"), "{:?}", server.asked());
}

#[test]
fn a_lost_lease_and_a_refused_write_are_failures_with_their_reason() {
    let (world, server) = (World::new(), Listener::new());
    let url = server.url();
    let mut run = world.hearing(binary());
    run.args(["run", "site", "--ttl", "3s", "--ping", &url, "--", "sh", "-c", "echo runs; exec sleep 60"]);
    let mut run = Running::new(run);
    assert_eq!(run.line(), "runs");
    world.run(&["break", "site"]).is(0, "");
    run.ended().is(75, "run.lost");
    assert_eq!(server.parts(), ["start", "fail"]);
    assert!(server.asked()[1].body.contains("lost"), "{:?}", server.asked());
    // The command swallows the exit code of the write that was refused.
    let fence = "leasehold run page --fence file:page -- true";
    let write = format!(
        "leasehold run page --ping {url} -- sh -c 'echo x | \"$LEASEHOLD_BIN\" write file:page; true'"
    );
    world.sh(fence).is(0, "");
    world.sh(&write).is(0, "");
    assert_eq!(server.parts()[2..], ["start", "fail"]);
    assert!(server.asked()[3].body.contains("refused"), "{:?}", server.asked());
    // Negative control: the same run, with the target named, went well.
    world.sh(&write.replace("--ping", "--fence file:page --ping")).is(0, "");
    assert_eq!(server.parts()[4..], ["start", "0"]);
    // What could not start is a failure, too.
    let nowhere = format!("dir:{}", world.at("nowhere"));
    assert_ne!(world.run(&["--store", &nowhere, "run", "site", "--ping", &url, "true"]).code, 0);
    assert_eq!(server.parts()[6..], ["fail"]);
}

#[test]
fn a_url_that_hangs_holds_nothing_up() {
    let (world, server) = (World::new(), Listener::hanging());
    let began = boot_time();
    let mut run = world.start(&["--json", "run", "site", "--ping", &server.url(), "--", "true"]);
    // The report comes before the ping is given up, and the lease is free by then.
    let report: Value = serde_json::from_str(&run.line()).unwrap();
    assert_eq!(
        (&report["outcome"], world.status(&[], "site")["state"].as_str()),
        (&"ok".into(), Some("free"))
    );
    run.ended().is(0, "notify.not_pinged").names(&["127.0.0.1"]).lacks(SECRET);
    assert!(boot_time().since(began) < Duration::from_secs(20));
    // A start that gets no answer does not keep the lease from being renewed.
    let long = ["run", "long", "--ttl", "2s", "--ping", &server.url(), "--", "sleep", "5"];
    world.run(&long).is(0, "notify.not_pinged").lacks("run.lost");
    // Nor does one that refuses, or is not there.
    let sour = Listener::answering("503 No");
    let told = world.run(&["run", "site", "--ping", &sour.url(), "true"]).is(0, "notify.not_pinged");
    told.is(0, "notify.http_status").names(&["503"]).lacks(SECRET);
    let curt = Listener::answering("");
    let told = world.run(&["run", "site", "--ping", &curt.url(), "true"]);
    told.is(0, "notify.no_whole_answer").lacks(SECRET);
    world
        .run(&["run", "site", "--ping", &format!("http://[/{SECRET}"), "true"])
        .is(0, "notify.no_url")
        .lacks(SECRET);
    let gone = format!("http://127.0.0.1:1/{SECRET}");
    world.run(&["run", "site", "--ping", &gone, "true"]).is(0, "notify.not_reached").lacks(SECRET);
}

#[test]
fn the_url_stays_secret() {
    let (world, server) = (World::new(), Listener::new());
    world.write("ping", &format!("{}\n", server.url()));
    let look = "tr '\\0' '\\n' < /proc/self/environ; tr '\\0' '\\n' < /proc/$PPID/cmdline; set";
    let file = format!("@{}", world.at("ping"));
    let seen = world.run(&["-v", "--json", "run", "site", "--ping", &file, "--", "sh", "-c", look]).is(0, "");
    assert!(seen.out.contains("LEASEHOLD_RUN_ID") && !seen.out.contains(SECRET), "{seen:#?}");
    assert!(!seen.err.contains(SECRET), "{seen:#?}");
    assert_eq!(server.parts(), ["start", "0"]);
    world.run(&["run", "site", "--ping", "@nowhere", "true"]).is(78, "notify.bad_ping").names(&["nowhere"]);
    world.write("ping", &format!("ftp://{SECRET}/x"));
    world.run(&["run", "site", "--ping", &file, "true"]).is(78, "notify.bad_ping").lacks(SECRET);
    world.run(&["run", "site", "--observe", "--ping", &file, "true"]).is(64, "notify.not_observed");
    world.run(&["run", "site", "--ping", "hc.example/x", "true"]).is(64, "https://");
}

#[test]
fn jobs_of_a_schedule_ping_and_are_not_stopped_by_a_file_that_is_gone() {
    let server = Listener::new();
    let site = Site::new();
    site.world.write("a/secret/ping", &server.url());
    site.jobs("a", &job("site", RARE, "dir = \"elsewhere\"\nping_file = \"secret/ping\"", "exit 4"));
    fs::create_dir_all(site.world.path("a/elsewhere")).unwrap();
    site.tick("a").is(0, "");
    site.make_due("site");
    site.tick("a").is(1, "");
    assert_eq!(server.parts(), ["start", "4"]);
    site.run("a", &["trigger", "site"]).is(4, "");
    assert_eq!(server.parts()[2..], ["start", "4"]);
    fs::remove_file(site.world.path("a/secret/ping")).unwrap();
    site.run("a", &["trigger", "site"]).is(4, "notify.not_usable").names(&["secret/ping"]);
    // So is a command of [alerts], whatever the directory of the job.
    site.world.script("a/mail.sh", "#!/bin/sh\ncat >> \"${0%/*}/mail\"\n");
    let alerts = "[alerts]\ncommand = [\"./mail.sh\"]\n";
    site.jobs("a", &format!("{alerts}{}", job("site", RARE, "dir = \"elsewhere\"", "exit 4")));
    site.run("a", &["trigger", "site"]).is(4, "");
    assert_eq!(lines(&site.world.path("a/mail")).len(), 1);
    for wrong in ["ping = \"hc.example\"", "ping = \"https://x\"\nping_file = \"y\""] {
        site.jobs("a", &job("site", RARE, wrong, "exit 4"));
        site.run("a", &["plan"]).is(78, "leasehold.toml");
    }
}

/// Alerts to this server and, by a command, into the file `mail`.
fn alerts(world: &World, server: &Listener, more: &str) -> String {
    world.write("alert-url", &server.url());
    let mail = world.at("mail");
    format!(
        "[alerts]\nurl_file = \"{}\"\ncommand = [\"sh\", \"-c\", \"cat >> {mail}\"]\n{more}\n",
        world.at("alert-url")
    )
}

fn kinds(messages: &[Value]) -> Vec<&str> {
    messages.iter().map(|message| message["kind"].as_str().unwrap()).collect()
}

#[test]
fn an_alert_is_told_once_for_each_change() {
    let (world, server) = (World::new(), Listener::new());
    world.write("leasehold.toml", &alerts(&world, &server, ""));
    let run = |line: &str| world.run(&["run", "site", "--", "sh", "-c", line]);
    run("true").is(0, "");
    assert_eq!(kinds(&server.messages()), [""; 0], "all was well");
    for _ in 0..3 {
        run("exit 3").is(3, "");
    }
    assert_eq!(kinds(&server.messages()), ["failed"]);
    // A skip is neither a failure nor a recovery.
    let token = world.run(&["acquire", "site"]).token();
    run("true").is(0, "run.skipped");
    world.run(&["release", "site", "--token", &token.to_string()]).is(0, "");
    assert_eq!(kinds(&server.messages()), ["failed"]);
    run("true").is(0, "");
    run("true").is(0, "");
    let messages = server.messages();
    assert_eq!(kinds(&messages), ["failed", "ok"]);
    for field in ["v", "job", "kind", "since", "text"] {
        assert!(!messages[0][field].is_null(), "{field}: {messages:?}");
    }
    assert_eq!(lines(&world.path("mail")).len(), 2);
    // Negative control: without the record of what was told, it is told again.
    run("exit 3").is(3, "");
    let mut store =
        leasehold::stores::open(&format!("sqlite:{}", world.state().join("leases.db").display())).unwrap();
    let stored = pollster::block_on(store.read("alerts/site")).unwrap().unwrap();
    pollster::block_on(store.remove("alerts/site", &stored.version));
    run("exit 3").is(3, "");
    assert_eq!(kinds(&server.messages()), ["failed", "ok", "failed", "failed"]);
}

#[test]
fn kinds_that_nobody_wants_are_not_told() {
    let (world, server) = (World::new(), Listener::new());
    world.write(".config/leasehold/config.toml", &alerts(&world, &server, "on = [\"unknown\"]"));
    world.run(&["run", "site", "false"]).is(1, "");
    assert_eq!(server.asked().len(), 0);
    world.run(&["once", "k", "sh", "-c", "kill -9 $PPID"]).is(137, "");
    world.run(&["once", "k", "true"]).is(79, "");
    assert_eq!(kinds(&server.messages()), ["unknown"]);
    world.write(".config/leasehold/config.toml", "[alerts]\nurl = \"http://x\"\non = [\"skipped\"]\n");
    world.run(&["status"]).is(78, "skipped");
    world.write(".config/leasehold/config.toml", "[alerts]\non = [\"failed\"]\n");
    world.run(&["status"]).is(78, "[alerts] needs");
}

#[test]
fn of_two_machines_that_check_one_tells() {
    let server = Listener::new();
    let site = Site::new();
    let file =
        |more: &str| format!("{}{}", job("site", RARE, more, "exit 1"), alerts(&site.world, &server, ""));
    for machine in ["a", "b"] {
        site.jobs(machine, &file(""));
    }
    site.tick("a").is(0, "");
    site.make_due("site");
    let both = || -> Vec<Ended> {
        let checks = ["a", "b", "a", "b"].map(|machine| site.start(machine, &["check", "--alert"]));
        checks.into_iter().map(Running::ended).collect()
    };
    assert!(both().iter().all(|ended| ended.code == 1));
    assert_eq!(kinds(&server.messages()), ["overdue"]);
    // The run of the tick tells that it failed; both then see the same.
    site.tick("b").is(1, "");
    both();
    assert_eq!(kinds(&server.messages()), ["overdue", "failed"]);
    for machine in ["a", "b"] {
        site.jobs(machine, &file("").replace("exit 1", "true"));
    }
    site.run("a", &["trigger", "site"]).is(0, "");
    assert!(both().iter().all(|ended| ended.code == 0));
    assert_eq!(kinds(&server.messages()), ["overdue", "failed", "ok"]);
}

#[test]
fn what_cannot_be_told_changes_nothing() {
    let (world, server) = (World::new(), Listener::answering("500 No"));
    world.run(&["check", "--alert"]).is(78, "notify.no_alerts");
    world.write("leasehold.toml", &alerts(&world, &server, "").replace("cat >>", "exit 5; cat >>"));
    let failed = world.run(&["run", "site", "--", "sh", "-c", "exit 3"]).is(3, "notify.not_alerted");
    failed.is(3, "notify.alert_command").lacks(SECRET);
    world.write("leasehold.toml", "[alerts]\nurl_file = \"nowhere\"\n");
    world.run(&["run", "other", "--", "sh", "-c", "exit 3"]).is(3, "notify.not_alerted").names(&["nowhere"]);
    let refused = "leasehold run page -- sh -c 'echo x | \"$LEASEHOLD_BIN\" write file:page; true'";
    let good = Listener::new();
    world.write("leasehold.toml", &alerts(&world, &good, ""));
    world.sh("leasehold run page --fence file:page -- true").is(0, "");
    world.sh(refused).is(0, "");
    assert_eq!(kinds(&good.messages()), ["refused"]);
    // The next run goes well: told once, although check still lists the refused write.
    world.run(&["run", "page", "true"]).is(0, "");
    until("the check is made", || (world.run(&["check", "--alert"]).code == 1).then_some(()));
    assert_eq!(kinds(&good.messages()).first(), Some(&"refused"));
    assert_eq!(good.messages().iter().filter(|message| message["job"] == "page").count(), 2);
}

/// A server with TLS: prints its port, then each path that it is asked for.
const WITH_TLS: &str = "
import http.server, ssl, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers['content-length']))
        print(self.path.split('?')[0], flush=True)
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Answer)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()";

#[test]
fn a_url_with_tls_is_asked_if_its_certificate_is_trusted() {
    let world = World::new();
    let [ca, ca_key, cert, key] = ["ca.pem", "ca.key", "cert.pem", "cert.key"].map(|file| world.at(file));
    let openssl = |words: &[&str]| {
        let new = [
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
        ];
        let made = world.program("openssl").args(new).args(words).output();
        let made = made.unwrap_or_else(|e| panic!("SKIPPED: openssl cannot be started: {e}"));
        assert!(made.status.success(), "{made:?}");
    };
    openssl(&["-keyout", &ca_key, "-out", &ca, "-subj", "/CN=test authority"]);
    let names = ["-subj", "/CN=here", "-addext", "subjectAltName=IP:127.0.0.1"];
    let end = ["-addext", "basicConstraints=critical,CA:FALSE", "-CA", &ca, "-CAkey", &ca_key];
    openssl(&[&["-keyout", &key, "-out", &cert], &names[..], &end[..]].concat());
    let mut server = world.program("python3");
    server.args(["-c", WITH_TLS, &cert, &key]);
    let mut server = Running::new(server);
    let url = format!("https://127.0.0.1:{}/{SECRET}", server.line());
    let args = ["run", "site", "--ping", &url, "true"];
    let mut run = world.command(&args);
    Ended::from(run.env("SSL_CERT_FILE", &ca).output().unwrap()).is(0, "").quiet();
    assert_eq!([server.line(), server.line()], [format!("/{SECRET}/start"), format!("/{SECRET}/0")]);
    // Negative control: nobody has signed it for the system.
    let distrusted = world.run(&args);
    distrusted.is(0, "notify.not_pinged").lacks(SECRET);
}
