//! The worker's copy of core's rule says what core says, case by case, on workerd itself.

use base64::prelude::{BASE64_STANDARD, Engine};
use leasehold::core::name::{NAME_MAX, Name};
use leasehold::core::write_policy::{AllowedListing, Rights, removable, table};
use serde_json::{Value, json};

use super::kit::Workerd;
use crate::common::Scratch;

fn post(url: &str, body: &Value) -> Value {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bytes = runtime.block_on(async {
        drop(rustls::crypto::ring::default_provider().install_default());
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let answer = client.post(url).body(body.to_string()).send().await.unwrap();
        answer.bytes().await.unwrap()
    });
    serde_json::from_slice(&bytes).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&bytes)))
}

#[test]
fn the_whole_table_is_replayed() {
    let _alone = super::alone();
    let scratch = Scratch::new();
    let workerd = Workerd::start(&scratch);
    let table = table();
    let text = |body: &Vec<u8>| BASE64_STANDARD.encode(body);
    let asked = json!({
        "key": table.key,
        "instance": table.instance,
        "write": table.write.to_string(),
        "stored": table.stored.iter().map(|old| old.as_ref().map(text)).collect::<Vec<_>>(),
        "ages": table.ages.iter().map(|age| age.map(|a| u64::try_from(a.as_millis()).unwrap())).collect::<Vec<_>>(),
        "offered": table.offered.iter().map(text).collect::<Vec<_>>(),
    });
    let said = post(&workerd.replay, &asked);
    let said: Vec<&str> = said.as_array().unwrap().iter().map(|v| v.as_str().unwrap()).collect();
    let mut cases = 0;
    for (case, said) in table.cases().zip(&said) {
        let right = case.verdict.map_or_else(|why| format!("-{}", why.word()), |change| change.word().into());
        let show = |body: &[u8]| String::from_utf8_lossy(body).into_owned();
        assert_eq!(
            *said,
            right,
            "age {:?}, admin {}, {:?} -> {:?}",
            case.offer.age,
            case.offer.admin,
            case.offer.old.map(show),
            show(case.offer.new)
        );
        cases += 1;
    }
    assert_eq!(cases, said.len());
    println!("{cases} cases on workerd");
    // A rule that differs in one place would be noticed: another instance changes verdicts.
    let mut moved = asked;
    moved["instance"] = "moved".into();
    let moved = post(&workerd.replay, &moved);
    assert_ne!(moved.as_array().unwrap().iter().map(|v| v.as_str().unwrap()).collect::<Vec<_>>(), said);
}

#[test]
fn rights_are_the_same() {
    let scratch = Scratch::new();
    let workerd = Workerd::start(&scratch);
    let mut pairs = Vec::new();
    for prefix in ["", "a", "team-a/", "doctor"] {
        for key in ["", "a", "leases", "leases/", "leases/a", "leases/b", "leases/te", "leases/team-a/x"] {
            pairs.push((prefix, key));
        }
        for key in ["doctor/x", "probe/", "probe", "runs/team-a", "runs//a", "/a", "team-a/"] {
            pairs.push((prefix, key));
        }
    }
    let said = post(&workerd.replay, &json!({ "rights": pairs }));
    for ((prefix, key), said) in pairs.iter().zip(said.as_array().unwrap()) {
        let rights = Rights { prefix: (*prefix).into(), admin: false };
        let listing = match rights.listing(key) {
            AllowedListing::Prefix(prefix) => Some(prefix),
            AllowedListing::Nothing | AllowedListing::Refused => None,
        };
        let place = rights.place(key);
        let called = place.as_ref().map(|place| rights.called(place));
        assert_eq!(*said, json!([place, listing, called]), "{prefix:?} {key:?}");
    }
    assert_eq!(said.as_array().unwrap().len(), pairs.len());
}

/// Names and what is almost one: every text of up to two characters, alone and inside another, and lengths
/// around the longest.
fn names() -> Vec<String> {
    let letters: Vec<char> =
        (0..=127).map(char::from).chain("äßſKİ٣\u{85}\u{a0}\u{2028}\u{feff}😀".chars()).collect();
    let mut names = vec![String::new(), "a/../b".into(), "a/./b".into(), "...".into(), "a...b".into()];
    for one in &letters {
        names.extend([format!("{one}"), format!("a{one}b"), format!("{one}ab")]);
        names.extend(letters.iter().map(|two| format!("{one}{two}")));
        names.extend(letters.iter().map(|two| format!("a{one}{two}")));
    }
    for length in NAME_MAX - 2..=NAME_MAX + 2 {
        names.extend(["a", ".", "a/"].map(|part| part.repeat(length)[..length].to_owned()));
        names.push(format!("{}ä", "a".repeat(length - 2)));
    }
    names
}

#[test]
fn names_are_the_same() {
    let scratch = Scratch::new();
    let workerd = Workerd::start(&scratch);
    let names = names();
    let right: Vec<bool> = names.iter().map(|name| Name::new(name).is_ok()).collect();
    let said = post(&workerd.replay, &json!({ "names": names }));
    for ((name, right), said) in names.iter().zip(&right).zip(said.as_array().unwrap()) {
        assert_eq!(said, right, "{name:?}");
    }
    assert_eq!(said.as_array().unwrap().len(), names.len());
    let good = right.iter().filter(|right| **right).count();
    assert!(good > 1_000 && names.len() - good > 1_000, "{good} of {}", names.len());
    println!("{} names on workerd, {good} of them good", names.len());
}

#[test]
fn what_is_never_removed_is_the_same() {
    let scratch = Scratch::new();
    let workerd = Workerd::start(&scratch);
    let kinds =
        ["leases", "forgotten", "fences", "runs", "doctor", "lease", "Leases", "leases2", "fences ", ""];
    let rest = ["", "/", "/a", "//", "/leases/a", "/fences/"];
    let keys: Vec<String> = kinds.iter().flat_map(|kind| rest.map(|rest| format!("{kind}{rest}"))).collect();
    let right: Vec<bool> = keys.iter().map(|key| removable(key)).collect();
    let said = post(&workerd.replay, &json!({ "keys": keys }));
    assert_eq!(said, json!(right), "{keys:?}");
    assert!(right.contains(&true) && right.contains(&false));
}
