//! What a picture of a night shows, and how it is drawn.

mod drawing;
mod hostile;

use std::collections::HashMap;
use std::time::Duration;

use jiff::tz::TimeZone;
use leasehold::core::ids::Token;
use leasehold::core::ledger::Subject;
use leasehold::core::name::Name;
use leasehold::core::run_log::{LogEvent, LogId, LogRecord};
use leasehold::run_log::Window;

use super::layout::{Grain, lay_out, ticks};
use super::model::{About, Kind, Mark, Timeline, Whose};
use super::night::{JOB, at, entries, night, picture, record, run};

const SINCE: &str = "01:15:00";
const UNTIL: &str = "05:45:00";

/// The same of another job, which has a lease of its own.
fn of_job(mut record: LogRecord, job: &str) -> LogRecord {
    record.job = Name::new(job).unwrap();
    record.lease = Some(record.job.clone());
    record
}

fn lane<'t>(timeline: &'t Timeline, host: &str) -> &'t super::model::Lane {
    let is = |whose: &Whose| matches!(whose, Whose::Machine(name) if name == host);
    timeline.lanes.iter().find(|lane| is(&lane.whose)).unwrap()
}

fn marks<'t>(timeline: &'t Timeline, host: &str) -> Vec<&'t Mark> {
    lane(timeline, host).rows.iter().flat_map(|row| &row.marks).collect()
}

fn one(timeline: &Timeline, kind: Kind) -> Mark {
    let rows = timeline.lanes.iter().flat_map(|lane| &lane.rows);
    let marks: Vec<&Mark> = rows.flat_map(|row| &row.marks).filter(|mark| mark.kind == kind).collect();
    assert_eq!(marks.len(), 1, "{marks:?}");
    marks[0].clone()
}

#[test]
fn each_machine_has_a_lane_and_each_job_a_row() {
    let mut records = night();
    records.push(of_job(run("02:00:00", LogEvent::Failed, "macbook", 7, 60), "another"));
    let timeline = picture(records, SINCE, UNTIL);
    let lanes: Vec<(Whose, Vec<About>)> = timeline
        .lanes
        .iter()
        .map(|lane| (lane.whose.clone(), lane.rows.iter().map(|row| row.about.clone()).collect()))
        .collect();
    let job = |name: &str| About::Job(name.into());
    assert_eq!(
        lanes,
        [
            (Whose::Machine("mac-mini".into()), vec![job(JOB)]),
            (Whose::Machine("macbook".into()), vec![job("another"), job(JOB)]),
        ]
    );
    let mini = marks(&timeline, "mac-mini");
    let tokens: Vec<u64> =
        mini.iter().filter(|mark| mark.kind.lasts()).filter_map(|mark| mark.token()).collect();
    assert_eq!(tokens, [39, 42, 44], "in order of time");
    assert_eq!((mini[0].start, mini[0].end), (at("01:30:01"), at("01:34:57")));
    let skips = mini.iter().filter(|mark| mark.kind == Kind::Event(LogEvent::Skipped));
    assert_eq!(
        skips.map(|mark| mark.start).collect::<Vec<_>>(),
        [at("02:15:03"), at("03:00:02"), at("04:30:01")]
    );
    let refused = one(&timeline, Kind::Event(LogEvent::Refused));
    assert_eq!((refused.token(), refused.newer, refused.host.as_str()), (Some(41), Some(42), "macbook"));
}

#[test]
fn a_run_that_told_its_end_is_not_unknown() {
    let timeline = picture(night(), SINCE, UNTIL);
    assert_eq!(timeline.counts().get(&Kind::Event(LogEvent::Unknown)), None);
    let lost = one(&timeline, Kind::Event(LogEvent::Lost));
    assert_eq!((lost.start, lost.end), (at("03:00:01"), at("03:52:41")));
    assert_eq!(lost.overtaken, Some(at("03:45:01")), "since then another run had the lease");
    assert_eq!(timeline.gap_after(&lost), None, "the next run did not wait for it to end");
    // As long as it has told nothing.
    let untold: Vec<LogRecord> =
        night().into_iter().filter(|record| record.event != LogEvent::Lost).collect();
    let mut thought = untold.clone();
    thought.iter_mut().filter(|record| record.event == LogEvent::Unknown).for_each(|record| {
        record.holder.since = "2026-11-18T03:00:01Z".into();
    });
    let unknown = one(&picture(thought, SINCE, UNTIL), Kind::Event(LogEvent::Unknown));
    assert_eq!((unknown.start, unknown.end), (at("03:00:01"), at("03:45:01")));
    let unknown = one(&picture(untold, SINCE, UNTIL), Kind::Event(LogEvent::Unknown));
    assert_eq!((unknown.start, unknown.end), (at("03:45:01"), at("03:45:01")), "nobody knows since when");
}

#[test]
fn the_same_hold_has_one_mark() {
    let twice = [night(), night()].concat();
    let mut counts = picture(twice, SINCE, UNTIL).counts();
    // A machine may skip twice.
    assert_eq!(counts.remove(&Kind::Event(LogEvent::Skipped)), Some(10));
    assert_eq!(counts.remove(&Kind::Event(LogEvent::Ok)), Some(5));
    assert_eq!(counts.remove(&Kind::Event(LogEvent::Lost)), Some(1));
}

#[test]
fn the_time_without_a_holder_is_nobodys() {
    let mut lost = run("02:20:00", LogEvent::Lost, "macbook", 40, 600);
    let next = run("02:40:00", LogEvent::Ok, "mac-mini", 41, 900);
    let records = vec![lost.clone(), next.clone(), run("02:26:00", LogEvent::Ok, "macbook", 42, 10)];
    let timeline = picture(records, SINCE, UNTIL);
    let nobody = timeline.lanes.last().unwrap();
    assert_eq!((&nobody.whose, &nobody.rows[0].about), (&Whose::Nobody, &About::Gaps), "below the machines");
    let gap = one(&timeline, Kind::Gap);
    assert_eq!((gap.start, gap.end), (at("02:20:00"), at("02:25:00")));
    assert_eq!((gap.token(), gap.newer), (Some(40), Some(41)), "until the next one, by its token");
    // Another lease says nothing about it.
    lost.lease = Some(Name::new("other").unwrap());
    assert_eq!(picture(vec![lost.clone(), next.clone()], SINCE, UNTIL).lanes.len(), 2);
    // Nor is there a gap after a run that gave its lease back.
    let ok = LogRecord { event: LogEvent::Ok, ..run("02:20:00", LogEvent::Ok, "macbook", 40, 600) };
    assert_eq!(picture(vec![ok, next], SINCE, UNTIL).lanes.len(), 2);
}

#[test]
fn a_clock_that_is_behind_overtakes_nobody() {
    // The first one ended by its clock after the next began by another clock.
    let first = run("02:20:05", LogEvent::Ok, "macbook", 40, 600);
    let next = run("02:30:00", LogEvent::Ok, "mac-mini", 41, 600);
    let timeline = picture(vec![first, next], SINCE, UNTIL);
    assert!(marks(&timeline, "macbook").iter().all(|mark| mark.overtaken.is_none()));
}

#[test]
fn dropped_slots_stand_where_they_were_due() {
    let due = i64::try_from(at("02:30:00").as_secs()).unwrap();
    let dropped = LogRecord {
        item: Some(Subject::Slot { job: Name::new(JOB).unwrap(), at: due, id: "2026-11-18T02:30Z".into() }),
        count: Some(3),
        ..record("05:40:00", LogEvent::Dropped, "mac-mini", 1)
    };
    let timeline = picture(vec![dropped], SINCE, UNTIL);
    assert_eq!(timeline.lanes.len(), 1);
    assert_eq!(
        (&timeline.lanes[0].whose, &timeline.lanes[0].rows[0].about),
        (&Whose::Nobody, &About::Dropped)
    );
    let mark = one(&timeline, Kind::Event(LogEvent::Dropped));
    assert_eq!((mark.start, mark.names), (at("02:30:00"), Some(3)));
    assert_eq!(timeline.counts().get(&mark.kind), Some(&3), "slots, not records");
}

#[test]
fn only_some_words() {
    let window = Window { since: at(SINCE), until: at(UNTIL) };
    let shown = |only: &[&str]| {
        let only: Vec<String> = only.iter().map(|word| (*word).to_owned()).collect();
        Timeline::new(entries(night()), window, TimeZone::UTC, &only)
    };
    let counts = |only: &[&str]| shown(only).counts().values().sum::<u64>();
    assert_eq!(counts(&[]), 12);
    assert_eq!(counts(&["lost", "refused"]), 2);
    assert_eq!(counts(&["unknown"]), 0, "it told its end");
    assert!(shown(&["unknown"]).is_empty());
    let lost = one(&shown(&["lost"]), Kind::Event(LogEvent::Lost));
    assert!(lost.overtaken.is_some(), "also if the next run is not shown");
}

#[test]
fn what_keys_alone_say_is_shown() {
    let mut found = entries(night());
    let full = found.iter().position(|entry| entry.line.event() == Some(LogEvent::Lost)).unwrap();
    for (at, entry) in found.iter_mut().enumerate() {
        entry.record = entry.record.take().filter(|_| at == full);
    }
    let window = Window { since: at(SINCE), until: at(UNTIL) };
    let timeline = Timeline::new(found, window, TimeZone::UTC, &[]);
    assert_eq!(timeline.lanes.len(), 2, "one lane for a machine, whether its name was cut or not");
    let lost = one(&timeline, Kind::Event(LogEvent::Lost));
    assert_eq!(lost.overtaken, Some(at("03:45:01")));
    assert_eq!(one(&timeline, Kind::Event(LogEvent::Refused)).newer, None, "only the body has it");
}

#[test]
fn a_word_of_a_later_version_is_shown() {
    let mut found = entries(vec![record("02:00:00", LogEvent::Ok, "mac-mini", 1)]);
    found[0].line.word = "borrowed".into();
    (found[0].record, found[0].newer) = (None, true);
    let window = Window { since: at(SINCE), until: at(UNTIL) };
    let timeline = Timeline::new(found, window, TimeZone::UTC, &[]);
    assert_eq!(one(&timeline, Kind::Other).word, "borrowed");
}

/// The tracks of the only row.
fn tracks(timeline: &Timeline, columns: u32) -> Vec<Vec<Mark>> {
    let mut lanes = lay_out(timeline, Grain { columns, sign: 1 });
    assert_eq!((lanes.len(), lanes[0].1.len()), (1, 1));
    lanes.remove(0).1.remove(0).tracks
}

#[test]
fn what_overlaps_stands_below() {
    let three = vec![
        run("02:30:00", LogEvent::Ok, "mac-mini", 1, 1_800),
        run("02:50:00", LogEvent::Ok, "mac-mini", 2, 1_800),
        run("03:20:00", LogEvent::Ok, "mac-mini", 3, 1_800),
    ];
    let timeline = picture(three, SINCE, UNTIL);
    let tokens = |columns| -> Vec<Vec<Option<u64>>> {
        tracks(&timeline, columns).iter().map(|track| track.iter().map(Mark::token).collect()).collect()
    };
    assert_eq!(tokens(300), [vec![Some(1), Some(3)], vec![Some(2)]]);
    assert_eq!(tokens(1), [vec![None]], "too near to each other to be told apart");
    let merged = &tracks(&timeline, 1)[0][0];
    assert_eq!((merged.count, merged.tokens), (3, Some((1, 3))));
}

#[test]
fn a_row_has_a_few_tracks_at_most() {
    let crowd = (0..50u64).map(|n| {
        let event = if n == 30 { LogEvent::Failed } else { LogEvent::Ok };
        run("04:00:00", event, "mac-mini", n + 1, 3_600 + n * 60)
    });
    let timeline = picture(crowd.collect(), SINCE, UNTIL);
    let tracks = tracks(&timeline, 300);
    assert_eq!(tracks.len(), 6);
    let counts =
        |kind| tracks.iter().flatten().filter(|mark| mark.kind == kind).map(|mark| mark.count).sum::<usize>();
    assert_eq!(counts(Kind::Event(LogEvent::Ok)), 49);
    assert_eq!(counts(Kind::Event(LogEvent::Failed)), 1, "never one with those that were ok");
}

#[test]
fn what_is_too_near_becomes_one_of_each_kind() {
    let records = (0..10u64).map(|n| {
        let event = if n == 5 { LogEvent::Failed } else { LogEvent::Ok };
        let mut run = run("02:30:00", event, "mac-mini", n + 1, 1);
        run.at += Duration::from_secs(n);
        run
    });
    let timeline = picture(records.collect(), SINCE, UNTIL);
    let tracks = tracks(&timeline, 200);
    let mut counts: HashMap<Kind, usize> = HashMap::new();
    tracks.iter().flatten().for_each(|mark| *counts.entry(mark.kind).or_default() += mark.count);
    assert_eq!(counts, [(Kind::Event(LogEvent::Ok), 9), (Kind::Event(LogEvent::Failed), 1)].into());
    assert_eq!(tracks.iter().flatten().count(), 2);
}

#[test]
fn machines_and_jobs_have_a_bound() {
    let mut records = Vec::new();
    for n in 0..100u64 {
        let host = format!("sandbox-{n:03}");
        records.push(of_job(run("02:30:00", LogEvent::Ok, &host, n + 1, 60), &format!("job-{n:03}")));
        records
            .push(of_job(run("02:30:00", LogEvent::Ok, "mac-mini", 1_000 + n, 60), &format!("job-{n:03}")));
    }
    records.push(of_job(run("02:30:00", LogEvent::Lost, "sandbox-099", 5_000, 60), "job-099"));
    let timeline = picture(records, SINCE, UNTIL);
    let machines: Vec<&Whose> = timeline.lanes.iter().map(|lane| &lane.whose).collect();
    assert_eq!(machines.len(), 12, "{machines:?}");
    assert_eq!(machines.last(), Some(&&Whose::Machines(90)));
    assert!(machines.contains(&&Whose::Machine("sandbox-099".into())), "what stands out is kept apart");
    let jobs = &lane(&timeline, "mac-mini").rows;
    assert_eq!(jobs.last().unwrap().about, About::Jobs(98));
    assert_eq!(timeline.counts().values().sum::<u64>(), 201, "nothing is left out");
}

#[test]
fn ticks_are_round_times_of_the_zone() {
    let window = |since: &str, until: &str| {
        let time = |text: &str| {
            let at: jiff::Timestamp = text.parse().unwrap();
            Duration::from_secs(u64::try_from(at.as_second()).unwrap())
        };
        Window { since: time(since), until: time(until) }
    };
    let labels = |window, zone: &TimeZone, most| -> Vec<String> {
        ticks(window, zone, most).into_iter().map(|tick| tick.label).collect()
    };
    let night = window("2026-11-18T01:15:00Z", "2026-11-18T05:45:00Z");
    assert_eq!(labels(night, &TimeZone::UTC, 5), ["02:00", "03:00", "04:00", "05:00"]);
    let india = TimeZone::fixed(jiff::tz::Offset::from_seconds(5 * 3_600 + 1_800).unwrap());
    assert_eq!(labels(night, &india, 5), ["07:00", "08:00", "09:00", "10:00", "11:00"]);
    // In Berlin 02:30 is not on this night, and 02:30 comes twice on the other.
    let berlin = TimeZone::get("Europe/Berlin").unwrap();
    let spring = window("2026-03-28T23:30:00Z", "2026-03-29T04:00:00Z");
    assert_eq!(labels(spring, &berlin, 6), ["01:00", "03:00", "04:00", "05:00", "06:00"]);
    let autumn = window("2026-10-24T22:30:00Z", "2026-10-25T03:00:00Z");
    assert_eq!(labels(autumn, &berlin, 6), ["01:00", "02:00", "03:00", "04:00"]);
    let day = window("2026-11-17T12:00:00Z", "2026-11-18T12:00:00Z");
    assert_eq!(labels(day, &TimeZone::UTC, 5), ["12:00", "18:00", "18 Nov", "06:00", "12:00"]);
    let month = window("2026-11-01T12:00:00Z", "2026-12-01T12:00:00Z");
    assert!(labels(month, &TimeZone::UTC, 8).len() <= 8);
    for window in [night, spring, autumn, day, month] {
        for most in 1..40 {
            let ticks = ticks(window, &berlin, most);
            assert!(ticks.len() <= usize::try_from(most).unwrap() + 1, "{most}: {ticks:?}");
            assert!(ticks.is_sorted_by(|a, b| a.at < b.at), "{ticks:?}");
        }
    }
}

#[test]
fn a_job_on_another_lease_is_overtaken_by_that_lease_alone() {
    let lost =
        LogRecord { lease: Name::new("repo").ok(), ..run("02:20:00", LogEvent::Lost, "macbook", 8, 600) };
    let next = of_job(run("02:30:00", LogEvent::Ok, "mac-mini", 9, 900), "other");
    let next = LogRecord { lease: Name::new("repo").ok(), id: LogId::of(77), token: Token::new(9), ..next };
    let timeline = picture(vec![lost, next], SINCE, UNTIL);
    assert_eq!(one(&timeline, Kind::Event(LogEvent::Lost)).overtaken, Some(at("02:15:00")));
}
