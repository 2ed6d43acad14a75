//! A browser, and a program that tries the API.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::Board;
use crate::world::{Ended, binary};

/// What `scripts/servers install` brings.
fn tool(path: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let target = program.ancestors().nth(3).unwrap();
    let found = target.join("tools/servers").join(path);
    assert!(found.exists(), "SKIPPED: no {}: scripts/servers install", found.display());
    found
}

/// Four screens in Chromium: content, changes, filters, keyboard, dark, phone, and what axe says of them. With a
/// directory in LEASEHOLD_PICTURES, pictures are put there.
#[test]
fn in_a_browser() {
    let modules = tool("npm/node_modules");
    let _ = (tool("npm/node_modules/playwright-core"), tool("npm/node_modules/axe-core"));
    let board = Board::of_a_night();
    let browser = Path::new("/usr/bin/chromium");
    assert!(browser.exists(), "SKIPPED: no {}: apt-get install chromium", browser.display());
    let take = ["--store", &board.url, "acquire", "just-taken", "--ttl", "1h"];
    let take: Vec<&str> =
        std::iter::once(binary().to_str().unwrap().to_owned().leak() as &str).chain(take).collect();
    let given = json!({
        "url": format!("http://{}", board.address), "modules": modules, "browser": browser, "take": take,
        "pictures": std::env::var("LEASEHOLD_PICTURES").ok(), "end": board.server.pid(),
    });
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/commands/dashboard/browser.mjs");
    let ended = Ended::from(board.world.program("node").arg(script).arg(given.to_string()).output().unwrap());
    assert_eq!(ended.code, 0, "{}\n{}", ended.out, ended.err);
}
