//! `leasehold use URL`: examine a store, then save it in the user's configuration, unless the project here names it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use leasehold::backends::{self, EMBEDDED, embedded, is_masked, name_in_store, reset_command, shown};
use leasehold::doctor::{Depth, Progress};
use leasehold::other_stores::{OtherStores, UnknownHere};
use leasehold::state::{StateDir, write_private};
use leasehold::stores::RemarkLevel;
use leasehold_run::config_file::{Reader, agree_without};
use serde_json::json;

use super::{SlowStoreNotice, doctor, item_args::quoted, other_stores};
use crate::args::{Everywhere, UseArgs};
use crate::config::{self, Chosen, Missing};
use crate::exit::{self, Failed};
use crate::messages::use_store as say;
use crate::out::Out;

/// The keys that name a store.
const STORE_KEYS: [&str; 2] = ["store", "store_file"];

/// Examines and writes.
pub fn run(flags: &Everywhere, args: &UseArgs, out: &Out) -> Result<u8, Failed> {
    let state = config::state_dir()?;
    // The short name of this machine's own store.
    let url = if args.url.trim() == EMBEDDED { embedded(&state.database()) } else { args.url.clone() };
    let chosen = config::argument(&url, "the argument of use")?;
    let created = backends::is_unmade(&chosen.url);
    // First: a configuration that cannot be read, or changed, must not be replaced.
    let place = ConfigPlace::find(flags, &chosen)?;
    let before = backends::content(&chosen.url);
    let left = |failed: Failed| unsaved(failed, &before, &chosen);
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
    let named = match &place {
        ConfigPlace::Project(path) => say::named_by_project(path.display()),
        ConfigPlace::User { path, .. } if moved_config() => say::saved_elsewhere(path.display()),
        ConfigPlace::User { path, .. } => say::saved(path.display()),
    };
    out.note(&if created { say::created(&chosen.shown, named) } else { say::works(&chosen.shown, named) });
    let named_before = match &place {
        ConfigPlace::Project(_) => !created,
        ConfigPlace::User { path, old, .. } => warn_of_before(path, old, &chosen, &state, out),
    };
    warn_of_others(&unknown, named_before, &chosen, &state, out);
    if let Some(other) = config::overriding(flags, &chosen) {
        out.warn(&say::not_used(other));
    }
    Ok(exit::OK)
}

/// Where the store is named from now on.
enum ConfigPlace {
    /// The file of the project here does so already.
    Project(PathBuf),
    /// The user's configuration: its text now, and its text with the store.
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
        if !agree_without(&STORE_KEYS, &old, &new) {
            let line = format!("store = {}", toml::Value::from(shown(&chosen.url)));
            return Err(say::not_changeable(path.display(), line));
        }
        Ok(Self::User { path, old, new })
    }

    fn path(&self) -> &Path {
        let (Self::Project(path) | Self::User { path, .. }) = self;
        path
    }

    fn write(&self, chosen: &Chosen) -> Result<(), Failed> {
        let Self::User { path, new, .. } = self else { return Ok(()) };
        let written = write_private(path, new.as_bytes());
        written.map_err(|e| say::not_written(&chosen.shown, path.display(), e))
    }
}

/// Warns of the leases on the store that was named before this one. Whether it was this store.
fn warn_of_before(config: &Path, old: &str, chosen: &Chosen, state: &StateDir, out: &Out) -> bool {
    let embedded = embedded(&state.database());
    let reader = Reader::new(old, config);
    let file = reader.file().ok();
    let unnamed = file.as_ref().is_none_or(|file| !STORE_KEYS.iter().any(|key| file.has(key)));
    let text = |key: &str| file.as_ref().and_then(|file| file.text(key).ok().flatten());
    let url = text("store").or((unnamed && state.database().exists()).then(|| embedded.clone()));
    let same = url.as_deref() == Some(chosen.url.as_str());
    match (url.filter(|_| !same), text("store_file")) {
        (Some(url), _) => {
            let before = shown(&url);
            let back = if url == embedded { EMBEDDED.into() } else { quoted(&before) };
            out.warn(&if is_masked(&before) {
                say::before_masked(before, back)
            } else {
                say::before(before, back)
            });
        }
        // The text of that file may be a secret. Its place is not.
        (None, Some(file)) => out.warn(&say::before_in_file(toml::Value::from(file), config.display())),
        (None, None) => {}
    }
    same
}

/// Warns of work that was done on other stores, and of fences that runs there may have left.
fn warn_of_others(unknown: &[UnknownHere], named_before: bool, chosen: &Chosen, state: &StateDir, out: &Out) {
    for unknown in unknown {
        let work = other_stores::counted(unknown);
        out.warn(&say::done_elsewhere(work, &unknown.store, quoted(&chosen.shown)));
    }
    if named_before {
        return;
    }
    // The fence of a gate is in the store itself.
    let fenced: Vec<String> = state.targets().into_iter().filter(|t| name_in_store(t).is_none()).collect();
    match &fenced[..] {
        [] => {}
        [target] => {
            // The fence of a repository is a ref, which git deletes.
            let reset = reset_command(target).unwrap_or_else(|| say::reset(quoted(target)));
            out.warn(&say::fenced(target, reset));
        }
        several => out.warn(&say::fenced_several(several.len())),
    }
}

/// The examinations of `doctor`, in their short form.
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

/// Work that was done on other stores and is not known on this one. With `--new-here` it is noted as new: nothing.
fn unknown_here(args: &UseArgs, chosen: &Chosen, state: &StateDir) -> Result<Vec<UnknownHere>, Failed> {
    let here = OtherStores::new(state, &chosen.shown);
    let unknown = here.unknown_here();
    if !args.new_here.said || unknown.is_empty() {
        return Ok(unknown);
    }
    let stores: Vec<String> = unknown.into_iter().map(|unknown| unknown.store).collect();
    let noted = other_stores::note_new_here(&here, &stores, chosen);
    noted.map(|()| Vec::new()).map_err(|failed| failed.meaning(say::not_new_here(&chosen.shown)))
}

/// A failure before the store is saved. A new directory stays: another machine may be making the same store.
fn unsaved(failed: Failed, before: &Option<BTreeSet<OsString>>, chosen: &Chosen) -> Failed {
    match backends::content(&chosen.url) == *before {
        true => failed.meaning(say::unsaved()),
        false => failed.meaning(say::partly_made(&chosen.shown)),
    }
}

/// Whether a shell without `XDG_CONFIG_HOME`, like cron's, looks for the configuration elsewhere.
fn moved_config() -> bool {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("XDG_CONFIG_HOME").is_some_and(|moved| set("HOME").is_none_or(|home| home.join(".config") != moved))
}

/// The path of the user's configuration, and its text.
fn configuration() -> Result<(PathBuf, String), Failed> {
    // A configuration is often a link into a repository: then the file behind the link is replaced.
    let Some(path) = config::user_config().map(|path| std::fs::canonicalize(&path).unwrap_or(path)) else {
        return Err(say::no_place());
    };
    match std::fs::read_to_string(&path) {
        Ok(old) => Ok((path, old)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok((path, String::new())),
        Err(e) => Err(say::not_readable(path.display(), e)),
    }
}

/// The configuration with this store, everything else as it was.
fn with_store(old: &str, url: &str) -> String {
    let is_store = |line: &&str| {
        let key = line.split('=').next().unwrap_or("").trim();
        STORE_KEYS.contains(&key)
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
