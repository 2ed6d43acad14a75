//! Checks with one caller at a time.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{BrokenRule, Harness, StoreHandle, ensure};
use crate::clock::boot_time;
use crate::stores::{Cas, Clock};

const KEY: &str = "leases/repo/main";

/// The least that a store must do, in eight calls by one handle. It leaves nothing behind.
pub fn compares_and_sets(harness: &Harness) -> Result<(), BrokenRule> {
    let mut store = harness.open();
    let refused = |what: &str, got: Cas| match got {
        Cas::Conflict => Ok(()),
        got => Err(BrokenRule::answer(what, &got)),
    };
    let first = store.write(KEY, None, b"first")?;
    refused("A create over an existing key", store.cas(KEY, None, b"again")?)?;
    let second = store.write(KEY, Some(&first), b"second")?;
    refused("A write on a replaced version", store.cas(KEY, Some(&first), b"stale")?)?;
    let found = store.get(KEY)?;
    ensure(found.version == second && found.body == b"second", || {
        "A read does not give the last write.".into()
    })?;
    match store.remove(KEY, &second)? {
        Cas::Written { .. } => {}
        got => return Err(BrokenRule::answer("Removing the current version", &got)),
    }
    refused("A write on a removed record", store.cas(KEY, Some(&second), b"stale")?)?;
    ensure(store.read(KEY)?.is_none(), || "A removed record is still there.".into())
}

/// A write that expects a replaced version is refused: after a renewal, after a release, after a new grant.
pub fn stale_holder(harness: &Harness) -> Result<(), BrokenRule> {
    let (mut old, mut new) = (harness.open(), harness.open());
    let held = old.write(KEY, None, b"held by old")?;
    let mut versions = vec![held];
    for step in ["renewed by old", "free", "held by new"] {
        let last = versions[versions.len() - 1].clone();
        let next = new.write(KEY, Some(&last), step.as_bytes())?;
        let now = new.get(KEY)?;
        for stale in &versions {
            let got = old.cas(KEY, Some(stale), b"stale")?;
            old.refused(KEY, "A write on a replaced version", &got, Some(&now))?;
        }
        let got = old.cas(KEY, None, b"stale")?;
        old.refused(KEY, "A create over an existing key", &got, Some(&now))?;
        versions.push(next);
    }
    Ok(())
}

/// A write that was prepared long ago and lands after other writes changes nothing.
pub fn late_landing_write(harness: &Harness) -> Result<(), BrokenRule> {
    let (mut late, mut others) = (harness.open(), harness.open());
    let mut version = others.write(KEY, None, b"0")?;
    let seen = late.get(KEY)?.version;
    // Enough steps for a store that keeps old versions to have swept the one that was seen.
    for step in 1..=harness.effort.steps {
        version = others.write(KEY, Some(&version), &[step])?;
        let now = others.get(KEY)?;
        let got = late.cas(KEY, Some(&seen), b"late")?;
        others.refused(KEY, "A late write", &got, Some(&now))?;
    }
    ensure(others.get(KEY)?.version == version, || "A late write moved the version.".into())
}

/// A record that was removed and made again never takes a write meant for its predecessor.
pub fn recreated_record(harness: &Harness) -> Result<(), BrokenRule> {
    let (mut stale, mut other) = (harness.open(), harness.open());
    let mut before = Vec::new();
    for round in 0..harness.effort.steps.min(4) {
        let created = stale.write(KEY, None, b"same body")?;
        let updated = stale.write(KEY, Some(&created), &[round])?;
        for version in [&created, &updated] {
            ensure(!before.contains(version), || {
                format!("Version {} was given twice, before and after a removal.", version.0)
            })?;
        }
        let now = other.get(KEY)?;
        for version in before.iter().chain([&created]) {
            let got = stale.cas(KEY, Some(version), b"stale")?;
            other.refused(KEY, "A write on a version of a removed record", &got, Some(&now))?;
            let got = stale.remove(KEY, version)?;
            other.refused(KEY, "A removal by a version of a removed record", &got, Some(&now))?;
        }
        match other.remove(KEY, &updated)? {
            Cas::Written { .. } => {}
            got => return Err(BrokenRule::answer("Removing the current version", &got)),
        }
        let got = stale.cas(KEY, Some(&updated), b"stale")?;
        other.refused(KEY, "A write on a removed record", &got, None)?;
        before.extend([created, updated]);
    }
    Ok(())
}

/// A write that expects nothing creates a record only if there is none. A write that expects a version never creates one.
pub fn create_if_absent(harness: &Harness) -> Result<(), BrokenRule> {
    let (mut one, mut two) = (harness.open(), harness.open());
    ensure(one.read(KEY)?.is_none(), || "The store was not empty to begin with.".into())?;
    let elsewhere = one.write("leases/other", None, b"x")?;
    let got = one.cas(KEY, Some(&elsewhere), b"x")?;
    one.refused(KEY, "An update of an absent key", &got, None)?;
    one.write(KEY, None, b"first")?;
    let now = two.get(KEY)?;
    let got = two.cas(KEY, None, b"second")?;
    two.refused(KEY, "A second create", &got, Some(&now))?;
    let got = two.cas(KEY, Some(&elsewhere), b"second")?;
    two.refused(KEY, "An update with another key's version", &got, Some(&now))
}

/// An acknowledged write is read back at once, by every handle, old or new.
pub fn read_your_writes(harness: &Harness) -> Result<(), BrokenRule> {
    let (mut one, mut two) = (harness.open(), harness.open());
    let mut version = None;
    for round in 0..harness.effort.steps.min(10) {
        let body = vec![round; usize::from(round)];
        let written = one.write(KEY, version.as_ref(), &body)?;
        for handle in [&mut one, &mut two, &mut harness.open()] {
            let read = handle.get(KEY)?;
            ensure(read.version == written && read.body == body, || {
                "A read does not give the last write.".into()
            })?;
        }
        version = Some(written);
        std::mem::swap(&mut one, &mut two);
    }
    Ok(())
}

/// Equal bodies get different versions. Otherwise a stale writer would look like a current one.
pub fn equal_bodies_differ_in_version(harness: &Harness) -> Result<(), BrokenRule> {
    let mut store = harness.open();
    let first = store.write(KEY, None, b"free")?;
    let second = store.write(KEY, Some(&first), b"held")?;
    let third = store.write(KEY, Some(&second), b"free")?;
    let now = store.get(KEY)?;
    let got = store.cas(KEY, Some(&first), b"stale")?;
    store.refused(KEY, "A write on the first of two equal bodies", &got, Some(&now))?;
    let same = store.write(KEY, Some(&third), b"free")?;
    let distinct: BTreeSet<_> = [&first, &second, &third, &same].into();
    ensure(distinct.len() == 4, || format!("Four writes gave {} different versions.", distinct.len()))
}

/// A removal needs the current version, and happens once.
pub fn remove_needs_the_version(harness: &Harness) -> Result<(), BrokenRule> {
    let mut store = harness.open();
    let old = store.write(KEY, None, b"1")?;
    let got = store.remove("leases/absent", &old)?;
    store.refused("leases/absent", "Removing an absent key", &got, None)?;
    let new = store.write(KEY, Some(&old), b"2")?;
    let now = store.get(KEY)?;
    let got = store.remove(KEY, &old)?;
    store.refused(KEY, "Removing by an old version", &got, Some(&now))?;
    match store.remove(KEY, &new)? {
        Cas::Written { .. } => {}
        got => return Err(BrokenRule::answer("Removing the current version", &got)),
    }
    let got = store.remove(KEY, &new)?;
    store.refused(KEY, "Removing a second time", &got, None)?;
    ensure(store.list("", "", 10)?.is_empty(), || "A removed key is still listed.".into())
}

/// A listing has the keys with the prefix that come after the given one, in byte order, and not more than asked.
pub fn listing(harness: &Harness) -> Result<(), BrokenRule> {
    let mut store = harness.open();
    let mut keys = ["a", "a/1", "a/10", "a/2", "a-b", "a.b", "a_b", "ab", "b/1", "runs/x/0001"];
    for key in keys {
        store.write(key, None, key.as_bytes())?;
    }
    keys.sort_unstable();
    for prefix in ["", "a", "a/", "a/1", "b", "c", "runs/"] {
        for after in ["", "a", "a/1", "a/11", "b/1", "z"] {
            for limit in [0, 1, 3, 100] {
                let want: Vec<&str> =
                    keys.into_iter().filter(|k| k.starts_with(prefix) && *k > after).take(limit).collect();
                check_list(&mut store, (prefix, after, limit), &want)?;
            }
        }
    }
    Ok(())
}

fn check_list(store: &mut StoreHandle, asked: (&str, &str, usize), want: &[&str]) -> Result<(), BrokenRule> {
    let found = store.list(asked.0, asked.1, asked.2)?;
    let keys: Vec<&str> = found.iter().map(|l| l.key.as_str()).collect();
    ensure(keys == want, || format!("Listing {asked:?} gave {keys:?} and should give {want:?}."))?;
    for listed in &found {
        let Some(stored) = &listed.stored else {
            continue;
        };
        let read = store.get(&listed.key)?;
        ensure((&stored.version, &stored.body) == (&read.version, &read.body), || {
            format!("Listing and reading {:?} differ.", listed.key)
        })?;
    }
    Ok(())
}

/// Keys that look alike stay apart, and keys up to 255 bytes are kept.
pub fn keys(harness: &Harness) -> Result<(), BrokenRule> {
    let mut store = harness.open();
    let long = ["a".repeat(255), "a".repeat(254), ".".repeat(255), "é".repeat(127)];
    let mut keys: Vec<&str> = vec![
        "a",
        "a/b",
        "a.b",
        "a-b",
        "a_b",
        "a/b/c",
        "a//b",
        "a%2fb",
        "0",
        "-",
        "_",
        ".",
        "..",
        "a b",
        "A",
        "B",
        "b",
        "ä",
        "a+",
        "%",
        "leases/x.y",
        "a'b\"c;--",
        "*",
        "a\\b",
    ];
    keys.extend(long.iter().map(String::as_str));
    for key in &keys {
        ensure(store.read(key)?.is_none(), || format!("{key:?} is there and was not written."))?;
        store.write(key, None, key.as_bytes())?;
    }
    for key in &keys {
        let read = store.get(key)?;
        ensure(read.body == key.as_bytes(), || format!("{key:?} was mixed up with another key."))?;
    }
    keys.sort_unstable();
    check_list(&mut store, ("", "", keys.len() + 1), &keys)
}

/// Bodies are bytes: empty, binary, and 16 KiB long.
pub fn bodies(harness: &Harness) -> Result<(), BrokenRule> {
    let mut store = harness.open();
    let all: Vec<u8> = (0..=255).collect();
    let large: Vec<u8> = all.iter().copied().cycle().take(16 * 1024).collect();
    let mut version = None;
    for body in [&b""[..], b"\0", b"\n\r\n", &all, &large, b"small again", &large] {
        version = Some(store.write(KEY, version.as_ref(), body)?);
        let read = store.get(KEY)?;
        ensure(read.body == body, || {
            format!("Wrote {} bytes and read {} others.", body.len(), read.body.len())
        })?;
    }
    Ok(())
}

/// Ages are given or not as declared, move forward, and restart with every write.
pub fn ages(harness: &Harness) -> Result<(), BrokenRule> {
    let (mut store, mut other) = (harness.open(), harness.open());
    let facts = store.facts();
    let begun = boot_time();
    let version = store.write(KEY, None, b"1")?;
    let first = other.get(KEY)?.age;
    let slack = facts.resolution + facts.jump;
    if facts.clock == Clock::Observed {
        return ensure(first.is_none(), || {
            format!("The store declares that it has no clock, and gives the age {first:?}.")
        });
    }
    let Some(first) = first else {
        return Err("The store declares a clock and gives no age for a fresh write.".into());
    };
    let since = boot_time().since(begun);
    ensure(first <= since + slack, || format!("A record written {since:?} ago at most has age {first:?}."))?;
    // Long enough for the coarsest clock declared to move on.
    let patience = boot_time().plus(slack * 3 + Duration::from_secs(5));
    let mut last = first;
    while last < first + facts.resolution.max(Duration::from_millis(20)) {
        let age = other.get(KEY)?.age;
        let Some(age) = age.filter(|age| *age + slack >= last) else {
            return Err(format!("An age went from {last:?} back to {age:?}.").into());
        };
        ensure(boot_time() < patience, || format!("An age stands still at {age:?}."))?;
        last = last.max(age);
    }
    let begun = boot_time();
    store.write(KEY, Some(&version), b"2")?;
    let again = other.get(KEY)?.age;
    let since = boot_time().since(begun);
    ensure(again.is_some_and(|age| age <= since + slack), || {
        format!("A record written {since:?} ago at most has age {again:?}.")
    })
}

/// All handles on one store give the same name and identity, and neither is empty.
pub fn identity(harness: &Harness) -> Result<(), BrokenRule> {
    let (mut one, mut two) = (harness.open(), harness.open());
    // A store behind a network knows its instance only after a call.
    one.read(KEY)?;
    two.read(KEY)?;
    let (one, two) = (one.facts(), two.facts());
    ensure(!one.instance.is_empty() && !one.url.is_empty(), || {
        "The store has no identity or no name.".into()
    })?;
    ensure(one == two, || format!("Two handles on one store declare {one:?} and {two:?}."))
}

/// A store that makes two writes in one step makes the second only with the first, and never fails the first because of
/// the second. A store without such a step does nothing.
pub fn written_together(harness: &Harness) -> Result<(), BrokenRule> {
    let mut store = harness.open();
    let (with, other) = ("log/1/repo/R1", "log/1/repo/R2");
    let first = store.write(KEY, None, b"held")?;
    let second = match store.cas_with(KEY, &first, b"free", with)? {
        None => {
            let found = store.get(KEY)?;
            let untouched = found.version == first && store.read(with)?.is_none();
            return ensure(untouched, || "A store without that step wrote something all the same.".into());
        }
        Some(Cas::Written { version, .. }) => version,
        Some(got) => return Err(BrokenRule::answer("Two writes in one step", &got)),
    };
    let (found, beside) = (store.get(KEY)?, store.get(with)?);
    let right = found.version == second && found.body == b"free" && beside.body == b"with";
    ensure(right, || "Of two writes in one step one is not there.".into())?;
    // The first is refused: the second must not be there.
    let before = store.get(KEY)?;
    match store.cas_with(KEY, &first, b"stale", other)? {
        Some(got) => {
            store.refused(KEY, "A write with another one on a replaced version", &got, Some(&before))?
        }
        None => return Err("A store had a step for two writes, and then had none.".into()),
    }
    ensure(store.read(other)?.is_none(), || "The second of two writes was made without the first.".into())?;
    // The second is there already: it stays as it is, and the first is made.
    let kept = store.get(with)?;
    match store.cas_with(KEY, &second, b"held again", with)? {
        Some(Cas::Written { .. }) => {}
        Some(got) => return Err(BrokenRule::answer("A write with one that was made before", &got)),
        None => return Err("A store had a step for two writes, and then had none.".into()),
    }
    let after = store.get(with)?;
    ensure(after.version == kept.version, || "A record that was there was written over.".into())
}
