//! What the doctor is told of a server.

use std::sync::{Arc, Mutex};

use leasehold::doctor::{FirstUse, FirstUseNotes};
use leasehold::state::StateDir;
use leasehold::stores::{Remark, RemarkLevel};
use pollster::block_on;

use super::server::{Scratch, Server};
use super::{store, to_examine};

fn remarks(url: &str) -> Vec<Remark> {
    let remarks = block_on(to_examine(url).examine()).unwrap_or_else(|e| panic!("{e:?}"));
    remarks.iter().for_each(|remark| println!("{remark:?}"));
    remarks
}

fn verdict(remarks: &[Remark], about: &str) -> (RemarkLevel, String) {
    let remark = remarks.iter().find(|remark| remark.about == about);
    let remark = remark.unwrap_or_else(|| panic!("nothing about {about}"));
    assert!(remark.text.ends_with('.'), "{remark:?}");
    (remark.verdict, remark.text.clone())
}

#[test]
fn a_server_that_keeps_everything_is_good() {
    let server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let found = remarks(&server.url());
    assert!(found.iter().all(|remark| remark.verdict == RemarkLevel::Good), "{found:?}");
    for about in ["version", "eviction", "durability", "replication"] {
        verdict(&found, about);
    }
}

#[test]
fn what_may_be_lost_is_said() {
    let server = Server::start(&["--save", "", "--appendonly", "no"]);
    let set = |name: &str, value: &str| server.admin::<()>(&["CONFIG", "SET", name, value]);
    let now = |about: &str| verdict(&remarks(&server.url()), about);
    let (is, text) = now("durability");
    assert!(is == RemarkLevel::Weak && text.contains("a restart loses every lease"), "{text}");
    set("save", "3600 1");
    assert!(now("durability").1.contains("Only snapshots"));
    set("appendonly", "yes");
    assert!(now("durability").1.contains("last second"));
    set("appendfsync", "no");
    assert!(now("durability").1.contains("appendfsync no"));
    set("appendfsync", "always");
    assert_eq!(now("durability").0, RemarkLevel::Good);

    assert_eq!(now("eviction").0, RemarkLevel::Good);
    set("maxmemory", "100mb");
    for (policy, is) in [
        ("noeviction", RemarkLevel::Good),
        ("volatile-lru", RemarkLevel::Good),
        ("allkeys-lru", RemarkLevel::Unsafe),
        ("allkeys-random", RemarkLevel::Unsafe),
    ] {
        set("maxmemory-policy", policy);
        assert_eq!(now("eviction").0, is, "{policy}");
    }
    set("maxmemory", "0");
    assert_eq!(now("eviction").0, RemarkLevel::Good);
}

#[test]
fn what_is_not_told_is_not_taken_for_good() {
    let server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let _: () = server.admin(&["ACL", "SETUSER", "managed", "on", ">pw", "~*", "&*", "+@all", "-config"]);
    let _: () =
        server.admin(&["ACL", "SETUSER", "blind", "on", ">pw", "~*", "&*", "+@all", "-config", "-info"]);
    let url = |user: &str| format!("redis://{user}:pw@127.0.0.1:{}", server.port);
    let managed = remarks(&url("managed"));
    assert_eq!(verdict(&managed, "durability").0, RemarkLevel::Weak);
    assert_eq!(verdict(&managed, "eviction").0, RemarkLevel::Good, "INFO tells it as well");
    let blind = remarks(&url("blind"));
    for about in ["version", "eviction", "durability", "replication", "identity"] {
        let (is, text) = verdict(&blind, about);
        assert_eq!(is, RemarkLevel::Weak, "{about}: {text}");
    }
    // Whoever runs something there for the first time hears it too.
    let scratch = Scratch::new();
    let state = StateDir::at(scratch.join("state"));
    let identity = verdict(&blind, "identity").1;
    for (user, says) in [("managed", ""), ("blind", identity.as_str())] {
        let (url, words) = (url(user), Arc::<Mutex<String>>::default());
        let (notes, heard, opened) =
            (FirstUseNotes::new(&state, &url, user), Arc::clone(&words), url.clone());
        let tell = Arc::new(move |text: &str| heard.lock().unwrap().push_str(text));
        FirstUse::begin(store(&url), Arc::new(move || Ok(to_examine(&opened))), notes, tell).unwrap();
        let words = words.lock().unwrap();
        assert!(words.contains(says) && words.is_empty() == says.is_empty(), "{user}: {words}");
    }
}

#[test]
fn a_replica_of_it_is_a_weakness() {
    let primary = Server::start(&["--save", ""]);
    assert_eq!(verdict(&remarks(&primary.url()), "replication").0, RemarkLevel::Good);
    let replica = Server::start(&["--save", "", "--replicaof", "127.0.0.1", &primary.port.to_string()]);
    // It is counted when it has asked for the data.
    for _ in 0..10_000 {
        let info: String = primary.admin(&["INFO", "replication"]);
        if info.contains("connected_slaves:1") {
            assert_eq!(verdict(&remarks(&primary.url()), "replication").0, RemarkLevel::Weak);
            return;
        }
    }
    panic!("the replica on port {} never came", replica.port);
}
