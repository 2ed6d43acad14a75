//! Every stored state against every offer.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use super::{Illegal, LeaseChange, RESOLUTION, WriteOffer, legal};
use crate::additions::Additions;
use crate::ids::{Epoch, Grant, Token, WriteId};
use crate::name::Name;
use crate::past_lines;
use crate::record::{BODY_MAX, Hold, Holder, LeaseRecord};
use crate::session::lease_key;

const LEASE: &str = "site";
const TTL: Duration = Duration::from_secs(90);
/// The instance that is asked.
const HERE: &str = "here";
const OLD_WRITE: WriteId = WriteId(0xa1);
const NEW_WRITE: WriteId = WriteId(0xb2);

/// The parts of the cases: every stored body, at every age, against every new body, by a plain client and an
/// admin.
#[derive(Clone, Debug)]
pub struct PolicyTable {
    /// The key of all cases.
    pub key: String,
    /// The instance that is asked.
    pub instance: String,
    /// The id of every attempt.
    pub write: WriteId,
    /// The stored bodies.
    pub stored: Vec<Option<Vec<u8>>>,
    /// Their ages.
    pub ages: Vec<Option<Duration>>,
    /// The new bodies.
    pub offered: Vec<Vec<u8>>,
}

/// One case.
#[derive(Clone, Copy, Debug)]
pub struct PolicyCase<'a> {
    /// The offer.
    pub offer: WriteOffer<'a>,
    /// The answer that a server must give.
    pub verdict: Result<LeaseChange, Illegal>,
}

impl PolicyTable {
    /// All cases, ordered by stored body, age, plain client or admin, and new body.
    pub fn cases(&self) -> impl Iterator<Item = PolicyCase<'_>> {
        let pairs = self.stored.iter().flat_map(|old| self.ages.iter().map(move |age| (old, age)));
        let triples = pairs.flat_map(|(old, age)| [false, true].map(|admin| (old, age, admin)));
        triples.flat_map(move |(old, age, admin)| {
            self.offered.iter().map(move |new| {
                let offer = WriteOffer {
                    key: &self.key,
                    old: old.as_deref(),
                    age: *age,
                    resolution: RESOLUTION,
                    instance: &self.instance,
                    admin,
                    write: self.write,
                    new,
                };
                PolicyCase { offer, verdict: legal(&offer) }
            })
        })
    }
}

/// The cases, to be replayed against a server.
pub fn table() -> PolicyTable {
    let base = base();
    let stored: Vec<Option<Vec<u8>>> = base.iter().flat_map(stored).collect();
    let mut offered: Vec<Vec<u8>> = base.iter().flat_map(offered).collect();
    offered.extend(base.iter().flat_map(malformed));
    let ages = [0, 45_000, 90_000, 90_001].map(|ms| Some(Duration::from_millis(ms)));
    PolicyTable {
        key: base.map_or_else(String::new, |b| lease_key(&b.lease)),
        instance: HERE.into(),
        write: NEW_WRITE,
        stored,
        ages: [None].into_iter().chain(ages).collect(),
        offered,
    }
}

fn hold(grant: u128) -> Hold {
    Hold { grant: Grant(grant), ttl: TTL, revoke: false, lock: None }
}

fn base() -> Option<LeaseRecord> {
    Some(LeaseRecord {
        lease: Name::new(LEASE).ok()?,
        epoch: Epoch::first(7),
        token: Token::new(5)?,
        write: OLD_WRITE,
        instance: HERE.into(),
        hold: Some(hold(0x50)),
        holder: Holder {
            host: "häuschen \"1\"\\\u{1}\u{7f}\u{2028}\u{1f600}".into(),
            pid: u32::MAX,
            run: "r\n\t".into(),
            job: "site".into(),
            since: "2026-11-15T14:02:11Z".into(),
            slot: Some("2026-11-15T14:00:00Z".into()),
        },
        past: Vec::new(),
        more: Additions::new(),
    })
}

/// Additions that a later version may have made.
const MORE: &str =
    r#"{"a":null,"colour":"röt \u0001","deep":[[],{"x":{"y":[-9007199254740991]}}],"on":true}"#;

/// Additions that no version makes.
const NO_MORE: &[&str] = &[
    "{}",
    "null",
    "[]",
    "7",
    r#"{"a":1.5}"#,
    r#"{"a":1.0}"#,
    r#"{"a":-0}"#,
    r#"{"a":1e3}"#,
    r#"{"a":9007199254740992}"#,
    r#"{"a":"\ud800"}"#,
    r#"{"a":1,"a":1}"#,
    r#"{"b":1,"a":1}"#,
    r#"{"a": 1}"#,
    r#"{"A":1}"#,
    r#"{"7":1}"#,
    r#"{"":1}"#,
    r#"{"__proto__":1}"#,
    r#"{"a":[{"b-c":1}]}"#,
    r#"{"a":[[[[[[[[[1]]]]]]]]]}"#,
    r#"{"a":{"a":{"a":{"a":{"a":{"a":{"a":{"a":{"a":{"a":1}}}}}}}}}}"#,
];

fn with_more(base: &LeaseRecord) -> LeaseRecord {
    LeaseRecord { more: serde_json::from_str(MORE).unwrap_or_default(), ..base.clone() }
}

fn stored(base: &LeaseRecord) -> Vec<Option<Vec<u8>>> {
    let mut states = vec![None, Some(Vec::new()), Some(b"<html>busy</html>".to_vec())];
    let other = Name::new("other").map(|lease| LeaseRecord { lease, ..base.clone() });
    states.extend(other.ok().map(|r| Some(r.encode())));
    for instance in [HERE, "elsewhere"] {
        for token in [5, Token::MAX].into_iter().filter_map(Token::new) {
            let record = LeaseRecord { instance: instance.into(), token, ..base.clone() };
            states.push(Some(LeaseRecord { hold: None, ..record.clone() }.encode()));
            for revoke in [false, true] {
                for lock in [None, Some("lock".to_owned())] {
                    let hold = Some(Hold { revoke, lock, ..hold(0x50) });
                    states.push(Some(LeaseRecord { hold, ..record.clone() }.encode()));
                }
            }
        }
    }
    for past in [past(&[3, 4]), past(&[1, 2, 3, 4, 1, 2, 3, 4])] {
        for hold in [None, Some(hold(0x50))] {
            states.push(Some(LeaseRecord { hold, past: past.clone(), ..base.clone() }.encode()));
        }
    }
    let more = with_more(base);
    states.extend([LeaseRecord { hold: None, ..more.clone() }, more].map(|record| Some(record.encode())));
    states
}

/// A line about each of these tokens.
fn past(tokens: &[u64]) -> Vec<String> {
    tokens.iter().map(|token| format!("{token} ok 0 7 2026-11-15T14:02:11Z site häuschen/7")).collect()
}

/// History lines, legal and illegal.
fn pasts() -> Vec<Vec<String>> {
    let long = |bytes: usize| vec![format!("{:<bytes$}", "5 ä", bytes = bytes - 1)];
    let mut pasts: Vec<Vec<String>> = [
        &[3, 4][..],
        &[3, 4, 5],
        &[3, 4, 50],
        &[3, 4, 6],
        &[4, 5],
        &[4, 3],
        &[3, 4, 5, 5],
        &[3],
        &[5],
        &[4],
        &[1, 2, 3, 4, 1, 2, 3, 4],
        &[2, 3, 4, 1, 2, 3, 4, 5],
        &[1, 2, 3, 4, 1, 2, 3, 5],
        &[1, 2, 3, 4, 1, 2, 3, 4, 5],
        &[3, 4, 1, 2, 3, 4, 5],
    ]
    .map(past)
    .into();
    pasts.extend([long(past_lines::LINE_MAX), long(past_lines::LINE_MAX + 1)]);
    pasts
}

fn offered(base: &LeaseRecord) -> Vec<Vec<u8>> {
    let mut holds = vec![None];
    for grant in [0x50, 0x60] {
        for revoke in [false, true] {
            for ttl_ms in [1, 44_999, 45_001, 90_000, 90_001] {
                let ttl = Duration::from_millis(ttl_ms);
                holds.push(Some(Hold { ttl, revoke, ..hold(grant) }));
            }
        }
        holds.push(Some(Hold { lock: Some("lock".into()), ..hold(grant) }));
    }
    let mut bodies = Vec::new();
    for hold in holds {
        for token in [1, 4, 5, 6, 1_005, Token::MAX].into_iter().filter_map(Token::new) {
            let record = LeaseRecord { write: NEW_WRITE, token, hold: hold.clone(), ..base.clone() };
            bodies.push(record.encode());
            // The other differences do not depend on the TTL.
            if hold.as_ref().is_some_and(|hold| hold.ttl != TTL) {
                continue;
            }
            let rest = [
                LeaseRecord { write: OLD_WRITE, ..record.clone() },
                LeaseRecord { write: WriteId(9), ..record.clone() },
                LeaseRecord { instance: "elsewhere".into(), ..record.clone() },
                LeaseRecord { epoch: Epoch { generation: 1, id: 8 }, ..record.clone() },
                LeaseRecord { epoch: Epoch { generation: 2, id: 7 }, ..record.clone() },
                LeaseRecord {
                    holder: Holder { host: "another".into(), ..record.holder.clone() },
                    ..record.clone()
                },
            ];
            bodies.extend(rest.iter().map(LeaseRecord::encode));
        }
    }
    for (token, hold) in [(5, None), (5, Some(hold(0x50))), (6, Some(hold(0x60))), (1, Some(hold(0x60)))] {
        for (token, past) in pasts().into_iter().filter_map(|past| Some((Token::new(token)?, past))) {
            let hold = hold.clone();
            bodies.push(LeaseRecord { write: NEW_WRITE, token, hold, past, ..base.clone() }.encode());
        }
    }
    let stopping = Some(Hold { revoke: true, ..hold(0x50) });
    for past in pasts() {
        let hold = stopping.clone();
        bodies.push(LeaseRecord { write: NEW_WRITE, hold, past, ..base.clone() }.encode());
    }
    // Additions may come, stay and go with each of these.
    for (token, hold) in [(5, None), (5, Some(hold(0x50))), (6, Some(hold(0x60))), (1, Some(hold(0x60)))] {
        let record =
            Token::new(token).map(|token| LeaseRecord { write: NEW_WRITE, token, hold, ..with_more(base) });
        bodies.extend(record.map(|record| record.encode()));
    }
    bodies
}

/// Replacements that make a bad record of a good one.
const SWAPS: &[(&str, &str)] = &[
    ("\"token\":5", "\"token\":5.0"),
    ("\"token\":5", "\"token\":5e0"),
    ("\"token\":5", "\"token\":05"),
    ("\"token\":5", "\"token\":-5"),
    ("\"token\":5", "\"token\":0"),
    ("\"token\":5", "\"token\":9007199254740992"),
    ("\"token\":5", "\"token\":9007199254740993"),
    ("\"token\":5", "\"token\":\"5\""),
    ("\"token\":5", "\"token\":null"),
    ("\"token\":5", "\"token\":5,\"token\":5"),
    ("\"token\":5", "\"token\":5,\"colour\":\"red\""),
    ("\"token\":5", "\"token\": 5"),
    ("\"token\":5,", ""),
    ("\"pid\":4294967295", "\"pid\":4294967296"),
    ("\"pid\":4294967295", "\"pid\":-1"),
    ("\"pid\":4294967295", "\"pid\":1,\"shoe\":43"),
    ("\"state\":\"held\"", "\"state\":\"free\""),
    ("\"state\":\"held\"", "\"state\":\"Held\""),
    ("\"leasehold\":1", "\"leasehold\":0"),
    ("\"leasehold\":1", "\"leasehold\":2"),
    ("\"leasehold\":1", "\"leasehold\":true"),
    ("\"ttl_ms\":90000", "\"ttl_ms\":0"),
    ("\"ttl_ms\":90000", "\"ttl_ms\":604800001"),
    ("\"ttl_ms\":90000", "\"ttl_ms\":90000,\"revoke\":false"),
    ("\"ttl_ms\":90000", "\"ttl_ms\":90000,\"revoke\":null"),
    ("\"ttl_ms\":90000", "\"ttl_ms\":90000,\"lock\":null"),
    ("\"ttl_ms\":90000", "\"ttl_ms\":90000,\"lock\":7"),
    ("\"ttl_ms\":90000,", ""),
    ("\"write\"", "\"past\":[],\"write\""),
    ("\"write\"", "\"past\":null,\"write\""),
    ("\"write\"", "\"past\":\"5 ok\",\"write\""),
    ("\"write\"", "\"past\":[7],\"write\""),
    ("\"write\"", "\"past\":[\"5 \\ud800\"],\"write\""),
    ("\"write\"", "\"past\":[[\"5 ok\"]],\"write\""),
    ("\"holder\"", "\"past\":[\"5 ok\"],\"holder\""),
    ("\"epoch\":\"1-", "\"epoch\":\"01-"),
    ("\"epoch\":\"1-", "\"epoch\":\"0-"),
    ("\"epoch\":\"1-", "\"epoch\":\"4294967296-"),
    ("\"epoch\":\"1-", "\"epoch\":\"-"),
    ("\"epoch\":\"1-", "\"epoch\":\"1"),
    ("\"grant\":\"0", "\"grant\":\"+"),
    ("\"grant\":\"0", "\"grant\":\"A"),
    ("\"grant\":\"0", "\"grant\":\""),
    ("\"lease\":\"site\"", "\"lease\":\"sit\\u0065\""),
    ("\"lease\":\"site\"", "\"lease\":\"site2\""),
    ("\"host\":\"h", "\"host\":\"\\ud800h"),
    ("\"host\":\"h", "\"host\":7,\"x\":\"h"),
    ("\u{1f600}", "\\ud83d\\ude00"),
    ("häuschen", "h\\u00e4uschen"),
    ("\\u0001", "\u{1}"),
    ("\u{2028}", "\\u2028"),
];

/// Bodies that are nearly a record. The good one among them shows that nothing else is wrong.
fn malformed(base: &LeaseRecord) -> Vec<Vec<u8>> {
    let good = LeaseRecord { write: NEW_WRITE, ..base.clone() };
    let good = String::from_utf8(good.encode()).unwrap_or_default();
    let mut bodies: Vec<Vec<u8>> =
        SWAPS.iter().map(|(from, to)| good.replacen(from, to, 1).into_bytes()).collect();
    let more = |format: u64, more: &str| {
        let text = good.replacen("\"leasehold\":1", &format!("\"leasehold\":{format}"), 1);
        text.replacen("\"write\"", &format!("\"more\":{more},\"write\""), 1).into_bytes()
    };
    bodies.extend(NO_MORE.iter().map(|text| more(2, text)));
    bodies.extend([more(1, MORE), more(3, MORE), more(2, r#"{"a":[[[[[[[[1]]]]]]]]}"#)]);
    let long = good.replacen("häuschen", &"h".repeat(BODY_MAX), 1);
    let shorter = "h".repeat(BODY_MAX - good.len() + "häuschen".len());
    let longest = good.replacen("häuschen", &shorter, 1);
    bodies.extend([long, longest.clone(), longest.replacen("hh", "hhh", 1)].map(String::into_bytes));
    for text in [
        format!("{good} "),
        format!("{good}\n"),
        format!("{good}{{}}"),
        format!("\u{feff}{good}"),
        good.replacen("\"write\"", " \"write\"", 1),
        good[..good.len() - 1].to_string(),
        String::new(),
        "null".into(),
        "[]".into(),
        "{}".into(),
        "7".into(),
    ] {
        bodies.push(text.into_bytes());
    }
    let mut broken = good.clone().into_bytes();
    if let Some(at) = broken.iter().position(|b| *b == 0xc3) {
        broken[at] = 0xff;
    }
    bodies.extend([broken, good.into_bytes()]);
    bodies
}
