//! The worker on a workerd of the test's own, with bearers.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use leasehold::backends::http::open_as;
use leasehold::stores::Store;
use sha2::{Digest, Sha256};

use crate::common::Scratch;

pub(super) const PLAIN: &str = "plain-bearer-0123456789";
pub(super) const TEAM: &str = "team-bearer-0123456789";
pub(super) const ADMIN: &str = "admin-bearer-0123456789";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn binary() -> PathBuf {
    let modules = root().join("target/tools/servers/npm/node_modules/@cloudflare");
    let mut found = std::fs::read_dir(modules).into_iter().flatten().flatten();
    let found = found.find_map(|e| Some(e.path().join("bin/workerd")).filter(|path| path.exists()));
    found.unwrap_or_else(|| panic!("SKIPPED: workerd is not installed; run `scripts/servers run -- true`"))
}

pub(super) fn hash(token: &str) -> String {
    Sha256::digest(token).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A workerd that ends with the test.
pub(super) struct Workerd {
    child: Child,
    pub(super) url: String,
    /// The rule alone.
    pub(super) replay: String,
}

impl Workerd {
    /// Its records are kept in `scratch`.
    pub(super) fn start(scratch: &Scratch) -> Self {
        let tokens = format!(
            r#"{{"{}": "", "{}": "team-a/", "{}": {{"prefix": "", "admin": true}}}}"#,
            hash(PLAIN),
            hash(TEAM),
            hash(ADMIN)
        );
        Self::with_tokens(scratch, &tokens)
    }

    /// With these for its `LEASEHOLD_TOKENS`.
    pub(super) fn with_tokens(scratch: &Scratch, tokens: &str) -> Self {
        let disk = scratch.join("disk");
        std::fs::create_dir_all(&disk).unwrap();
        let mut child = Command::new(binary())
            .args(["serve", "--control-fd=1", "--directory-path", &format!("disk={disk}")])
            .args(["--socket-addr", "http=127.0.0.1:0", "--socket-addr", "replay=127.0.0.1:0"])
            .arg(root().join("workers/durable-object/test/closed.capnp"))
            .env("LEASEHOLD_TOKENS", tokens)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // It tells its ports once it listens.
        let (mut url, mut replay) = (String::new(), String::new());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        while url.is_empty() || replay.is_empty() {
            let line = lines.next().expect("workerd ended").unwrap();
            let event: serde_json::Value = serde_json::from_str(&line).unwrap();
            let at = format!("http://127.0.0.1:{}", event["port"]);
            match event["socket"].as_str() {
                Some("http") => url = at,
                Some("replay") => replay = at,
                _ => {}
            }
        }
        Self { child, url, replay }
    }

    pub(super) fn store(&self, bearer: &str) -> Box<dyn Store> {
        open_as(&self.url, Some(bearer)).unwrap()
    }

    /// As a crash or a power cut would.
    pub(super) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Workerd {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
