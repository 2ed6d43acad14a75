//! `leasehold use URL`: examine a store, then write it to the user's configuration, unless the project here names it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use leasehold::backends::{self, EMBEDDED, embedded, gate, shown};
use leasehold::doctor::{Depth, Progress};
use leasehold::other_stores::{OtherStores, UnknownHere};
use leasehold::state::{StateDir, write_private};
use leasehold::stores::RemarkLevel;
use serde_json::json;

use super::{SlowStoreNotice, doctor, other_stores};
use crate::args::{Everywhere, UseArgs};
use crate::config::{self, Chosen, Missing};
use crate::exit::{self, FailKind, Failed};
use crate::out::Out;

/// Examines and writes.
pub fn run(flags: &Everywhere, args: &UseArgs, out: &Out) -> Result<u8, Failed> {
    let state = config::state_dir()?;
    // The way back to the store of this machine.
    let url = if args.url.trim() == EMBEDDED { embedded(&state.database()) } else { args.url.clone() };
    let chosen = config::argument(&url, "the argument of use")?;
    let created = backends::is_unmade(&chosen.url);
    // Before anything is made: what could not be read, or changed, must not be replaced.
    let place = ConfigPlace::find(flags, &chosen)?;
    let before = backends::content(&chosen.url);
    let left = |failed: Failed| left_behind(unchanged(failed), &before, &chosen);
    drop(config::open(&chosen, Missing::Create).map_err(left)?);
    examined(&chosen, &state, out).map_err(left)?;
    place.write(&chosen)?;
    if created {
        other_stores::set_aside(&chosen, &state)?;
    }
    let unknown = unknown_here(args, &chosen, &state)?;
    if out.json {
        let config = place.path().display().to_string();
        let each = |u: &UnknownHere| json!({"store": u.store, "keys": u.keys, "jobs": u.jobs});
        let unknown: Vec<_> = unknown.iter().map(each).collect();
        out.object(
            &json!({"v": 1, "store": chosen.shown, "config": config, "created": created, "not_known": unknown}),
        );
    }
    let made = if created { "created; it " } else { "" };
    let kept = match &place {
        ConfigPlace::Project(path) => {
            format!("{} names it, and your configuration stays as it is", path.display())
        }
        ConfigPlace::User { path, .. } => format!(
            "saved to {}, where cron sees it too{}",
            path.display(),
            if moved_config() { " if XDG_CONFIG_HOME is the same there: set it in the crontab" } else { "" }
        ),
    };
    out.note(&format!("{} {made}works (a test record was written and compared); {kept}", chosen.shown));
    let named_before = match &place {
        ConfigPlace::Project(_) => !created,
        ConfigPlace::User { old, .. } => warn_of_before(old, &chosen, &state, out),
    };
    warn_of_others(&unknown, named_before, &state, out);
    if let Some(other) = config::overriding(flags, &chosen) {
        out.warn(&format!("here it is not used: {other} comes first"));
    }
    Ok(exit::OK)
}

/// Where the store is named from now on.
enum ConfigPlace {
    /// The file of the project here does so already.
    Project(PathBuf),
    /// The user's configuration: what it says, and what it is to say.
    User { path: PathBuf, old: String, new: String },
}

impl ConfigPlace {
    fn find(flags: &Everywhere, chosen: &Chosen) -> Result<Self, Failed> {
        if let Ok(Some(named)) = config::of_project(flags)
            && named.url == chosen.url
        {
            return Ok(Self::Project(std::path::absolute(&named.origin).unwrap_or(named.origin.into())));
        }
        let (path, old) = configuration()?;
        config::check_user_config(&path, &old)?;
        let new = with_store(&old, &chosen.url);
        if without_store(&new) != without_store(&old) || without_store(&new).is_none() {
            return Err(Failed::config(format!(
                "{} says its store in a way that leasehold use cannot change. Nothing was changed. Write this into it yourself, \
                 instead of what is there for the store (with the password, if there is one): store = {}",
                path.display(),
                toml::Value::from(shown(&chosen.url))
            )));
        }
        Ok(Self::User { path, old, new })
    }

    fn path(&self) -> &Path {
        let (Self::Project(path) | Self::User { path, .. }) = self;
        path
    }

    fn write(&self, chosen: &Chosen) -> Result<(), Failed> {
        let Self::User { path, new, .. } = self else { return Ok(()) };
        write_private(path, new.as_bytes()).map_err(|e| {
            let message = format!("{} works, but {} could not be written: {e}", chosen.shown, path.display());
            Failed::new(FailKind::Config, "config", message)
        })
    }
}

/// Tells what was until now, and is not seen on this store. True: it was this store.
fn warn_of_before(old: &str, chosen: &Chosen, state: &StateDir, out: &Out) -> bool {
    let embedded = embedded(&state.database());
    let table = toml::from_str::<toml::Table>(old).unwrap_or_default();
    let unnamed = !table.contains_key("store") && !table.contains_key("store_file");
    let text = |key: &str| table.get(key).and_then(toml::Value::as_str);
    let url = text("store").or((unnamed && state.database().exists()).then_some(embedded.as_str()));
    let same = url == Some(chosen.url.as_str());
    let before = url.filter(|_| !same).map(shown);
    // What stands in a file of its own may be a secret; where that is does not.
    if let Some(before) = before.or_else(|| text("store_file").map(str::to_owned)) {
        out.warn(&format!(
            "until now it was {before}: what holds leases there is not seen on this one, so nothing may be left running"
        ));
    }
    same
}

/// What was done on other stores, or may have been.
fn warn_of_others(unknown: &[UnknownHere], named_before: bool, state: &StateDir, out: &Out) {
    for unknown in unknown {
        out.warn(&format!(
            "this machine saw {} begun or done on {}, and not on this one: that is refused here (78). If it is to be done again \
             here: the same with --new-here",
            other_stores::counted(unknown),
            unknown.store
        ));
    }
    // A gate lies in the store itself.
    let known = state.targets().iter().filter(|target| gate::named(target).is_none()).count();
    if known > 0 && !named_before {
        let were = if known == 1 { "1 target was".into() } else { format!("{known} targets were") };
        out.warn(&format!(
            "{were} sealed from here. Where that was by a run on another store, runs on this one are refused (79): when no run \
             is left on the other, leasehold fence reset TARGET, for each that refuses"
        ));
    }
}

/// The same examinations as the doctor's, only shorter.
fn examined(chosen: &Chosen, state: &StateDir, out: &Out) -> Result<(), Failed> {
    let mut weak = Vec::new();
    let mut silence = Some(SlowStoreNotice::begin(out, chosen));
    let diagnosis = doctor::examine(chosen, None, Depth::Quick, &mut |progress| {
        let Progress::Found(finding) = progress else { return };
        silence = None;
        if finding.verdict == RemarkLevel::Weak {
            weak.push(format!("{}: {}", finding.about, finding.text));
        }
    })?;
    drop(silence);
    doctor::left_behind(&diagnosis, out);
    doctor::judge(&diagnosis, chosen, state)?;
    weak.iter().for_each(|text| out.warn(text));
    Ok(())
}

/// What was done on other stores and is not known on this one; nothing if that is said to be new here.
fn unknown_here(args: &UseArgs, chosen: &Chosen, state: &StateDir) -> Result<Vec<UnknownHere>, Failed> {
    let here = OtherStores::new(state, &chosen.shown);
    let unknown = here.unknown_here();
    if !args.new_here.said || unknown.is_empty() {
        return Ok(unknown);
    }
    let stores: Vec<String> = unknown.into_iter().map(|unknown| unknown.store).collect();
    other_stores::tell(&here, &stores, chosen).map(|()| Vec::new())
}

/// A directory that was begun is not removed: another machine may be making the same store.
fn left_behind(failed: Failed, before: &Option<BTreeSet<OsString>>, chosen: &Chosen) -> Failed {
    if backends::content(&chosen.url) == *before {
        return failed;
    }
    failed.meaning(format!("What was made of {} is left, and the same command goes on with it", chosen.shown))
}

/// Whether a shell that does not say so looks for the configuration elsewhere.
fn moved_config() -> bool {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("XDG_CONFIG_HOME").is_some_and(|moved| set("HOME").is_none_or(|home| home.join(".config") != moved))
}

fn unchanged(failed: Failed) -> Failed {
    failed.meaning("Nothing was written to your configuration")
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

/// What else it says; nothing if it cannot be read.
fn without_store(text: &str) -> Option<toml::Table> {
    let mut table = toml::from_str::<toml::Table>(text).ok()?;
    table.remove("store");
    table.remove("store_file");
    Some(table)
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
