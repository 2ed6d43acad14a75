//! Patterns that nobody thought of.

use jiff::tz::TimeZone;

use crate::checks::{self, Expression, at};
use crate::oracle;
use crate::zones::{BEGIN, Changes, END, POLICIES, changes, long, zone};

/// splitmix64: small and seeded.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }

    fn from(&mut self, least: usize, most: usize) -> usize {
        least + self.below(most + 1 - least)
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }
}

fn item(rng: &mut Rng, least: usize, most: usize) -> String {
    let (a, b) = (rng.from(least, most), rng.from(least, most));
    let (low, high) = (a.min(b), a.max(b));
    match rng.below(6) {
        0..=2 => a.to_string(),
        3 => format!("{low}-{high}"),
        // Wraps where that is allowed.
        4 if most != 59 && most != 31 && a != 7 => format!("{a}-{b}"),
        _ if high > low => format!("{low}-{high}/{}", rng.from(1, high - low)),
        _ => a.to_string(),
    }
}

fn field(rng: &mut Rng, least: usize, most: usize, steps: &[&str]) -> String {
    match rng.below(4) {
        0 => "*".into(),
        1 => rng.one(steps).into(),
        _ => (0..rng.from(1, 3)).map(|_| item(rng, least, most)).collect::<Vec<_>>().join(","),
    }
}

/// Mostly in the hours when clocks are changed.
fn pattern(rng: &mut Rng) -> String {
    let minutes = field(rng, 0, 59, &["*/5", "*/15", "*/30", "0", "30"]);
    let hours = if rng.below(3) == 0 {
        field(rng, 0, 23, &["*/2", "*/3", "*/12", "0", "23"])
    } else {
        field(rng, 0, 4, &["*/2", "1", "2", "3", "0-3"])
    };
    let days = match rng.below(3) {
        0 => rng.one(&["*", "L", "LW", "1W", "15W", "29W", "31W,2", "*/2", "*/10", "L,15"]).into(),
        1 => field(rng, 1, 31, &["*/3", "1-7"]),
        _ => "*".into(),
    };
    let months = if rng.below(3) == 0 { field(rng, 1, 12, &["*/2", "MAR", "OCT-APR"]) } else { "*".into() };
    let weekdays = match rng.below(3) {
        0 => rng
            .one(&["SUN", "7", "0L", "SUN#1", "SUN#2,SUN#5", "FRI-MON", "SAT-SUN", "MON-FRI", "*/2", "5L,3"])
            .into(),
        1 => field(rng, 0, 7, &["*/3", "0-7"]),
        _ => "*".into(),
    };
    format!("{minutes} {hours} {days} {months} {weekdays}")
}

const ZONES: [&str; 12] = [
    "America/New_York",
    "Europe/Berlin",
    "Europe/Dublin",
    "Africa/Cairo",
    "Africa/Casablanca",
    "America/Santiago",
    "America/Havana",
    "Asia/Gaza",
    "Asia/Beirut",
    "Australia/Lord_Howe",
    "Pacific/Chatham",
    "Antarctica/Troll",
];

fn check(seed: u64, zones: &[(TimeZone, Changes)]) -> Option<usize> {
    let mut rng = Rng::new(seed);
    let text = pattern(&mut rng);
    // What never happens or has an uneven step is refused; that is tested elsewhere.
    let Ok(_) = leasehold_run::schedule::Cron::parse(&text) else { return None };
    let expression = Expression::read(&text);
    let (zone, changes) = &zones[rng.below(zones.len())];
    let policy = POLICIES[rng.below(4)];
    let day = 24 * 60;
    let middle = match rng.below(4) {
        0 => BEGIN + rng.below((END - BEGIN) as usize) as i64,
        _ => changes[1 + rng.below(changes.len() - 1)].0,
    };
    let (from, to) = (middle - day - rng.below(200) as i64, middle + day + rng.below(200) as i64);
    let clock = oracle::clock(zone, from - 2 * day, to + 2 * day);
    let schedule = expression.schedule(zone, policy);
    let second = rng.below(60) as i64;
    let found =
        checks::exact(&schedule, &expression.pattern, policy, &clock, (from * 60 + second, to * 60 + second))
            .unwrap_or_else(|why| panic!("LEASEHOLD_SEED={seed}: {text} in {schedule:?}: {why}"));
    // From any instant: the next is after it, the last is not, and nothing is between them.
    for _ in 0..20 {
        let now = at(BEGIN * 60 + rng.below(((END - BEGIN) * 60) as usize) as i64);
        let (last, next) = (schedule.prev_at_or_before(now), schedule.next_after(now));
        assert!(last.is_none_or(|slot| slot.due() <= now), "LEASEHOLD_SEED={seed}: {text}");
        assert!(next.is_none_or(|slot| slot.due() > now), "LEASEHOLD_SEED={seed}: {text}");
        let (Some(last), Some(next)) = (last, next) else { continue };
        assert_eq!(schedule.next_after(last.due()), Some(next), "LEASEHOLD_SEED={seed}: {text}");
        let just_before = at(next.number() - 1);
        assert_eq!(schedule.prev_at_or_before(just_before), Some(last), "LEASEHOLD_SEED={seed}: {text}");
        assert_eq!(schedule.count(last.due(), next.due()), 1, "LEASEHOLD_SEED={seed}: {text}");
    }
    Some(found)
}

#[test]
fn patterns_that_nobody_thought_of() {
    let zones: Vec<_> = ZONES.map(|name| (zone(name), changes(&zone(name), BEGIN, END))).into();
    if let Some(seed) = std::env::var("LEASEHOLD_SEED").ok().and_then(|seed| seed.parse().ok()) {
        check(seed, &zones);
        return;
    }
    let count = if long() { 30_000 } else { 1_000 };
    let found: Vec<usize> = (1..=count).filter_map(|seed| check(seed, &zones)).collect();
    println!("{} of {count} patterns, {} slots", found.len(), found.iter().sum::<usize>());
    assert!(
        found.len() as u64 > count / 2 && found.iter().filter(|slots| **slots > 0).count() as u64 > count / 5
    );
}
