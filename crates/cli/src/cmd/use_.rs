//! `leasehold use URL`: test a store, then write it to the user's configuration.

use std::path::PathBuf;

use leasehold::core::ids::WriteId;
use leasehold::core::store::{Cas, Failure, Version};
use leasehold::random;
use leasehold::state::write_private;
use leasehold::stores::Store;
use serde_json::json;

use super::store_failed;
use crate::args::{Everywhere, Use};
use crate::config::{self, Chosen, Missing};
use crate::exit::{self, Failed};
use crate::out::Out;

/// Where the test writes: one key, so that trying often leaves no litter.
const PROBE: &str = "probe/use";

/// Tests and writes.
pub fn run(flags: &Everywhere, args: &Use, out: &Out) -> Result<u8, Failed> {
    let state = config::state_dir()?;
    let named = Everywhere { store: Some(args.url.clone()), config: None, ..*flags };
    let chosen = config::choose(&named, &state)?;
    let created = config::no_store_yet(&chosen);
    // Before anything is made: what could not be read must not be replaced.
    let (path, old) = configuration()?;
    let mut store = config::open(&chosen, Missing::Create)?;
    pollster::block_on(check(store.as_mut(), &chosen))?;
    let written = write_private(&path, with_store(&old, &chosen.url).as_bytes());
    written.map_err(|e| {
        Failed::new(
            exit::CONFIG,
            "config",
            format!("{} works, but {} could not be written: {e}", chosen.shown, path.display()),
        )
    })?;
    if out.json {
        let config = path.display().to_string();
        out.object(&json!({"v": 1, "store": chosen.shown, "config": config, "created": created}));
    }
    let created = if created { "created; it " } else { "" };
    out.note(&format!(
        "{} {created}works (a test record was written and compared); saved to {}, where cron sees it too",
        chosen.shown,
        path.display()
    ));
    if let Some(other) = config::overriding(flags) {
        out.warn(&format!("here it is not used: {other} comes first"));
    }
    Ok(exit::OK)
}

/// The user's configuration: where, and what it says now.
fn configuration() -> Result<(PathBuf, String), Failed> {
    // Configurations are often links into a repository; the file they lead to is the one to replace.
    let Some(path) = config::user_config().map(|path| std::fs::canonicalize(&path).unwrap_or(path)) else {
        return Err(Failed::config(
            "neither XDG_CONFIG_HOME nor HOME is set, so there is no configuration to write",
        ));
    };
    match std::fs::read_to_string(&path) {
        Ok(old) => Ok((path, old)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok((path, String::new())),
        Err(e) => Err(Failed::config(format!(
            "{} cannot be read ({e}), so it was not replaced. Nothing was changed",
            path.display()
        ))),
    }
}

/// The four answers that make a store a store.
async fn check(store: &mut dyn Store, chosen: &Chosen) -> Result<(), Failed> {
    let failed = |failure: Failure| store_failed(&failure, chosen);
    let fresh = || WriteId(random::seed());
    let before: Option<Version> = store.read(PROBE).await.map_err(failed)?.map(|stored| stored.version);
    let first = won(store.cas(PROBE, before.as_ref(), fresh(), b"first").await, chosen)?;
    lost(store.cas(PROBE, before.as_ref(), fresh(), b"stale").await, chosen)?;
    let second = won(store.cas(PROBE, Some(&first), fresh(), b"second").await, chosen)?;
    lost(store.cas(PROBE, Some(&first), fresh(), b"stale").await, chosen)?;
    let found = store.read(PROBE).await.map_err(failed)?;
    if found.is_none_or(|stored| stored.version != second || stored.body != b"second") {
        return Err(not_cas(chosen));
    }
    Ok(())
}

fn won(cas: Cas, chosen: &Chosen) -> Result<Version, Failed> {
    match cas {
        Cas::Written { version, .. } => Ok(version),
        Cas::Conflict => Err(Failed::new(
            exit::UNREACHABLE,
            "busy",
            format!("somebody else is testing {} at this moment; try again", chosen.shown),
        )),
        Cas::Unknown(failure) => Err(store_failed(&failure, chosen)),
    }
}

fn lost(cas: Cas, chosen: &Chosen) -> Result<(), Failed> {
    match cas {
        Cas::Conflict => Ok(()),
        Cas::Written { .. } => Err(not_cas(chosen)),
        Cas::Unknown(failure) => Err(store_failed(&failure, chosen)),
    }
}

fn not_cas(chosen: &Chosen) -> Failed {
    Failed::config(format!(
        "{} does not compare-and-set: a stale write was accepted. Leases there would not be exclusive, so it \
         will not be used. Nothing was written to your configuration",
        chosen.shown
    ))
}

/// The configuration with this store, everything else as it was.
fn with_store(old: &str, url: &str) -> String {
    let is_store = |line: &&str| {
        let key = line.split('=').next().unwrap_or("").trim();
        key == "store" || key == "store_file"
    };
    let rest: Vec<&str> = old.lines().filter(|line| !is_store(line)).collect();
    let mut text = format!("store = {}\n", toml::Value::from(url));
    for line in rest {
        text.push_str(line);
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::with_store;

    #[test]
    fn the_rest_of_the_configuration_stays() {
        let old = "# mine\nstore = \"sqlite:/a\"\n\n# more\n";
        assert_eq!(with_store(old, "dir:/b"), "store = \"dir:/b\"\n# mine\n\n# more\n");
        assert_eq!(with_store("", "dir:/it's"), "store = \"dir:/it's\"\n");
    }
}
