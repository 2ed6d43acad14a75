use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::*;
use crate::forgotten::Names;
use crate::ids::{Epoch, Grant};
use crate::record::Holder;
use crate::rules::SeenToken;

/// The promises about every legal write, written without looking at the branches of the rule.
fn promise(case: &PolicyCase<'_>) -> Result<(), &'static str> {
    let name = Name::new("site").unwrap();
    let new = LeaseRecord::decode(&name, case.offer.new).map_err(|_| "not a record")?;
    if new.write != case.offer.write {
        return Err("another attempt's id");
    }
    let Some(old) = case.offer.old else {
        return if new.token == Token::FIRST && new.past.is_empty() {
            Ok(())
        } else {
            Err("began in the middle")
        };
    };
    let old = LeaseRecord::decode(&name, old).map_err(|_| "replaced what nobody can read")?;
    if new.epoch != old.epoch || new.write == old.write || new.token < old.token {
        return Err("went back");
    }
    let grant = |r: &LeaseRecord| r.hold.as_ref().map(|h| h.grant);
    if new.hold.is_some() && (grant(&new) != grant(&old)) != (new.token > old.token) {
        return Err("a token without a grant, or a grant without a token");
    }
    let ended = grant(&old).is_some_and(|was| grant(&new) != Some(was));
    let (before, after) = (old.past.join("\n"), new.past.join("\n"));
    let added = new.past.last().is_some_and(|last| {
        let rest = new.past[..new.past.len() - 1].join("\n");
        last.starts_with(&alloc::format!("{} ", old.token)) && before.ends_with(&rest)
    });
    if after != before && !(ended && added) {
        return Err("a past that was not so");
    }
    if new.hold.is_none() && new.token != old.token {
        return Err("a token that nobody was granted");
    }
    let Some(was) = &old.hold else { return Ok(()) };
    let ends_in = case.offer.age.filter(|_| old.instance == case.offer.instance);
    let living = ends_in.is_some_and(|age| age < was.ttl);
    let taken = grant(&new).is_some_and(|g| g != was.grant);
    if living && taken && !case.offer.admin {
        return Err("taken from a living holder");
    }
    let soon = new.hold.as_ref().zip(ends_in).is_some_and(|(h, age)| h.ttl + age + RESOLUTION < was.ttl);
    if living && !taken && soon {
        return Err("ended early");
    }
    Ok(())
}

#[test]
fn the_table_keeps_the_promises() {
    let table = table();
    let mut words = BTreeSet::new();
    let (mut cases, mut kept) = (0, 0);
    for case in table.cases() {
        cases += 1;
        words.insert(case.verdict.map_or_else(Illegal::word, LeaseChange::word));
        match case.verdict {
            Ok(_) => assert_eq!(promise(&case), Ok(()), "{case:?}"),
            Err(_) => kept += usize::from(promise(&case).is_err()),
        }
    }
    assert!(cases > 50_000, "{cases}");
    // Without the rule, most of them would have broken a promise.
    assert!(kept > cases / 2, "{kept} of {cases}");
    let all = [
        "create",
        "grant",
        "take-over",
        "force",
        "renew",
        "revoke",
        "release",
        "record",
        "write",
        "first",
        "stored",
        "epoch",
        "token",
        "instance",
        "changed",
        "idle",
        "revoked",
        "early",
        "held",
    ];
    assert_eq!(words, all.into());
}

fn record(hold: Option<Hold>, token: u64, write: u128) -> LeaseRecord {
    LeaseRecord {
        lease: Name::new("site").unwrap(),
        epoch: Epoch::first(7),
        token: Token::new(token).unwrap(),
        write: WriteId(write),
        instance: "i".into(),
        hold,
        holder: Holder {
            host: "h".into(),
            pid: 1,
            run: "r".into(),
            job: "j".into(),
            since: "s".into(),
            slot: None,
        },
        past: Vec::new(),
        more: Default::default(),
    }
}

fn held(grant: u128) -> Option<Hold> {
    Some(Hold { grant: Grant(grant), ttl: Duration::from_secs(90), revoke: false, lock: None })
}

fn ask(old: Option<&LeaseRecord>, age: u64, new: &LeaseRecord, admin: bool) -> Result<LeaseChange, Illegal> {
    let (old, new_body) = (old.map(LeaseRecord::encode), new.encode());
    legal(&WriteOffer {
        key: "leases/site",
        old: old.as_deref(),
        age: Some(Duration::from_secs(age)),
        resolution: RESOLUTION,
        instance: "i",
        admin,
        write: new.write,
        new: &new_body,
    })
}

#[test]
fn the_life_of_a_lease_is_legal() {
    let first = record(held(1), 1, 1);
    assert_eq!(ask(None, 0, &first, false), Ok(LeaseChange::Create));
    let renewed = LeaseRecord { write: WriteId(2), ..first.clone() };
    assert_eq!(ask(Some(&first), 30, &renewed, false), Ok(LeaseChange::Renew));
    let freed = record(None, 1, 3);
    assert_eq!(ask(Some(&renewed), 30, &freed, false), Ok(LeaseChange::Release));
    let second = record(held(2), 2, 4);
    assert_eq!(ask(Some(&freed), 1, &second, false), Ok(LeaseChange::Grant));
    let third = record(held(3), 3, 5);
    assert_eq!(ask(Some(&second), 89, &third, false), Err(Illegal::Held));
    assert_eq!(ask(Some(&second), 91, &third, false), Ok(LeaseChange::TakeOver));
    assert_eq!(ask(Some(&second), 1, &third, true), Ok(LeaseChange::Force));
}

#[test]
fn a_line_is_left_by_the_hold_that_ends_and_by_no_other() {
    let lines = |tokens: &[u64]| -> Vec<String> {
        tokens.iter().map(|token| alloc::format!("{token} ok 0 7 then job h/1")).collect()
    };
    let with = |record: LeaseRecord, tokens: &[u64]| LeaseRecord { past: lines(tokens), ..record };
    let stored = with(record(held(1), 9, 1), &[7, 8]);
    let free = with(record(None, 9, 1), &[7, 8]);
    let renewed = |past: &[u64]| with(record(held(1), 9, 2), past);
    let freed = |past: &[u64]| with(record(None, 9, 2), past);
    let taken = |past: &[u64]| with(record(held(2), 10, 2), past);
    for (old, age, new, admin, verdict) in [
        (&stored, 1, renewed(&[7, 8]), false, Ok(LeaseChange::Renew)),
        (&stored, 1, renewed(&[7, 8, 9]), false, Err(Illegal::Changed)),
        (&stored, 1, renewed(&[8]), false, Err(Illegal::Changed)),
        (&stored, 1, freed(&[7, 8]), false, Ok(LeaseChange::Release)),
        (&stored, 1, freed(&[7, 8, 9]), false, Ok(LeaseChange::Release)),
        (&stored, 1, freed(&[7, 8, 90]), false, Err(Illegal::Changed)),
        (&stored, 1, freed(&[8, 9]), false, Err(Illegal::Changed)),
        (&stored, 1, freed(&[7, 8, 9, 9]), false, Err(Illegal::Changed)),
        (&stored, 1, freed(&[]), false, Err(Illegal::Changed)),
        (&stored, 91, taken(&[7, 8, 9]), false, Ok(LeaseChange::TakeOver)),
        (&stored, 91, taken(&[7, 8]), false, Ok(LeaseChange::TakeOver)),
        (&stored, 91, taken(&[7, 8, 10]), false, Err(Illegal::Changed)),
        (&stored, 1, taken(&[7, 8, 9]), true, Ok(LeaseChange::Force)),
        (&free, 1, taken(&[7, 8]), false, Ok(LeaseChange::Grant)),
        (&free, 1, taken(&[7, 8, 9]), false, Err(Illegal::Changed)),
    ] {
        assert_eq!(ask(Some(old), age, &new, admin), verdict, "{:?} after {:?}", new.past, old.past);
    }
    let first = with(record(held(1), 1, 1), &[1]);
    assert_eq!(ask(None, 0, &first, false), Err(Illegal::First));
}

#[test]
fn a_revocation_from_before_a_new_instance_is_a_conflict() {
    let old = record(held(1), 1, 1);
    let shortened = |hold: Option<Hold>| hold.map(|h| Hold { revoke: true, ttl: h.ttl / 2, ..h });
    let soon = record(shortened(held(1)), 1, 2);
    assert_eq!(ask(Some(&old), 0, &soon, false), Err(Illegal::Early));
    // The same, with another instance of the store since the client looked.
    let elsewhere = |r: &LeaseRecord| LeaseRecord { instance: "before".into(), ..r.clone() };
    assert_eq!(ask(Some(&elsewhere(&old)), 0, &elsewhere(&soon), false), Err(Illegal::Instance));
    assert!(Illegal::Instance.is_conflict());
}

#[test]
fn other_keys_are_free_and_odd_names_are_not() {
    let body = b"anything";
    let offer = WriteOffer {
        key: "runs/site/1",
        old: None,
        age: None,
        resolution: RESOLUTION,
        instance: "i",
        admin: false,
        write: WriteId(1),
        new: body,
    };
    assert_eq!(legal(&offer), Ok(LeaseChange::Free));
    for key in ["leases/", "leases/../x", "leases/A", "leases/a b"] {
        assert_eq!(legal(&WriteOffer { key, ..offer }), Err(Illegal::Name), "{key}");
    }
    assert!(removable("runs/x/1") && !removable("leases/x") && !removable("forgotten/x"));
}

#[test]
fn a_lease_is_removed_only_where_it_was_said() {
    let free = record(None, 7, 1);
    let hour = Duration::from_secs(3_600);
    let (name, body) = (free.lease.clone(), free.encode());
    let key = crate::session::lease_key(&name);
    let last = SeenToken { epoch: free.epoch, token: free.token };
    let said = |names: Names, seen| alloc::vec![Forgotten::new(names).with(seen).encode()];
    let one = said(Names::One(name.clone()), Some(last));
    let offer = RemovalOffer {
        key: &key,
        old: &body,
        age: Some(hour + RESOLUTION),
        resolution: RESOLUTION,
        instance: &free.instance,
        admin: true,
        forgotten: &one,
    };
    assert_eq!(may_remove(&offer), Ok(()));
    assert_eq!(may_remove(&RemovalOffer { admin: false, ..offer }), Err(Illegal::Admin));
    assert_eq!(may_remove(&RemovalOffer { age: Some(hour), ..offer }), Err(Illegal::Young));
    assert_eq!(may_remove(&RemovalOffer { age: None, ..offer }), Err(Illegal::Young));
    assert_eq!(may_remove(&RemovalOffer { forgotten: &[], ..offer }), Err(Illegal::Unannounced));
    let other = said(Names::One(name.clone()), None);
    assert_eq!(may_remove(&RemovalOffer { forgotten: &other, ..offer }), Err(Illegal::Unannounced));
    let held = record(held(1), 7, 1).encode();
    assert_eq!(may_remove(&RemovalOffer { old: &held, ..offer }), Err(Illegal::Held));
    assert_eq!(may_remove(&RemovalOffer { old: b"?", ..offer }), Err(Illegal::Stored));
    let (forgotten, plain) = ("forgotten/site", "keys/site");
    assert_eq!(may_remove(&RemovalOffer { key: forgotten, ..offer }), Err(Illegal::Kept));
    assert_eq!(may_remove(&RemovalOffer { key: plain, admin: false, ..offer }), Ok(()));

    let write = |key, admin, new| {
        let (old, age, write) = (None, None, WriteId(0));
        legal(&WriteOffer { key, old, age, resolution: RESOLUTION, instance: "i", admin, write, new })
    };
    let key = Names::One(name).key();
    assert_eq!(write(&key, true, &one[0]), Ok(LeaseChange::Free));
    assert_eq!(write(&key, false, &one[0]), Err(Illegal::Admin));
    assert_eq!(write("forgotten/other", true, &one[0]), Err(Illegal::Record));
    assert_eq!(write(&key, true, b"?"), Err(Illegal::Record));
}

#[test]
fn a_bearer_sees_its_own_names() {
    let rights = |prefix: &str| Rights { prefix: prefix.into(), admin: false };
    let team = rights("team-a/");
    for (key, place) in [
        ("leases/team-a/x", Some("leases/team-a/x")),
        ("leases/team-a/", Some("leases/team-a/")),
        ("leases/team-a", None),
        ("leases/team-b/x", None),
        ("runs/team-a/x/1", Some("runs/team-a/x/1")),
        ("doctor/abc/leases/x", Some("doctor/team-a/abc/leases/x")),
        ("doctor/team-b/x", Some("doctor/team-a/team-b/x")),
        ("probe/clock", Some("probe/team-a/clock")),
        ("clock", None),
        ("probe", None),
        ("leases", None),
        ("team-a/", None),
    ] {
        assert_eq!(team.place(key).as_deref(), place, "{key}");
        assert_eq!(place.map(|place| team.called(place)), place.map(|_| key.into()), "{key}");
        assert_eq!(rights("").place(key).as_deref(), Some(key));
        assert_eq!(rights("").called(key), key);
    }
    let prefix = |text: &str| AllowedListing::Prefix(text.into());
    assert_eq!(team.listing("leases/"), prefix("leases/team-a/"));
    assert_eq!(team.listing("leases/team-a/x"), prefix("leases/team-a/x"));
    assert_eq!(team.listing("leases/team-b/"), AllowedListing::Nothing);
    assert_eq!(team.listing("doctor/"), prefix("doctor/team-a/"));
    // A day is part of the kind of the run log.
    assert_eq!(team.place("log/79223/team-a/x/R1").as_deref(), Some("log/79223/team-a/x/R1"));
    for other in ["log/79223/team-b/x/R1", "log/team-a/x/R1", "log/79223", "log/"] {
        assert_eq!(team.place(other), None, "{other}");
    }
    assert_eq!(team.listing("log/79223/"), prefix("log/79223/team-a/"));
    assert_eq!(team.listing("log/79223/team-b/"), AllowedListing::Nothing);
    assert_eq!(team.listing("log/"), AllowedListing::Refused);
    assert_eq!(team.listing(""), AllowedListing::Refused);
    assert_eq!(rights("").listing(""), prefix(""));
}

#[test]
fn a_record_in_a_store_with_a_coarse_clock_is_reported_as_younger() {
    let s = Duration::from_secs;
    let reported = |resolution, jump, age| reported_age(age, StoreClock { resolution, jump });
    assert_eq!(reported(s(0), s(1), s(90)), s(90));
    assert_eq!(reported(s(2), s(3), s(90)), s(86));
    assert_eq!(reported(s(2), s(3), s(1)), s(0));
}
