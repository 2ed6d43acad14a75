//! Firestore: fence and content in one commit. Against the double, and Google's emulator where it runs.

use std::thread;
use std::time::Duration;

use leasehold::backends::firestore::FirestoreTarget;
use leasehold::core::fence::Fence;
use leasehold::core::fence_record::FenceRecord;
use leasehold::targets::conformance::{OLD, TargetBench, replay, some_of_each_kind, whole};
use leasehold::targets::{Content, Target};
use leasehold_testkit::count;
use leasehold_testkit::proxy::Fault;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use super::kit::{Maker, Site, bearer, seal, write};
use super::{examined, manners, zombies};
use crate::firestore::{on_each, on_the_best};

const LONG: Duration = Duration::from_secs(30);
const DATABASE: &str = "projects/demo-leasehold/databases/(default)";

/// One document that nobody else uses.
struct Doc {
    endpoint: String,
    collection: String,
    client: reqwest::Client,
    runtime: Runtime,
}

impl Doc {
    fn new(endpoint: &str) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self {
            endpoint: endpoint.into(),
            collection: format!("t{:032x}", leasehold::random::seed()),
            client: reqwest::Client::builder().no_proxy().tls_certs_only([]).build().unwrap(),
            runtime: Builder::new_current_thread().enable_all().build().unwrap(),
        }
    }

    fn target(&self, endpoint: &str) -> FirestoreTarget {
        let url = format!("firestore://demo-leasehold/{}/today?endpoint={endpoint}", self.collection);
        FirestoreTarget::open(&url).unwrap_or_else(|e| panic!("{e}"))
    }

    fn content_name(&self) -> String {
        format!("{DATABASE}/documents/{}/today", self.collection)
    }

    fn fence_name(&self) -> String {
        format!("{}/leasehold/fence", self.content_name())
    }

    /// A call behind the target's back.
    fn post(&self, verb: &str, body: &Value) -> Value {
        post(&self.client, &self.runtime, &self.endpoint, verb, body)
    }

    fn field(&self, name: &str, field: &str) -> Option<Vec<u8>> {
        let got = self.post("batchGet", &json!({ "documents": [name] }));
        let text = got[0]["found"]["fields"][field]["stringValue"].as_str()?;
        Some(text.as_bytes().to_vec())
    }

    fn set(&self, name: &str, field: &str, value: &Value) {
        let fields = json!({ field: value, "other": { "stringValue": "kept" } });
        self.post("commit", &json!({ "writes": [{ "update": { "name": name, "fields": fields } }] }));
    }

    fn delete(&self, name: &str) {
        self.post("commit", &json!({ "writes": [{ "delete": name }] }));
    }
}

fn post(client: &reqwest::Client, runtime: &Runtime, endpoint: &str, verb: &str, body: &Value) -> Value {
    let url = format!("{endpoint}/v1/{DATABASE}/documents:{verb}");
    let request = client.post(url).header("authorization", "Bearer owner");
    let request = request.header("content-type", "application/json").body(body.to_string());
    runtime.block_on(async {
        let bytes = request.send().await.unwrap().bytes().await.unwrap();
        serde_json::from_slice(&bytes).unwrap()
    })
}

fn text_value(text: &[u8]) -> Value {
    match std::str::from_utf8(text) {
        Ok(text) if !text.contains('\0') => json!({ "stringValue": text }),
        _ => json!({ "integerValue": "7" }),
    }
}

impl Site for Doc {
    fn name(&self) -> &'static str {
        "Firestore"
    }

    fn server(&self) -> String {
        self.endpoint.clone()
    }

    fn open_with(&self, server: &str, each: Duration, all: Duration) -> Box<dyn Target> {
        Box::new(self.target(server).with_patience(each, all))
    }

    fn swap_mark(&self) -> &'static [u8] {
        b"documents:commit"
    }

    fn fence(&self) -> Option<Vec<u8>> {
        let got = self.post("batchGet", &json!({ "documents": [self.fence_name()] }));
        match &got[0]["found"]["fields"]["fence"] {
            Value::Null => None,
            field => Some(field["stringValue"].as_str().map_or(b"\xff\x00\xfe".to_vec(), |t| t.into())),
        }
    }

    fn set_fence(&self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.set(&self.fence_name(), "fence", &text_value(bytes)),
            None => self.delete(&self.fence_name()),
        }
    }

    fn content(&self) -> Option<Vec<u8>> {
        self.field(&self.content_name(), "content")
    }
}

fn keeps_zombies_out(make: Maker<'_>) {
    zombies::are_refused(make);
    zombies::whose_answers_are_lost_say_so(make);
    zombies::lost_answers_are_found_again(make);
}

#[test]
fn firestore_passes_whoever_else_seals() {
    on_each(|endpoint| examined::honest_servers_pass(&Doc::new(endpoint)));
}

#[test]
fn firestore_keeps_zombies_out() {
    on_each(|endpoint| keeps_zombies_out(&|| Box::new(Doc::new(endpoint))));
}

#[test]
fn firestore_has_manners() {
    on_each(|endpoint| {
        let make: Maker<'_> = &|| Box::new(Doc::new(endpoint));
        manners::two_writes_at_once_take_turns(make);
        manners::an_unreadable_fence_lets_nobody_in(make);
        manners::another_lease_is_refused_by_name(make);
        manners::a_silent_server_ends_the_seal(make);
        manners::watching_lets_in_and_counts(make);
        manners::what_was_not_answered_is_told_unknown(make);
        manners::a_watched_write_is_not_done_twice(make);
    });
}

struct Replayed {
    doc: Doc,
    target: FirestoreTarget,
}

impl TargetBench for Replayed {
    fn install(&mut self, stored: Option<&FenceRecord>, content: &str) -> Option<Fence> {
        self.doc.set(&self.doc.content_name(), "content", &text_value(content.as_bytes()));
        self.doc.set_fence(stored.map(FenceRecord::encode).as_deref());
        stored.map(|record| record.fence.clone())
    }

    fn content(&mut self) -> String {
        self.doc.text().unwrap_or_else(|| OLD.into())
    }

    fn target(&mut self) -> &mut dyn Target {
        &mut self.target
    }
}

fn replays(endpoint: &str, one_in: usize) {
    let cases =
        if count(0, 1) == 1 { whole() } else { some_of_each_kind(1).into_iter().step_by(one_in).collect() };
    let doc = Doc::new(endpoint);
    let target = doc.target(endpoint);
    let replayed = replay(&mut Replayed { doc, target }, &cases);
    println!("Firestore: {replayed} cases of the table");
    assert!(replayed > 60, "{replayed}");
}

#[test]
fn firestore_replays_the_table() {
    on_each(|endpoint| replays(endpoint, 6));
}

/// Text is text in the console, anything else bytes, and the document's other fields stay.
#[test]
fn content_is_one_field_among_others() {
    on_each(|endpoint| {
        let doc = Doc::new(endpoint);
        doc.set(&doc.content_name(), "content", &json!({ "integerValue": "7" }));
        let mut target = doc.open();
        seal(target.as_mut(), 33);
        let said = target.read(&mut Vec::new()).unwrap_err().to_string();
        assert!(said.contains("no field named content"), "{said}");
        for content in [&b"report"[..], "\u{e4}\n".as_bytes(), b"\xff\x00\xfe", b""] {
            target.write(&bearer(33), None, Content::Bytes(content)).unwrap_or_else(|e| panic!("{e}"));
            let mut seen = Vec::new();
            target.read(&mut seen).unwrap();
            assert_eq!(seen, content);
        }
        assert_eq!(doc.field(&doc.content_name(), "other").as_deref(), Some(&b"kept"[..]));
        let large = vec![b'x'; leasehold::backends::firestore::LARGEST + 1];
        let said = target.write(&bearer(33), None, Content::Bytes(&large)).unwrap_err().to_string();
        assert!(said.contains("takes at most 1000000 bytes"), "{said}");
        target.write(&bearer(33), None, Content::Bytes(&large[1..])).unwrap_or_else(|e| panic!("{e}"));
    });
}

/// The same commit without its condition: the variant that must leak.
#[test]
fn without_the_condition_it_leaks() {
    on_the_best(|endpoint| {
        let doc = Doc::new(endpoint);
        seal(doc.open().as_mut(), 33);
        write(doc.open().as_mut(), 33, "report").unwrap();
        let proxy = doc.proxy();
        let strike = proxy.arm_on(b"stale report", Fault::Pause);
        let fence = json!({ "fence": text_value(&doc.fence().unwrap()), "write": { "stringValue": "x" } });
        let body = json!({ "writes": [
            { "update": { "name": doc.fence_name(), "fields": fence } },
            { "update": { "name": doc.content_name(), "fields": { "content": { "stringValue": "stale report" } } } },
        ] });
        let (client, through) = (doc.client.clone(), proxy.url(&doc.endpoint));
        let zombie = thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            post(&client, &runtime, &through, "commit", &body)
        });
        assert!(strike.wait(LONG));
        seal(doc.open().as_mut(), 34);
        strike.release();
        assert!(zombie.join().unwrap().get("error").is_none());
        assert_eq!(doc.text().as_deref(), Some("stale report"), "the harness cannot see a leak");
        println!("Firestore: a commit without its condition: 1 zombie, 1 leaked");
    });
}
