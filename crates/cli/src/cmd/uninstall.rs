//! `leasehold uninstall --show`: everything of ours that can be seen from here, and the commands that remove it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use leasehold::backends::{Holders, has_guard, name_in_store, removal_command, reset_command, stand_in};
use leasehold::state::StateDir;
use leasehold::stores::Store;
use leasehold::text::shell_quoted;
use serde_json::{Value, json};

use crate::args::{Everywhere, UninstallArgs};
use crate::config::{self, Chosen, Missing};
use crate::exit::{self, Failed};
use crate::messages::uninstall as say;
use crate::out::{self, Out};

/// Our name, as it stands in a crontab or a unit.
const OURS: &str = "leasehold";
/// Where units and system crontabs are.
const STARTERS: [&str; 5] = [
    "/etc/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/etc/cron.d",
    "/etc/crontab",
];
/// Larger files are no crontabs and no units.
const FILE_MAX: u64 = 256 * 1024;
const PAGE: usize = 1000;

/// Something to remove: what it is, and how.
struct Piece {
    kind: &'static str,
    what: String,
    how: String,
}

/// Shows it.
pub fn run(flags: &Everywhere, args: &UninstallArgs, out: &Out) -> Result<u8, Failed> {
    if !args.show {
        return Err(say::only_shows());
    }
    let state = StateDir::locate(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
        .map_err(|e| Failed::config(e.explanation()))?;
    let mut pieces = starters();
    pieces.extend(state.targets().iter().map(|target| Piece {
        kind: "target",
        what: target.clone(),
        how: how_to_free(target),
    }));
    let chosen = config::choose(flags, &state);
    let counted = match &chosen {
        Ok(chosen) => count(chosen, &state).map_err(|failed| failed.told.to_string()),
        Err(failed) => Err(failed.told.to_string()),
    };
    if let (Ok(chosen), Ok(counts)) = (&chosen, &counted)
        && !counts.is_empty()
    {
        let how = removal_command(&chosen.shown).unwrap_or_else(say::by_provider);
        pieces.push(Piece { kind: "store", what: chosen.shown.clone(), how });
    }
    pieces.extend(files(&state));
    if out.json {
        let each = |piece: &Piece| json!({"kind": piece.kind, "what": piece.what, "remove": piece.how});
        let (counts, problem) = match &counted {
            Ok(counts) => (json!(counts), Value::Null),
            Err(problem) => (Value::Null, problem.as_str().into()),
        };
        let store = chosen.as_ref().ok().map(|chosen| chosen.shown.as_str());
        let pieces: Vec<Value> = pieces.iter().map(each).collect();
        out.object(&json!({
            "v": 1, "store": store, "records": counts, "problem": problem, "pieces": pieces,
        }));
        return Ok(exit::OK);
    }
    let head = ["KIND", "WHAT", "REMOVE IT WITH"].map(str::to_owned).to_vec();
    let rows = pieces.into_iter().map(|piece| vec![piece.kind.to_owned(), piece.what, piece.how]);
    out::table(&[head].into_iter().chain(rows).collect::<Vec<_>>());
    match (&chosen, &counted) {
        (Ok(chosen), Ok(counts)) => {
            let counts: Vec<String> = counts.iter().map(|(kind, n)| format!("{kind} {n}")).collect();
            let told = if counts.is_empty() { say::no_records() } else { counts.join(", ") };
            out.note(&say::records(&chosen.shown, told));
        }
        (_, Err(problem)) => out.warn(&say::not_counted(problem)),
        (Err(_), Ok(_)) => {}
    }
    out.note(&say::nothing_removed());
    Ok(exit::OK)
}

/// How what a fence keeps at a target is removed.
fn how_to_free(target: &str) -> String {
    if has_guard(target) {
        return say::remove_guard(shell_quoted(target));
    }
    if name_in_store(target).is_some() {
        return say::goes_with_store();
    }
    reset_command(target).unwrap_or_else(|| say::reset_fence(shell_quoted(target)))
}

/// What starts jobs here: lines of crontabs and units that name us.
fn starters() -> Vec<Piece> {
    let mut found = Vec::new();
    let cron = Command::new("crontab").arg("-l").stdin(Stdio::null()).stderr(Stdio::null()).output();
    let lines = cron.map(|cron| String::from_utf8_lossy(&cron.stdout).into_owned()).unwrap_or_default();
    for line in lines.lines().filter(|line| names_us(line)) {
        found.push(Piece { kind: "crontab", what: line.trim().into(), how: say::edit_crontab() });
    }
    let own = std::env::var_os("HOME").map(|home| Path::new(&home).join(".config/systemd/user"));
    for place in STARTERS.iter().map(PathBuf::from).chain(own) {
        let inside = fs::read_dir(&place).into_iter().flatten().flatten().map(|entry| entry.path());
        let files: Vec<PathBuf> = if place.is_dir() { inside.collect() } else { vec![place.clone()] };
        for path in files {
            let small = fs::metadata(&path).is_ok_and(|found| found.is_file() && found.len() <= FILE_MAX);
            if !small || !fs::read_to_string(&path).is_ok_and(|text| text.lines().any(names_us)) {
                continue;
            }
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let unit = place.ends_with("system") || place.ends_with("user");
            let how = if unit {
                say::disable_unit(shell_quoted(&name))
            } else {
                say::edit_file(shell_quoted(&path.display().to_string()))
            };
            let kind = if unit { "unit" } else { "crontab" };
            found.push(Piece { kind, what: path.display().to_string(), how });
        }
    }
    found
}

/// Whether a line calls us, and is no comment.
fn names_us(line: &str) -> bool {
    !line.trim_start().starts_with('#') && line.contains(OURS)
}

/// The files of this user: state, configuration, and this program.
fn files(state: &StateDir) -> Vec<Piece> {
    let config = config::user_config().and_then(|path| Some(path.parent()?.to_owned()));
    let dirs = [("state", Some(state.path().to_owned())), ("config", config)];
    let dirs = dirs.into_iter().filter_map(|(kind, path)| Some((kind, path?)));
    let dirs = dirs.filter(|(_, path)| path.exists());
    let piece = |kind, path: &Path, rm: &str| {
        let what = path.display().to_string();
        Piece { kind, how: format!("{rm} {}", shell_quoted(&what)), what }
    };
    let mut found: Vec<Piece> = dirs.map(|(kind, path)| piece(kind, &path, "rm -r")).collect();
    found.extend(std::env::current_exe().ok().map(|path| piece("binary", &path, "rm")));
    found
}

/// How many records of each kind the store has. A store that does not exist yet is not made.
fn count(chosen: &Chosen, state: &StateDir) -> Result<BTreeMap<String, usize>, Failed> {
    let mut counts = BTreeMap::new();
    let none = chosen.embedded && !state.database().exists();
    if none || stand_in(&chosen.url).is_some() {
        return Ok(counts);
    }
    let mut store: Box<dyn Store> = config::open_for(chosen, Missing::Refuse, Holders::Here)?;
    let mut after = String::new();
    loop {
        let page = pollster::block_on(store.list("", &after, PAGE))
            .map_err(|failure| super::store_failed(&failure, chosen))?;
        let full = page.len() == PAGE;
        for listed in page {
            let kind = listed.key.split('/').next().unwrap_or_default().to_owned();
            *counts.entry(kind).or_default() += 1;
            after = listed.key;
        }
        if !full {
            return Ok(counts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_starts_nothing() {
        assert!(names_us("*/5 * * * *  leasehold run site -- ./x") && !names_us("  # leasehold run"));
        assert!(!names_us("*/5 * * * *  ./publish.sh"));
    }
}
