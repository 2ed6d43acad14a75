//! Secrets stand in leasehold.toml, the user's configuration and the environment. They are in no command line that we
//! make, in nothing that is printed, and in no file that others can read: after success, failure and a crash.

use std::cell::RefCell;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use leasehold_testkit::git::{RepoAccess, SETTINGS, Server, Yard, must};
use leasehold_testkit::server;
use rustix::process::Signal;
use serde_json::Value;

use super::kit::{RARE, Site, job};
use crate::world::places::{CANARY, fresh};
use crate::world::{Ended, Running, binary, kill, lives, until};

/// A machine on which every execve is traced and all that is printed is kept.
struct Watched {
    site: Site,
    log: String,
    said: RefCell<Vec<String>>,
    yard: Yard,
    _git: Server,
}

impl Watched {
    fn new() -> Self {
        let mut site = Site::new();
        site.store = server("REDIS_AUTH");
        assert!(site.store.contains(CANARY), "{}", site.store);
        let yard = Yard::new(&std::env::temp_dir());
        let git = Server::start(RepoAccess::Http, yard.dir());
        let url = git.url().replace("http://", &format!("http://me:{CANARY}@"));
        must(yard.dir(), &["clone", "--quiet", &url, "clone"]);
        yard.commit(&yard.dir().join("clone"), "one");
        let log = site.world.at("execve");
        let this = Self { site, log, said: RefCell::default(), yard, _git: git };
        this.private(".config/leasehold/config.toml", &format!("store = \"{}\"\n", postgres()));
        this
    }

    fn clone_dir(&self) -> PathBuf {
        self.yard.dir().join("clone")
    }

    fn private(&self, name: &str, text: &str) {
        let path = self.site.world.write(name, text);
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// In the clone, with secrets in variables that we read and in one that we do not.
    fn start(&self, args: &[&str], variables: &[(&str, &str)]) -> Running {
        let mut command = self.site.world.program("strace");
        // As a grandchild: the process that we start is the one that is traced.
        command.args(["-D", "-f", "-A", "-o", &self.log, "-e", "trace=execve", "-s", "65535"]);
        command.arg(binary()).args(args).current_dir(self.clone_dir()).envs(SETTINGS);
        command.envs([("AWS_SECRET_ACCESS_KEY", CANARY), ("MINE", CANARY)]).envs(variables.iter().copied());
        Running::new(command)
    }

    fn ended(&self, running: Running) -> Ended {
        let pid = running.pid();
        let ended = running.ended();
        // The tracer ends after what it traces.
        until("the trace ends", || {
            let log = std::fs::read_to_string(&self.log).unwrap();
            let end =
                |line: &str| line.split_whitespace().next() == Some(&pid.to_string()) && line.contains("+++");
            log.lines().any(end).then_some(())
        });
        self.said.borrow_mut().push(format!("{}{}", ended.out, ended.err));
        ended
    }

    fn run(&self, args: &[&str], variables: &[(&str, &str)]) -> Ended {
        self.ended(self.start(args, variables))
    }

    /// All that only looks, for people and for programs.
    fn look(&self, job: &str, variables: &[(&str, &str)]) {
        for args in [&["why", job][..], &["history", job], &["status", job]] {
            for how in [&[][..], &["--json"]] {
                let ended = self.run(&[how, args].concat(), variables);
                assert_eq!(ended.code, 0, "{args:?}: {ended:#?}");
            }
        }
        self.run(&["-v", "doctor"], variables).is(0, "");
        self.run(&["fence", "ls"], variables).is(79, "");
    }

    /// Where the secret is.
    fn found(&self) -> Vec<String> {
        let mut found: Vec<String> =
            self.said.borrow().iter().filter(|said| said.contains(CANARY)).cloned().collect();
        let log = std::fs::read_to_string(&self.log).unwrap();
        // Git hands a URL to its own programs, helpers and hooks by the command line, with and without us.
        let gits_own = |line: &str| {
            let name = line.split("[\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
            name.contains("/git-core/") || name.contains("/git-remote-") || name.ends_with("/pre-push")
        };
        found.extend(log.lines().filter(|line| line.contains(CANARY) && !gits_own(line)).map(Into::into));
        readable(&self.site.world.path(""), &mut found);
        found
    }
}

/// Files with the secret that other users can read.
fn readable(path: &Path, found: &mut Vec<String>) {
    let meta = std::fs::symlink_metadata(path).unwrap();
    if meta.is_dir() && meta.mode() & 0o011 != 0 {
        std::fs::read_dir(path).unwrap().for_each(|entry| readable(&entry.unwrap().path(), found));
    }
    // The trace has a look of its own.
    if meta.is_file() && meta.mode() & 0o044 != 0 && path.file_name().is_none_or(|name| name != "execve") {
        let bytes = std::fs::read(path).unwrap();
        if String::from_utf8_lossy(&bytes).contains(CANARY) {
            found.push(path.display().to_string());
        }
    }
}

fn postgres() -> String {
    server("POSTGRES").replacen("lease@", &format!("lease:{CANARY}@"), 1)
}

/// Jobs that end well and badly, one whose target cannot be sealed and one that takes long; secrets in all of them.
fn jobs(there: &Watched, [good, bad, unsealed, slow]: &[String; 4]) -> String {
    let store = &there.site.store;
    let dir = there.clone_dir();
    let on = |fences: &str| {
        let dir = dir.display();
        format!(
            "env = {{ TOKEN = \"{CANARY}\" }}\ndir = \"{dir}\"\nfence = [{fences}]\nkey = \"{{job}}-{{slot}}\""
        )
    };
    let redis = |key: &str| format!("\"{store}#{key}\"");
    let push = "test -n \"$TOKEN\" && git push -q origin main";
    let mut toml = format!("store = \"{store}\"\n");
    toml += &job(good, RARE, &on(&format!("\"git:origin\", {}", redis(good))), push);
    toml += &job(bad, RARE, &on(&redis(bad)), "echo no; exit 3");
    toml += &job(unsealed, RARE, &on(&format!("\"pg:{}#nothing\"", postgres())), "touch never");
    toml + &job(slow, RARE, &on(&redis(slow)), "echo $$ > pid; exec sleep 600")
}

#[test]
fn no_secret_is_in_a_command_line_an_output_or_a_file_for_others() {
    let there = Watched::new();
    let Watched { site, .. } = &there;
    let names = ["good", "bad", "unsealed", "slow"].map(fresh);
    let [good, bad, unsealed, slow] = &names;
    there.private("leasehold.toml", &jobs(&there, &names));
    let config = site.world.at("leasehold.toml");
    let with = |args: &[&str]| -> Vec<String> {
        args.iter().chain(&["--config", &config]).map(|arg| (*arg).to_owned()).collect()
    };
    let run = |args: &[&str]| there.run(&with(args).iter().map(String::as_str).collect::<Vec<_>>(), &[]);
    run(&["tick"]).is(0, "");
    // Success and failure, by tick and by daemon.
    for job in [good, bad, unsealed] {
        site.make_due(job);
    }
    run(&["-v", "tick"]).is(1, "");
    for (job, outcome) in [(good, "ok"), (bad, "failed"), (unsealed, "unsealed")] {
        let rows = run(&["--json", "history", job]).out;
        assert!(rows.contains(&format!("\"outcome\":\"{outcome}\"")), "{rows}");
    }
    // A crash: the wrapper is killed.
    site.make_due(slow);
    let daemon = there.start(&["-v", "daemon", "--config", &config], &[]);
    until("the job runs", || {
        std::fs::read_to_string(there.clone_dir().join("pid")).ok()?.trim().parse::<u32>().ok()
    });
    let held: Value = run(&["--json", "status", slow]).json();
    let wrapper = held["holder"].as_str().unwrap().rsplit_once('/').unwrap().1.parse().unwrap();
    kill(wrapper, Signal::KILL);
    until("the wrapper is gone", || (!lives(wrapper)).then_some(()));
    daemon.signal(Signal::TERM);
    there.ended(daemon);
    for job in [good, slow] {
        run(&["plan", job]).is(0, "");
        run(&["why", job]).is(0, "");
    }
    let by_file = [("LEASEHOLD_STORE_FILE", site.world.at("store"))];
    there.private("store", &site.store);
    there.look(good, &by_file.each_ref().map(|(name, value)| (*name, value.as_str())));
    // The store of the user's configuration, and one from the environment.
    let report = site.world.at("report.json");
    let args = ["-v", "run", good, "--fence", "git:origin", "--report", &report, "--", "sh", "-c", "exit 3"];
    for (variables, code) in [(&[][..], 79), (&[("LEASEHOLD_STORE", site.store.as_str())], 3)] {
        there.run(&args, variables).is(code, "");
        there.run(&["once", &fresh("k"), "true"], variables).is(0, "");
        there.look(good, variables);
    }
    let mut serve = there.start(&["--json", "serve", "--store-api", "--listen", "127.0.0.1:0"], &[]);
    let told = serve.line();
    there.said.borrow_mut().push(told);
    serve.signal(Signal::TERM);
    there.ended(serve);
    let found = there.found();
    assert!(found.is_empty(), "{found:#?}");
    // The trace has what it should have: each run with the job and the slot that people know, and the job's own words.
    let log = std::fs::read_to_string(&there.log).unwrap();
    for job in &names {
        assert!(log.contains(&format!("\"run-slot\", \"{job}\", \"20")), "{log}");
    }
    assert!(log.contains("\"push\""), "{log}");
}

/// The search finds a secret in a command line, in what is printed, and in a file.
#[test]
fn a_secret_that_is_shown_is_found() {
    let there = Watched::new();
    assert!(!Path::new(&there.log).exists());
    there.run(&["run", &fresh("a"), "true", CANARY], &[]).is(0, "");
    assert_eq!(there.found().len(), 2, "{:#?}", there.found());
    std::fs::remove_file(&there.log).unwrap();
    there.run(&["run", &fresh("a"), "sh", "-c", "echo $MINE"], &[]).is(0, "");
    there.site.world.write("left", CANARY);
    assert_eq!(there.found().len(), 2, "{:#?}", there.found());
}
