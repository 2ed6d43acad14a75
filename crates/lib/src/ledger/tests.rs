use super::*;
use std::collections::BTreeSet;

#[test]
fn every_item_has_a_place_of_its_own() {
    let job = Name::new("a/b").unwrap();
    let slot = Subject::Slot { job: job.clone(), at: 60, id: "x".into() };
    assert_eq!(key_of(&slot), "slots/a/b@000000000060");
    assert_eq!(key_of(&Subject::Latest(job)), "latest/a/b");
    let long = "x".repeat(255);
    let longer = format!("{}y", &long[1..]);
    let odd =
        ["a", "A", "a.", "a/", "/a", "a//b", "../b", "..", "ä", "a b", "a=62", "a%62", "\n", "team-a/x.y"];
    let keys: BTreeSet<String> = odd
        .into_iter()
        .chain([long.as_str(), &longer])
        .map(|key| key_of(&Subject::Key(key.into())))
        .collect();
    assert_eq!(keys.len(), odd.len() + 2);
    for key in &keys {
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._/-=".contains(c);
        assert!(key.chars().all(good) && key.len() < 255 && !key.contains(".."), "{key}");
        assert!(!key.contains("//") && !key.ends_with(['/', '.']), "{key}");
    }
    assert!(keys.contains("keys/team-a/x.y"));
    assert_eq!(lease_of("team-a/x").as_str(), "team-a/x.once");
    assert!(lease_of("Ä").as_str().starts_with("key-"));
}
