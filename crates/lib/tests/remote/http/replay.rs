//! The worker's copy of core's rule says what core says, case by case, on workerd itself.

use base64::prelude::{BASE64_STANDARD, Engine};
use leasehold::core::legal::{Listing, Rights, table};
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
            Listing::Prefix(prefix) => Some(prefix),
            Listing::Nothing | Listing::Refused => None,
        };
        assert_eq!(*said, json!([rights.cover(key), listing]), "{prefix:?} {key:?}");
    }
    assert_eq!(said.as_array().unwrap().len(), pairs.len());
}
