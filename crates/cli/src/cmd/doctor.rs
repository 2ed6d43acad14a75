//! `leasehold doctor`: can this store be trusted with leases? `leasehold use` examines a store too.

mod target;

use std::io::{IsTerminal, Write};
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use leasehold::backends;
use leasehold::doctor::{
    self, Depth, Diagnosis, ExaminationEnd, Finding, FirstUseNotes, Latency, Progress, Promise,
};
use leasehold::state::StateDir;
use leasehold::stores::RemarkLevel;
use leasehold::text::one_line;
use leasehold_run::runner::signals::Interrupt;
use serde_json::{Value, json};

use super::store_failed;
use crate::args::{DoctorArgs, Everywhere};
use crate::config::{self, Chosen, Missing};
use crate::exit::{self, FailKind, Failed};
use crate::messages::{doctor as say, run::system};
use crate::out::{self, Out};

/// Examines the store and shows the findings. The exit code says whether it can be used.
pub fn run(flags: &Everywhere, args: &DoctorArgs, out: &Out) -> Result<u8, Failed> {
    if args.print_sql {
        let given = args.url.as_ref().or(flags.store.as_ref());
        let sql = backends::schema_sql(given.map(String::as_str)).ok_or_else(|| {
            let kind = given.and_then(|url| url.split_once(':')).map_or("", |(kind, _)| kind);
            say::no_sql(format!("{kind:?}"))
        })?;
        out::as_is(sql.trim_end());
        return Ok(exit::OK);
    }
    if let Some(url) = &args.target {
        return target::run(flags, url, out);
    }
    let state = config::state_dir()?;
    let chosen = match &args.url {
        Some(url) => config::argument(url, "the argument of doctor")?,
        None => config::choose(flags, &state)?,
    };
    let also = args.also.as_ref().map(|url| config::argument(url, "--also")).transpose()?;
    // A store that cannot be opened is refused with the words of every other command.
    let stand_in = backends::stand_in(&chosen.url);
    let url = stand_in.as_ref().map_or(&chosen.url, |stand_in| &stand_in.url).clone();
    let examined = Chosen { url, ..chosen.clone() };
    for chosen in [Some(&examined), also.as_ref()].into_iter().flatten() {
        drop(config::open(chosen, Missing::Refuse)?);
    }
    let table = Table::new(out);
    table.head(&chosen);
    let diagnosis = examine(&examined, also.as_ref(), Depth::Full, &mut |progress| table.tell(progress))?;
    drop(stand_in);
    let ended = judge(&diagnosis, &chosen, &state);
    if out.json {
        let code = ended.as_ref().map_or_else(|failed| failed.code(), |()| exit::OK);
        out.object(&summary(&diagnosis, &chosen, code));
    }
    left_behind(&diagnosis, out);
    ended?;
    table.end(&diagnosis, &chosen);
    Ok(exit::OK)
}

/// Examines, until it is done or somebody presses Ctrl-C.
pub fn examine(
    chosen: &Chosen,
    also: Option<&Chosen>,
    depth: Depth,
    tell: &mut dyn FnMut(Progress<'_>),
) -> Result<Diagnosis, Failed> {
    let interrupt = Interrupt::install().map_err(system)?;
    let diagnosis = doctor::examine(
        config::examined_opener(chosen),
        also.map(config::examined_opener),
        depth,
        &interrupt.flag(),
        tell,
    );
    match diagnosis.ended {
        ExaminationEnd::Interrupted => {
            let code = 128 + u8::try_from(interrupt.signal()).unwrap_or(2);
            left_behind(&diagnosis, &Out::plain());
            let told = match diagnosis.left.is_empty() {
                true => say::interrupted(),
                false => say::interrupted_and_left(),
            };
            Err(Failed::new(FailKind::Interrupted(code), "interrupted", told))
        }
        _ => Ok(diagnosis),
    }
}

/// Whether leases can be kept there. If so, the next run does not examine the store again.
pub fn judge(diagnosis: &Diagnosis, chosen: &Chosen, state: &StateDir) -> Result<(), Failed> {
    match &diagnosis.ended {
        ExaminationEnd::Interrupted => Ok(()),
        ExaminationEnd::Usable => {
            if let Some(facts) = &diagnosis.facts {
                FirstUseNotes::new(state, &chosen.url, &chosen.shown).went_well(&facts.instance);
            }
            Ok(())
        }
        ExaminationEnd::Failed(failure) => Err(store_failed(failure, chosen)),
        ExaminationEnd::Refused { breaks, why } => {
            FirstUseNotes::new(state, &chosen.url, &chosen.shown).refused();
            let promise = match breaks {
                Promise::P1 => say::p1_broken(),
                Promise::P3 => say::p3_broken(),
            };
            Err(say::not_a_lease_store(&chosen.shown, why.trim_end_matches('.'), promise))
        }
    }
}

/// Warns of test records that could not be removed.
pub fn left_behind(diagnosis: &Diagnosis, out: &Out) {
    if let Some(text) = diagnosis.left_behind() {
        out.warn(&text);
    }
}

/// The verdict in one word.
fn word(verdict: RemarkLevel) -> &'static str {
    match verdict {
        RemarkLevel::Good => "ok",
        RemarkLevel::Weak => "weak",
        RemarkLevel::Unsafe => "UNSAFE",
    }
}

struct Table {
    out: Out,
    terminal: bool,
}

impl Table {
    fn new(out: &Out) -> Self {
        Self { out: *out, terminal: std::io::stdout().is_terminal() }
    }

    fn head(&self, chosen: &Chosen) {
        if !self.out.json && !self.out.quiet {
            out::line(&format!("{:<11} {}", "store", chosen.shown));
        }
    }

    fn tell(&self, progress: Progress<'_>) {
        match progress {
            Progress::Begun(about) => self.busy(about),
            Progress::Found(finding) if self.out.json => {
                self.out.object(&object(finding));
            }
            Progress::Found(finding) => {
                self.wipe();
                if !self.out.quiet || finding.verdict != RemarkLevel::Good {
                    self.line(finding.about, finding.verdict, &finding.text);
                }
            }
        }
    }

    fn line(&self, about: &str, verdict: RemarkLevel, text: &str) {
        let style = match verdict {
            RemarkLevel::Good => AnsiColor::Green.on_default(),
            RemarkLevel::Weak => AnsiColor::Yellow.on_default(),
            RemarkLevel::Unsafe => AnsiColor::Red.on_default().bold(),
        };
        let style: Style = style;
        out::as_is(&format!("{about:<11} {style}{:<7}{style:#} {}", word(verdict), one_line(text)));
    }

    /// The examination that runs now, on a terminal. Its finding replaces the line.
    fn busy(&self, about: &str) {
        if self.terminal && !self.out.json && !self.out.quiet {
            let mut stdout = std::io::stdout();
            let _ = write!(stdout, "\r\x1b[K{about:<11} …").and_then(|()| stdout.flush());
        }
    }

    fn wipe(&self) {
        if self.terminal && !self.out.quiet {
            let _ = write!(std::io::stdout(), "\r\x1b[K");
        }
    }

    fn end(&self, diagnosis: &Diagnosis, chosen: &Chosen) {
        if self.out.json || self.out.quiet {
            return;
        }
        self.wipe();
        let weak = diagnosis.findings.iter().filter(|f| f.verdict == RemarkLevel::Weak).count();
        out::line(&match weak {
            0 => say::trusted(&chosen.shown),
            1 => say::trusted_but_one(&chosen.shown),
            n => say::trusted_but(&chosen.shown, n),
        });
    }
}

fn object(finding: &Finding) -> Value {
    json!({
        "v": 1, "exam": finding.about, "verdict": word(finding.verdict).to_lowercase(), "text": finding.text,
        "breaks": finding.breaks, "took_s": finding.took.as_secs_f64(),
    })
}

/// The last line of `--json`.
fn summary(diagnosis: &Diagnosis, chosen: &Chosen, code: u8) -> Value {
    let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
    let latency = |latency: Option<Latency>| {
        latency.map(|l| json!({"p50_s": l.p50.as_secs_f64(), "p99_s": l.p99.as_secs_f64()}))
    };
    let figures = &diagnosis.figures;
    let (breaks, why) = match &diagnosis.ended {
        ExaminationEnd::Refused { breaks, why } => (Some(*breaks), Some(why.as_str())),
        ExaminationEnd::Failed(failure) => (None, Some(failure.message.as_str())),
        ExaminationEnd::Usable | ExaminationEnd::Interrupted => (None, None),
    };
    // An examination that did not end says nothing about the store.
    let verdict = match &diagnosis.ended {
        ExaminationEnd::Failed(_) | ExaminationEnd::Interrupted => "unknown".into(),
        ExaminationEnd::Usable | ExaminationEnd::Refused { .. } => word(diagnosis.verdict()).to_lowercase(),
    };
    json!({
        "v": 1, "store": chosen.shown, "usable": code == exit::OK, "exit": code,
        "verdict": verdict, "breaks": breaks, "why": why,
        "instance": diagnosis.facts.as_ref().map(|facts| &facts.instance),
        "read": latency(figures.read), "cas": latency(figures.cas), "resolution_s": seconds(figures.resolution),
        "push_s": seconds(figures.push), "least_ttl_s": seconds(figures.least_ttl),
        "clock_ahead_s": figures.clock_ahead_ms.map(|ms| ms as f64 / 1000.0), "left_behind": diagnosis.left,
    })
}
