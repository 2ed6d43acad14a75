//! Notes of the items that this machine saw started or done, by store. A store does not know what was done on another one,
//! so a run asks here before it does an item that its own store does not know.
//!
//! Each store has a directory. The file `store` names the store, `new` lists the stores whose notes do not count for its runs,
//! and sixteen files hold the notes, one on each line. A line is added by one write, so lines of two processes never mix, and
//! a line that a full disk cut off is ignored. A process that adds a line shares the lock of the directory with others that do
//! so; a process that tidies takes it alone, so it drops no new line. A lost line lets a change of store do that work again,
//! and does nothing else.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_core::ledger::other_stores::{Noted, Sighting, answers, both, is_unknown, refuses, sighting};
use leasehold_core::ledger::{Entry, Opened, Subject};

use crate::backends::known_as;
use crate::state::{StateDir, append_private, open_private, read_private, write_private};
use crate::stores::{Failure, Store};
use crate::text::short_digest;
use crate::{clock, host, ledger, random};

/// One added line in this many tidies its file.
const TIDY_ONE_IN: u128 = 256;

/// How often a process tries to share the lock, and how long it waits in between. It gives up on a process that was
/// frozen while it tidied.
const LOOKS: u32 = 200;
const LOCKED: Duration = Duration::from_millis(10);

/// The notes of all stores, for the runs on this one.
#[derive(Clone, Debug)]
pub struct OtherStores {
    all: PathBuf,
    /// The name of this store's directory.
    dir: String,
    /// This store as it is shown.
    here: String,
    /// Items of this run, each with a store whose note of it does not count; nothing: no note counts.
    passed: Option<Vec<(String, String)>>,
}

/// How much was seen on another store and not here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownHere {
    /// That store, as it is shown.
    pub store: String,
    /// Number of keys.
    pub keys: usize,
    /// Number of jobs of which a newer slot was seen there.
    pub jobs: usize,
}

impl OtherStores {
    /// For runs on the store that is shown as `here`. A URL that names its server by a variable may mean several stores.
    pub fn new(state: &StateDir, here: &str) -> Self {
        Self { all: state.done(), dir: known_as(here), here: here.into(), passed: Some(Vec::new()) }
    }

    /// For a run that ignores the notes of other stores.
    pub fn passing_all(self) -> Self {
        Self { passed: None, ..self }
    }

    /// From now on the notes of these stores do not count for this item.
    pub fn pass(&mut self, subject: &Subject, others: Vec<String>) {
        if let (Some(passed), Some(name)) = (&mut self.passed, name_of(subject)) {
            passed.extend(others.into_iter().map(|other| (name.clone(), other)));
        }
    }

    /// Notes the result of opening an item on this store. A started item is noted before its command starts, so that a
    /// run that is killed leaves the note. `keep`: of the run that saw it.
    pub fn note_opened(&self, subject: &Subject, keep: Option<Duration>, opened: &Opened) -> io::Result<()> {
        match (opened, subject, opened.entry()) {
            (Opened::Settled, Subject::Slot { at, .. }, _) => self.add(subject, Sighting::of_slot(*at)),
            (_, _, Some(entry)) => self.note(entry, keep),
            _ => Ok(()),
        }
    }

    /// Notes an entry of this store. If its work was not done after all, the earlier note is taken back.
    pub fn note(&self, entry: &Entry, keep: Option<Duration>) -> io::Result<()> {
        let seen = sighting(entry, ended(entry), keep);
        seen.map_or(Ok(()), |seen| self.add(&entry.subject, seen))
    }

    /// Other stores whose notes refuse this item here, unless this store knows it.
    pub fn others(&self, subject: &Subject, keep: Option<Duration>) -> Vec<String> {
        let (Some(name), Some(passed)) = (name_of(subject), &self.passed) else { return Vec::new() };
        let (now, mut found) = (now(), Vec::new());
        for (dir, store) in self.stores() {
            if passed.iter().any(|(item, other)| *item == name && *other == store) {
                continue;
            }
            if seen(&dir.join(shard(&name)), &name).is_some_and(|seen| refuses(subject, seen, keep, now)) {
                found.push(store);
            }
        }
        found
    }

    /// From now on the notes of these stores do not count here.
    pub fn new_here(&self, others: &[String]) -> io::Result<()> {
        let known = self.ignored();
        for other in others.iter().map(short_digest).filter(|other| !known.contains(other)) {
            self.append("new", &other)?;
        }
        Ok(())
    }

    /// The store here lost records, or is a new one in the same place. Its notes become those of another store. For records
    /// that it still has, the store answers itself.
    pub fn set_aside(&self) -> io::Result<()> {
        let dir = self.all.join(&self.dir);
        if !dir.exists() {
            return Ok(());
        }
        let ignored = self.ignored();
        let before = format!("{}, as it was before {}", self.here, host::utc(clock::wall().as_secs()));
        write_private(&dir.join("store"), before.as_bytes())?;
        std::fs::rename(&dir, self.all.join(short_digest(&before)))?;
        ignored.iter().try_for_each(|other| self.append("new", other))
    }

    /// How much each other store has that this machine did not see here.
    pub fn unknown_here(&self) -> Vec<UnknownHere> {
        let here = all_in(&self.all.join(&self.dir));
        let now = now();
        let unknown = |(dir, store): (PathBuf, String)| {
            let (mut keys, mut jobs) = (0, 0);
            for (name, seen) in all_in(&dir) {
                let kind = kind(&name);
                let unknown = usize::from(is_unknown(kind, here.get(&name), &seen, now));
                match kind {
                    Noted::Job => jobs += unknown,
                    Noted::Key => keys += unknown,
                }
            }
            UnknownHere { store, keys, jobs }
        };
        let all = self.stores().into_iter().map(unknown);
        all.filter(|unknown| unknown.keys + unknown.jobs > 0).collect()
    }

    /// The other stores, without those whose notes do not count here.
    fn stores(&self) -> Vec<(PathBuf, String)> {
        let mut ignored: Option<Vec<String>> = None;
        let mut stores = Vec::new();
        for entry in std::fs::read_dir(&self.all).into_iter().flatten().flatten() {
            if entry.file_name() == *self.dir {
                continue;
            }
            let shown = read_private(&entry.path().join("store")).ok().flatten();
            let Some(shown) = shown.and_then(|shown| String::from_utf8(shown).ok()) else { continue };
            if !ignored.get_or_insert_with(|| self.ignored()).contains(&short_digest(&shown)) {
                stores.push((entry.path(), shown));
            }
        }
        stores.sort();
        stores
    }

    /// The stores whose notes do not count here.
    fn ignored(&self) -> Vec<String> {
        let file = self.all.join(&self.dir).join("new");
        lines(&file).split_whitespace().map(Into::into).collect()
    }

    fn add(&self, subject: &Subject, seen: Sighting) -> io::Result<()> {
        let Some(name) = name_of(subject) else { return Ok(()) };
        let file = self.all.join(&self.dir).join(shard(&name));
        let known = self::seen(&file, &name);
        if known.is_some_and(|known| both(kind(&name), Some(known), seen) == known) {
            return Ok(());
        }
        self.append(shard(&name), &line(&name, seen))?;
        if random::seed().is_multiple_of(TIDY_ONE_IN) {
            self.tidy(&file)?;
        }
        Ok(())
    }

    /// Each line starts with a line end, so that a line that was cut off does not swallow the next.
    fn append(&self, file: &str, line: &str) -> io::Result<()> {
        let dir = self.all.join(&self.dir);
        let store = dir.join("store");
        // Without this file, no other store would find the lines.
        if !store.exists() {
            write_private(&store, self.here.as_bytes())?;
        }
        let lock = self.lock()?;
        for _ in 0..LOOKS {
            match lock.try_lock_shared() {
                Ok(()) => return append_private(&dir.join(file), format!("\n{line}").as_bytes()),
                Err(TryLockError::WouldBlock) => std::thread::park_timeout(LOCKED),
                Err(TryLockError::Error(e)) => return Err(e),
            }
        }
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "another process has locked these notes and does not end",
        ))
    }

    fn lock(&self) -> io::Result<File> {
        let path = self.all.join(&self.dir).join("lock");
        append_private(&path, b"")?;
        File::open(path)
    }

    /// Leaves one line for each name that is still needed. Does nothing while another process adds a line.
    fn tidy(&self, file: &Path) -> io::Result<()> {
        let lock = self.lock()?;
        if lock.try_lock().is_err() {
            return Ok(());
        }
        let (text, now) = (lines(file), now());
        let needed: String = newest(&text)
            .into_iter()
            .filter(|(_, (seen, _))| !seen.is_over(now))
            .map(|(name, (seen, added))| format!("\n{}{added}", line(&name, seen)))
            .collect();
        if needed.len() < text.len() { write_private(file, needed.as_bytes()) } else { Ok(()) }
    }
}

/// Whether the store in use answers for an item ([`answers`]), or the item is a slot that is settled there.
pub fn answered(store: &mut dyn Store, subject: &Subject, keep: Option<Duration>) -> Result<bool, Failure> {
    let entry = ledger::entry(store, subject)?;
    if entry.is_some_and(|entry| answers(&entry, ended(&entry), keep, now())) {
        return Ok(true);
    }
    match subject {
        Subject::Slot { job, at, .. } => ledger::job::is_settled(store, job, *at),
        Subject::Key(_) | Subject::Latest(_) => Ok(false),
    }
}

/// The name of a key or a job in a line: `k` or `j`, and a digest.
fn name_of(subject: &Subject) -> Option<String> {
    let (kind, text) = match subject {
        Subject::Key(key) => ('k', key.as_str()),
        Subject::Slot { job, .. } => ('j', job.as_str()),
        Subject::Latest(_) => return None,
    };
    Some(format!("{kind}{}", short_digest(text)))
}

fn kind(name: &str) -> Noted {
    if name.starts_with('j') { Noted::Job } else { Noted::Key }
}

/// The file in which a name is.
fn shard(name: &str) -> &str {
    &name[1..2]
}

fn line(name: &str, seen: Sighting) -> String {
    let until = seen.until.map_or_else(|| "-".into(), |until| until.to_string());
    format!("{name} {} {until}", seen.at)
}

fn parsed(line: &str) -> Option<(String, Sighting)> {
    let words: Vec<&str> = line.split(' ').collect();
    // The rest are additions of later versions.
    let [name, at, until, ..] = words[..] else { return None };
    let until = if until == "-" { None } else { Some(until.parse().ok()?) };
    let whole = name.len() == 33 && name.starts_with(['k', 'j']);
    whole.then_some((name.into(), Sighting { at: at.parse().ok()?, until }))
}

/// The additions of later versions at the end of a line, with the space before them.
fn additions(line: &str) -> &str {
    line.match_indices(' ').nth(2).map_or("", |(at, _)| &line[at..])
}

/// The text of a file; empty if it cannot be read.
fn lines(file: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(Some(mut opened)) = open_private(file) {
        let _ = opened.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// For each name the sum of its lines, and the additions of later versions to the last line.
fn newest(text: &str) -> BTreeMap<String, (Sighting, &str)> {
    let mut all: BTreeMap<String, (Sighting, &str)> = BTreeMap::new();
    for line in text.lines() {
        let Some((name, seen)) = parsed(line) else { continue };
        let sum = both(kind(&name), all.get(&name).map(|(before, _)| *before), seen);
        all.insert(name, (sum, additions(line)));
    }
    all
}

/// The sum of the lines of one name.
fn seen(file: &Path, name: &str) -> Option<Sighting> {
    let text = lines(file);
    let named = text.lines().filter(|line| line.starts_with(name)).filter_map(parsed);
    named.fold(None, |before, (_, seen)| Some(both(kind(name), before, seen)))
}

fn all_in(dir: &Path) -> BTreeMap<String, Sighting> {
    let mut all = BTreeMap::new();
    for shard in "0123456789abcdef".chars() {
        let text = lines(&dir.join(shard.to_string()));
        all.extend(newest(&text).into_iter().map(|(name, (seen, _))| (name, seen)));
    }
    all
}

/// When a run ended, or now, by a wall clock.
fn ended(entry: &Entry) -> i64 {
    let at = entry.ending.as_ref().and_then(|ending| ending.at.parse::<jiff::Timestamp>().ok());
    at.map_or_else(now, jiff::Timestamp::as_second)
}

fn now() -> i64 {
    i64::try_from(clock::wall().as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(place: &Path, store: &str) -> OtherStores {
        OtherStores::new(&StateDir::at(place), store)
    }

    fn key(text: &str) -> Subject {
        Subject::Key(text.into())
    }

    fn saw(here: &OtherStores, text: &str, seen: Sighting) {
        here.add(&key(text), seen).unwrap();
    }

    fn place() -> PathBuf {
        let place = std::env::temp_dir().join(format!("leasehold-elsewhere-{:032x}", random::seed()));
        std::fs::create_dir(&place).unwrap();
        place
    }

    #[test]
    fn what_was_seen_is_told_to_other_stores_until_it_is_new_there() {
        let place = place();
        let [a, b, c] = ["dir:/a", "dir:/b", "dir:/c"].map(|store| at(&place, store));
        saw(&a, "x", Sighting { at: 5, until: None });
        assert_eq!((a.others(&key("x"), None), b.others(&key("y"), None)), (vec![], vec![]));
        assert_eq!(b.others(&key("x"), None), ["dir:/a"]);
        b.new_here(&["dir:/a".into()]).unwrap();
        assert!(b.others(&key("x"), None).is_empty() && b.unknown_here().is_empty());
        assert_eq!(c.others(&key("x"), None), ["dir:/a"], "it was said of one pair");
        assert_eq!(c.unknown_here(), [UnknownHere { store: "dir:/a".into(), keys: 1, jobs: 0 }]);
        saw(&b, "x", Sighting { at: 9, until: None });
        assert_eq!(a.others(&key("x"), None), ["dir:/b"], "and of one direction");
        std::fs::remove_dir_all(place).unwrap();
    }

    /// A kill or a full disk can leave the directory of a store without the file that says which one it is.
    #[test]
    fn a_store_without_its_name_is_named_by_the_next_line() {
        let place = place();
        let (a, b) = (at(&place, "dir:/a"), at(&place, "dir:/b"));
        saw(&a, "x", Sighting { at: 5, until: None });
        std::fs::remove_file(a.all.join(&a.dir).join("store")).unwrap();
        assert!(b.others(&key("x"), None).is_empty());
        saw(&a, "y", Sighting { at: 6, until: None });
        assert_eq!(b.others(&key("x"), None), ["dir:/a"]);
        std::fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn a_store_that_lost_what_it_knew_is_another_store() {
        let place = place();
        let (a, b) = (at(&place, "dir:/a"), at(&place, "dir:/b"));
        a.set_aside().unwrap();
        saw(&a, "x", Sighting { at: 5, until: None });
        saw(&b, "y", Sighting { at: 5, until: None });
        a.new_here(&["dir:/b".into()]).unwrap();
        a.set_aside().unwrap();
        let [before] = &a.others(&key("x"), None)[..] else { panic!("not seen") };
        assert!(before.starts_with("dir:/a, as it was before 2"), "{before}");
        assert!(a.others(&key("y"), None).is_empty(), "what was said stays said");
        assert_eq!(b.others(&key("x"), None).len(), 1);
        a.new_here(std::slice::from_ref(before)).unwrap();
        assert!(a.others(&key("x"), None).is_empty());
        std::fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn a_damaged_line_is_ignored() {
        let place = place();
        let (a, b) = (at(&place, "dir:/a"), at(&place, "dir:/b"));
        saw(&a, "x", Sighting { at: 5, until: None });
        let name = name_of(&key("x")).unwrap();
        let file = a.all.join(&a.dir).join(shard(&name));
        append_private(&file, b"\nk12\n\xff\xfe 1 -\nkkk 1 2 3").unwrap();
        // Cut off in the middle of its name; the next line is whole.
        append_private(&file, b"\nk00000000").unwrap();
        saw(&a, "x", Sighting { at: 6, until: None });
        let text = lines(&file);
        assert_eq!(newest(&text), BTreeMap::from([(name, (Sighting { at: 6, until: None }, ""))]));
        assert_eq!(b.others(&key("x"), None), ["dir:/a"]);
        std::fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn additions_of_later_versions_are_carried_along() {
        let place = place();
        let (a, b) = (at(&place, "dir:/a"), at(&place, "dir:/b"));
        saw(&a, "y", Sighting { at: 5, until: None });
        let name = name_of(&key("x")).unwrap();
        let file = a.all.join(&a.dir).join(shard(&name));
        append_private(&file, format!("\n{name} 3 -\n{name} 5 - red 7").as_bytes()).unwrap();
        assert_eq!(b.others(&key("x"), None), ["dir:/a"]);
        a.tidy(&file).unwrap();
        let text = lines(&file);
        assert!(text.contains(&format!("\n{name} 5 - red 7")) && !text.contains(" 3 -"), "{text}");
        std::fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn no_line_is_lost_to_one_who_tidies() {
        let place = place();
        let a = at(&place, "dir:/a");
        let text = |thread: usize, n: usize| format!("{thread}/{n}");
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let a = &a;
                scope.spawn(move || {
                    for (n, at) in (0..200).flat_map(|n| [(n, 5), (n, 6)]) {
                        let text = text(thread, n);
                        saw(a, &text, Sighting { at, until: None });
                        let name = name_of(&key(&text)).unwrap();
                        a.tidy(&a.all.join(&a.dir).join(shard(&name))).unwrap();
                    }
                });
            }
        });
        let known = all_in(&a.all.join(&a.dir));
        let lost = |text: &String| known.get(&name_of(&key(text)).unwrap()).is_none_or(|seen| seen.at != 6);
        let all = (0..4).flat_map(|thread| (0..200).map(move |n| text(thread, n)));
        assert_eq!(all.filter(lost).collect::<Vec<_>>(), Vec::<String>::new());
        std::fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn files_do_not_grow_with_what_is_over_or_said_twice() {
        let place = place();
        let a = at(&place, "dir:/a");
        let texts: Vec<String> = (0..400).map(|n| n.to_string()).collect();
        for (n, text) in texts.iter().enumerate() {
            let until = if n % 2 == 0 { Some(1) } else { None };
            saw(&a, text, Sighting { at: 1, until });
            saw(&a, text, Sighting { at: 1, until });
            saw(&a, text, Sighting { at: 2, until });
        }
        let dir = a.all.join(&a.dir);
        let files: Vec<PathBuf> = "0123456789abcdef".chars().map(|c| dir.join(c.to_string())).collect();
        let count = || files.iter().map(|file| lines(file).lines().count().saturating_sub(1)).sum::<usize>();
        assert!(count() <= 800, "what is noted already is not noted again: {}", count());
        files.iter().for_each(|file| a.tidy(file).unwrap());
        assert_eq!(count(), 200);
        let b = at(&place, "dir:/b");
        assert!(
            texts.iter().enumerate().all(|(n, text)| b.others(&key(text), None).is_empty() == (n % 2 == 0))
        );
        std::fs::remove_dir_all(place).unwrap();
    }
}
