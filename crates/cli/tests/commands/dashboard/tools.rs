//! A browser, and a program that tries the API.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::Board;
use crate::world::{Ended, binary, long};

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

/// Schemathesis reads the OpenAPI document, asks whatever fits it and whatever does not, and compares the answers.
#[test]
fn the_api_is_as_its_document_says() {
    let schemathesis = tool("venv/bin/schemathesis");
    let board = Board::of_a_night();
    let url = format!("http://{}", board.address);
    let document = format!("{url}/api/openapi.json");
    let checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,\
                  unsupported_method";
    board.run(&["run", "site", "--", "true"]).is(0, "");
    let (many, time) = if long() { ("100", "60") } else { ("10", "20") };
    let mut command = board.world.program(schemathesis);
    command.args([
        "run",
        &document,
        "--url",
        &url,
        "--checks",
        checks,
        "--max-examples",
        many,
        "--seed",
        "1",
    ]);
    command.args([
        "--generation-database",
        "none",
        "--no-color",
        "--request-timeout",
        "20",
        "--max-time",
        time,
    ]);
    let ended = Ended::from(command.output().unwrap());
    assert_eq!(ended.code, 0, "{}\n{}", ended.out, ended.err);
    assert!(ended.out.contains("Tested: 5"), "{}", ended.out);
}

/// Every path of the document has an answer, and every route of the API is in the document.
#[test]
fn the_document_has_every_route() {
    let board = Board::of_a_night();
    let document = board.get("/api/openapi.json").is(200).json();
    let paths: Vec<&String> = document["paths"].as_object().unwrap().keys().collect();
    for path in &paths {
        board.get(&path.replace("{name}", "claudelab")).is(200);
    }
    let source = include_str!("../../../src/cmd/serve/dashboard/mod.rs");
    let routes: Vec<String> = source
        .split("route(\"")
        .skip(1)
        .filter_map(|rest| rest.split_once('"').map(|(path, _)| path.replace("{*name}", "{name}")))
        .filter(|path| path.starts_with("/api/v1/"))
        .collect();
    assert!(
        routes.len() == paths.len() && routes.iter().all(|path| paths.contains(&path)),
        "{routes:?} {paths:?}"
    );
}
