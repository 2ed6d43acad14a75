//! The doctor refuses every store that lies, for the right reason, passes every honest one, and leaves
//! nothing behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::common::Scratch;
use crate::sloppy::{Flaw, Records, Sloppy};
use crate::spy::{ALL, Asked, Careless, EXAMINED, Spy, ask_all, examine_all};
use leasehold::backends::memory::MemoryStore;
use leasehold::backends::{Holders, open_to_examine};
use leasehold::doctor::{
    Depth, Diagnosis, ExaminationEnd, FirstUse, FirstUseNotes, Opener, Progress, Promise, Tell, examine,
};
use leasehold::state::StateDir;
use leasehold::stores::prefixed::Prefixed;
use leasehold::stores::{Failure, FailureKind, RemarkLevel, Store, open};
use leasehold_testkit::messages::note_seen;

/// How often every store is examined.
const TIMES: usize = 20;

fn opener(flaw: Flaw, records: &Records) -> Opener {
    let records = Arc::clone(records);
    Arc::new(move || Ok(Box::new(Sloppy::new(flaw, &records))))
}

fn look(open: Opener, depth: Depth) -> Diagnosis {
    noted(examine(open, None, depth, &Arc::default(), &mut |_| {}))
}

/// Keeps which messages it said.
fn noted(diagnosis: Diagnosis) -> Diagnosis {
    diagnosis.findings.iter().for_each(|finding| note_seen(&finding.text));
    if let ExaminationEnd::Refused { why, .. } = &diagnosis.ended {
        note_seen(why);
    }
    diagnosis
}

fn sloppy(flaw: Flaw) -> (Diagnosis, Records) {
    let records = Records::default();
    (look(opener(flaw, &records), Depth::Full), records)
}

#[track_caller]
fn refused(diagnosis: &Diagnosis, promise: Promise, reasons: &[&str]) {
    let ExaminationEnd::Refused { breaks, why } = &diagnosis.ended else { panic!("{diagnosis:#?}") };
    assert_eq!(*breaks, promise, "{diagnosis:#?}");
    assert!(reasons.iter().any(|reason| why.contains(reason)), "{why}: {diagnosis:#?}");
    // In words: no value as a programmer writes it.
    let texts = diagnosis.findings.iter().map(|finding| &finding.text).chain([why]);
    texts.for_each(|text| assert!(!text.contains(['{', '[', '(']), "{text}"));
}

#[test]
fn a_store_that_ignores_what_is_expected() {
    for _ in 0..TIMES {
        let (diagnosis, records) = sloppy(Flaw::PlainPut);
        refused(&diagnosis, Promise::P1, &["32 of 32 writers won the same round"]);
        assert!(records.lock().unwrap().is_empty() && diagnosis.left.is_empty());
    }
}

#[test]
fn a_store_that_looks_first_and_writes_later() {
    for _ in 0..TIMES {
        let (diagnosis, records) = sloppy(Flaw::CheckThenWrite);
        refused(&diagnosis, Promise::P1, &["writers won the same round"]);
        assert!(records.lock().unwrap().is_empty(), "{diagnosis:#?}");
    }
}

#[test]
fn a_store_whose_reads_are_stale() {
    for _ in 0..TIMES {
        let (diagnosis, _) = sloppy(Flaw::StaleRead);
        refused(&diagnosis, Promise::P1, &["A read does not give the last write"]);
    }
}

#[test]
fn a_store_whose_versions_come_again() {
    for _ in 0..TIMES {
        let (diagnosis, records) = sloppy(Flaw::RestartingCounter);
        refused(&diagnosis, Promise::P1, &["was given twice, before and after a removal"]);
        assert!(records.lock().unwrap().is_empty());
        let (diagnosis, _) = sloppy(Flaw::ContentHash);
        refused(&diagnosis, Promise::P1, &["was given twice", "the first of two equal bodies"]);
    }
}

#[test]
fn a_store_that_is_wrong_about_time() {
    for _ in 0..TIMES {
        for (flaw, reasons) in [
            (Flaw::AgeStandsStill, &["stands still"][..]),
            (Flaw::AgeGoesBack, &["an age went back"]),
            (Flaw::AgeRunsAhead, &["leases would end early"]),
            (Flaw::FrozenAge, &["leases would end early"]),
            (Flaw::CoarseAge, &["coarser than", "stands still"]),
        ] {
            let (diagnosis, records) = sloppy(flaw);
            refused(&diagnosis, Promise::P3, reasons);
            assert!(records.lock().unwrap().is_empty());
        }
    }
}

#[test]
fn a_store_that_says_so_itself_is_refused_or_warned_of() {
    let (diagnosis, _) = sloppy(Flaw::Evicts);
    refused(&diagnosis, Promise::P1, &["throws away records"]);
    let (diagnosis, _) = sloppy(Flaw::Weak);
    assert_eq!((&diagnosis.ended, diagnosis.verdict()), (&ExaminationEnd::Usable, RemarkLevel::Weak));
    let (diagnosis, _) = sloppy(Flaw::Deaf);
    assert_eq!((&diagnosis.ended, diagnosis.verdict()), (&ExaminationEnd::Usable, RemarkLevel::Weak));
    assert!(
        diagnosis.findings.iter().any(|f| f.about == "push" && f.text.contains("did not learn of a change"))
    );
}

#[test]
fn a_clock_an_hour_off_is_said_and_nothing_more() {
    let (diagnosis, _) = sloppy(Flaw::HourBehind);
    assert_eq!(
        (&diagnosis.ended, diagnosis.verdict()),
        (&ExaminationEnd::Usable, RemarkLevel::Weak),
        "{diagnosis:#?}"
    );
    let clock = diagnosis.findings.iter().find(|f| f.about == "clock").unwrap();
    assert!(clock.text.contains("1h ahead of the store's"), "{}", clock.text);
    let ahead = diagnosis.figures.clock_ahead_ms.unwrap();
    assert!((3_595_000..3_605_000).contains(&ahead), "{ahead}");
}

#[test]
fn honest_stores_pass() {
    for _ in 0..TIMES {
        let store = MemoryStore::new().unwrap();
        let records = store.clone();
        let diagnosis = look(Arc::new(move || Ok(Box::new(store.clone()))), Depth::Full);
        assert_eq!(
            (&diagnosis.ended, diagnosis.verdict()),
            (&ExaminationEnd::Usable, RemarkLevel::Good),
            "{diagnosis:#?}"
        );
        let left =
            pollster::block_on(leasehold::stores::Store::list(&mut records.clone(), "", "", 9)).unwrap();
        assert!(left.is_empty() && diagnosis.left.is_empty(), "{left:?}");
        let figures = diagnosis.figures;
        assert!(figures.read.is_some() && figures.cas.is_some() && figures.least_ttl.is_some());
    }
}

#[test]
fn honest_stores_on_disk_pass_and_are_left_as_they_were() {
    for scheme in ["sqlite", "dir"] {
        let long = std::env::var_os("LEASEHOLD_LONG").is_some();
        for round in 0..if long { TIMES } else { 6 } {
            let scratch = Scratch::new();
            let url = format!("{scheme}:{}", scratch.join("store"));
            let opened = url.clone();
            let open_it: Opener = Arc::new(move || {
                let failure = |message: String| Failure::new(FailureKind::Unusable, message);
                open_to_examine(&opened, Holders::Here).map_err(|e| failure(e.to_string()))
            });
            let depth = if long || round < 2 { Depth::Full } else { Depth::Quick };
            let diagnosis = look(open_it, depth);
            assert_eq!(diagnosis.ended, ExaminationEnd::Usable, "{diagnosis:#?}");
            let mut store = open(&url).unwrap();
            let left = pollster::block_on(store.list("", "", 9)).unwrap();
            assert!(left.is_empty() && diagnosis.left.is_empty(), "{left:?} {:?}", diagnosis.left);
            if scheme == "dir" {
                let keys = std::fs::read_dir(format!("{}/keys", scratch.join("store"))).unwrap();
                assert_eq!(keys.count(), 0, "not even what says that a key is absent");
            }
        }
    }
}

#[test]
fn an_interrupted_examination_leaves_nothing_behind() {
    for about in ["stale", "races", "latency", "age"] {
        let records = Records::default();
        let stop: Arc<AtomicBool> = Arc::default();
        let mut told = 0;
        let diagnosis =
            examine(opener(Flaw::None, &records), None, Depth::Full, &stop, &mut |progress| match progress {
                Progress::Begun(now) if now == about => stop.store(true, Ordering::SeqCst),
                Progress::Found(_) => told += 1,
                Progress::Begun(_) => {}
            });
        assert_eq!(diagnosis.ended, ExaminationEnd::Interrupted, "{diagnosis:#?}");
        assert!(told > 0, "it had begun");
        assert!(records.lock().unwrap().is_empty() && diagnosis.left.is_empty(), "{about}");
    }
}

#[test]
fn a_store_that_gives_out_is_not_called_a_liar() {
    let records = Records::default();
    for most in [0, 1, 3, 30, 100] {
        let diagnosis = look(opener(Flaw::Mortal(most), &records), Depth::Full);
        let ExaminationEnd::Failed(failure) = &diagnosis.ended else { panic!("{diagnosis:#?}") };
        assert_eq!(
            (failure.kind, failure.message.as_str()),
            (FailureKind::Unreachable, "The line went dead.")
        );
        // What could not be removed is named.
        let here: Vec<String> = records.lock().unwrap().keys().cloned().collect();
        assert!(here.iter().all(|key| diagnosis.left.contains(key)), "{here:?} {diagnosis:#?}");
        records.lock().unwrap().clear();
    }
    let (diagnosis, records) = sloppy(Flaw::KeepsRemoved);
    refused(
        &diagnosis,
        Promise::P1,
        &["A write on a removed record", "was refused, and yet the key changed"],
    );
    assert_eq!(records.lock().unwrap().len(), diagnosis.left.len());
}

#[test]
fn a_store_that_lets_few_in_is_raced_by_few() {
    let (records, count) = (Records::default(), Arc::new(AtomicUsize::new(0)));
    let few: Opener = Arc::new(move || {
        if count.fetch_add(1, Ordering::SeqCst) >= 9 {
            return Err(Failure::new(FailureKind::Unreachable, "Too many clients."));
        }
        Ok(Box::new(Sloppy::new(Flaw::None, &records)))
    });
    let diagnosis = look(few, Depth::Full);
    assert_eq!(
        (&diagnosis.ended, diagnosis.verdict()),
        (&ExaminationEnd::Usable, RemarkLevel::Weak),
        "{diagnosis:#?}"
    );
    let crowd = diagnosis.findings.iter().find(|f| f.about == "crowd").unwrap();
    assert!(
        crowd.text.contains("of 32 connections were accepted") && crowd.text.contains("Too many clients"),
        "{crowd:?}"
    );
}

/// Hears nothing.
fn nobody() -> Tell {
    Arc::new(|_: &str| {})
}

/// Counts how often a store is opened.
fn counted(flaw: Flaw, records: &Records) -> (Opener, Arc<AtomicUsize>) {
    let (records, count) = (Arc::clone(records), Arc::new(AtomicUsize::new(0)));
    let opened = Arc::clone(&count);
    let open: Opener = Arc::new(move || {
        opened.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(Sloppy::new(flaw, &records)))
    });
    (open, count)
}

#[test]
fn the_first_use_is_looked_at_and_remembered() {
    let scratch = Scratch::new();
    let state = StateDir::at(scratch.join("state"));
    let records = Records::default();
    let notes = |url: &str| FirstUseNotes::new(&state, url, "sloppy:");
    let begin = |flaw: Flaw, url: &str| {
        let (open, count) = counted(flaw, &records);
        let store = open().unwrap();
        let begun = FirstUse::begin(store, open, notes(url), nobody());
        (begun, count.load(Ordering::SeqCst) - 1)
    };
    // A liar is refused every time, and looked at every time.
    for _ in 0..3 {
        let (begun, opened) = begin(Flaw::PlainPut, "sloppy:a");
        let failure = begun.err().unwrap();
        assert!(opened > 0 && failure.kind == FailureKind::Unusable, "{failure:?}");
    }
    for n in 0..TIMES {
        let failure = begin(Flaw::CheckThenWrite, &format!("sloppy:new-{n}")).0.err().unwrap();
        assert!(failure.message.contains("8 writers won the same round"), "{failure:?}");
    }
    let (begun, _) = begin(Flaw::Mortal(2), "sloppy:a");
    assert_eq!(begun.err().unwrap().kind, FailureKind::Unreachable);
    records.lock().unwrap().clear();
    // An honest one is looked at once.
    assert!(begin(Flaw::None, "sloppy:a").1 > 0);
    assert_eq!(begin(Flaw::None, "sloppy:a").1, 0);
    // Another one is another one.
    assert!(begin(Flaw::None, "sloppy:b").1 > 0);
    assert!(records.lock().unwrap().is_empty());
    // Another instance under the same name is looked at with its first answer.
    notes("sloppy:a").went_well("the one before");
    let (open, count) = counted(Flaw::None, &records);
    let mut store = FirstUse::begin(open().unwrap(), open, notes("sloppy:a"), nobody()).unwrap();
    assert_eq!(count.load(Ordering::SeqCst), 1);
    pollster::block_on(store.read("leases/x")).unwrap();
    assert!(count.load(Ordering::SeqCst) > 1, "it was looked at again");
    let (open, _) = counted(Flaw::PlainPut, &records);
    notes("sloppy:a").went_well("the one before");
    let mut store = FirstUse::begin(open().unwrap(), open, notes("sloppy:a"), nobody()).unwrap();
    assert_eq!(pollster::block_on(store.read("leases/x")).unwrap_err().kind, FailureKind::Unusable);
    // The note went with it: what lied is not even begun with again.
    assert_eq!(begin(Flaw::PlainPut, "sloppy:a").0.err().unwrap().kind, FailureKind::Unusable);
}

/// What was refused is examined again before it is refused again, and more thoroughly than at a first use.
#[test]
fn a_store_that_was_refused_and_mended_is_used() {
    let scratch = Scratch::new();
    let notes = FirstUseNotes::new(&StateDir::at(scratch.join("state")), "sloppy:a", "sloppy:");
    let records = Records::default();
    let begin = |flaw: Flaw| {
        let (open, count) = counted(flaw, &records);
        let begun = FirstUse::begin(open().unwrap(), open, notes.clone(), nobody());
        (begun.is_ok(), count.load(Ordering::SeqCst) - 1)
    };
    let (_, short) = begin(Flaw::None);
    for _ in 0..TIMES {
        notes.refused();
        assert!(!begin(Flaw::CheckThenWrite).0);
        // Still refused: the note stays as long as it lies.
        let (used, thorough) = begin(Flaw::None);
        assert!(used && thorough > short, "{thorough} handles, and {short} at a first use");
        assert_eq!(begin(Flaw::None), (true, 0));
    }
}

/// Another instance, and the look at it cannot be had just then: nothing is answered from there until it was.
#[test]
fn a_look_that_failed_is_made_again() {
    let scratch = Scratch::new();
    let state = StateDir::at(scratch.join("state"));
    let records = Records::default();
    for (flaw, ends) in [(Flaw::PlainPut, Some(FailureKind::Unusable)), (Flaw::None, None)] {
        let notes = FirstUseNotes::new(&state, "sloppy:a", "sloppy:");
        notes.went_well("the one before");
        let (counting, count) = counted(flaw, &records);
        // One look in vain.
        let full = || Failure::new(FailureKind::Unreachable, "Too many clients.");
        let once = AtomicBool::new(true);
        let open: Opener = Arc::new(move || match once.swap(false, Ordering::SeqCst) {
            true => Err(full()),
            false => counting(),
        });
        let store = Box::new(Sloppy::new(flaw, &records));
        let mut store = FirstUse::begin(store, open, notes, nobody()).unwrap();
        let mut read = || pollster::block_on(store.read("leases/x")).err().map(|failure| failure.kind);
        assert_eq!(read(), Some(FailureKind::Unreachable));
        assert_eq!(read(), ends, "{flaw:?}: after a look that failed nobody looked again");
        let looked = count.load(Ordering::SeqCst);
        assert_eq!(read(), ends);
        // Once it went well it is known.
        assert_eq!(count.load(Ordering::SeqCst) > looked, ends.is_some());
    }
}

/// Who looks first and writes later is found by a race alone; one that could not be run finds nobody.
#[test]
fn a_store_that_could_not_be_raced_was_not_tested() {
    let scratch = Scratch::new();
    let state = StateDir::at(scratch.join("state"));
    let records = Records::default();
    // As many handles as are let in, beside the first: whether it may be used, and how many were asked for.
    let begin = |flaw: Flaw, let_in: usize| {
        let (counting, count) = counted(flaw, &records);
        let few = {
            let count = Arc::clone(&count);
            let full = || Failure::new(FailureKind::Unreachable, "Too many clients.");
            let open = move || if count.load(Ordering::SeqCst) > let_in { Err(full()) } else { counting() };
            Arc::new(open) as Opener
        };
        let begun = FirstUse::begin(
            few().unwrap(),
            few,
            FirstUseNotes::new(&state, "sloppy:few", "sloppy:few"),
            nobody(),
        );
        (begun, count.load(Ordering::SeqCst) - 1)
    };
    // Let in alone it can be used, every time after another look.
    for _ in 0..3 {
        let (begun, opened) = begin(Flaw::CheckThenWrite, 1);
        assert!(begun.is_ok() && opened == 1, "{opened}");
    }
    let failure = begin(Flaw::CheckThenWrite, 32).0.err().unwrap();
    assert!(failure.message.contains("writers won the same round"), "{failure:?}");
    // Control: an honest one that was raced is not looked at again.
    assert!(begin(Flaw::None, 32).1 > 1);
    assert_eq!(begin(Flaw::None, 32).1, 0);
    // And the doctor says so.
    let (counting, count) = counted(Flaw::None, &records);
    let alone: Opener = Arc::new(move || match count.load(Ordering::SeqCst) {
        0 => counting(),
        _ => Err(Failure::new(FailureKind::Unreachable, "Too many clients.")),
    });
    let diagnosis = look(alone, Depth::Probe);
    let race = diagnosis.findings.iter().find(|f| f.about == "races").unwrap();
    assert_eq!(
        (race.verdict, &diagnosis.ended),
        (RemarkLevel::Weak, &ExaminationEnd::Usable),
        "{diagnosis:#?}"
    );
    assert!(race.text.contains("Too many clients"), "{race:?}");
}

/// A store that is looked at before its first use is otherwise the store it was.
#[test]
fn what_is_wrapped_passes_everything_on() {
    let scratch = Scratch::new();
    let notes = FirstUseNotes::new(&StateDir::at(scratch.join("state")), "spy:", "spy:");
    notes.went_well("spy");
    let (asked, shared) = (Asked::default(), Asked::default());
    let opener: Opener = Arc::new(move || Ok(Box::new(Spy(Arc::clone(&shared)))));
    let first = FirstUse::begin(Box::new(Spy(Arc::clone(&asked))), opener, notes, nobody()).unwrap();
    let in_a_corner = || Prefixed::new(Box::new(Spy(Arc::clone(&asked))), "p/");
    for mut store in [first, Box::new(in_a_corner()) as Box<dyn Store>] {
        asked.lock().unwrap().clear();
        ask_all(store.as_mut());
        assert_eq!(*asked.lock().unwrap(), ALL);
    }
    asked.lock().unwrap().clear();
    examine_all(&mut in_a_corner());
    assert_eq!(*asked.lock().unwrap(), EXAMINED);
    // Control: what passes on only what it must is seen.
    asked.lock().unwrap().clear();
    let mut careless = Careless(Spy(Arc::clone(&asked)));
    ask_all(&mut careless);
    examine_all(&mut careless);
    assert_eq!(*asked.lock().unwrap(), ["facts", "read", "cas", "list", "remove", "cas"]);
}

#[test]
fn a_first_use_that_leaves_something_behind_says_so() {
    let scratch = Scratch::new();
    let state = StateDir::at(scratch.join("state"));
    let heard = |flaw: Flaw, url: &str| {
        let (open, _) = counted(flaw, &Records::default());
        let words: Arc<std::sync::Mutex<Vec<String>>> = Arc::default();
        let tell: Tell = {
            let words = Arc::clone(&words);
            Arc::new(move |text: &str| words.lock().unwrap().push(text.into()))
        };
        let _ = FirstUse::begin(open().unwrap(), open, FirstUseNotes::new(&state, url, url), tell);
        let words = words.lock().unwrap();
        words.join("; ")
    };
    let said = heard(Flaw::KeepsRemoved, "sloppy:keeps");
    assert!(said.contains("could not be removed") && said.contains("doctor/"), "{said}");
    assert_eq!(heard(Flaw::None, "sloppy:none"), "");
}

/// It takes connections, so to say, and never answers: then one call is waited for, and nothing is swept.
#[test]
fn a_store_that_never_answers_is_asked_once() {
    for depth in [Depth::Probe, Depth::Quick, Depth::Full] {
        let records = Records::default();
        let (open, count) = counted(Flaw::Mortal(0), &records);
        let diagnosis = look(open, depth);
        assert!(
            matches!(diagnosis.ended, ExaminationEnd::Failed(_)) && diagnosis.left.is_empty(),
            "{diagnosis:#?}"
        );
        assert_eq!(
            count.load(Ordering::SeqCst),
            1,
            "{depth:?}: it was opened again, to sweep what is not there"
        );
    }
}

#[test]
fn a_note_that_is_old_or_not_ours_counts_for_nothing() {
    let scratch = Scratch::new();
    let state = StateDir::at(scratch.join("state"));
    let records = Records::default();
    let file = || {
        let dir = format!("{}/probed", scratch.join("state"));
        std::fs::read_dir(dir).unwrap().next().unwrap().unwrap().path()
    };
    let looked = || {
        let (open, count) = counted(Flaw::None, &records);
        FirstUse::begin(
            open().unwrap(),
            open,
            FirstUseNotes::new(&state, "s://u:secret@h", "s://u:***@h"),
            nobody(),
        )
        .unwrap();
        count.load(Ordering::SeqCst) > 1
    };
    assert!(looked() && !looked());
    let text = std::fs::read_to_string(file()).unwrap();
    assert!(!text.contains("secret") && text.contains("***"), "{text}");
    let page: serde_json::Value = serde_json::from_str(&text).unwrap();
    let now = page["at_s"].as_u64().unwrap();
    for (key, value) in [
        ("at_s", (now - 31 * 24 * 3600).into()),
        ("at_s", (now + 3600).into()),
        ("version", "0.0.0".into()),
        ("at_s", "yesterday".into()),
    ] {
        let mut page = page.clone();
        page[key] = value;
        std::fs::write(file(), page.to_string()).unwrap();
        assert!(looked() && !looked(), "{page}");
    }
}
