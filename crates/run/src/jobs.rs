//! The schedules of leasehold.toml: every job, checked as a whole before any of it is acted on.

mod leases;
mod templates;
#[cfg(test)]
mod tests;
mod when;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::runner::lookup::{LookupError, Program, lookup};
use leasehold::backends::named_target;
use leasehold::messages::Explanation;
use leasehold_core::ledger::job_record::JobSchedule;
use leasehold_core::name::Name;
use leasehold_core::timing::{DEFAULT_TTL, StoreClock, Timing, TimingWishes};
pub use leases::IfBusy;

use crate::config_file::{self, BadFile, Reader, Section};
use crate::duration;
use crate::job_records::Terms;
use crate::notify::{AlertSettings, SecretUrl};
use crate::schedule::Schedule;

/// One job.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its slots belong to this name.
    pub name: Name,
    /// When it is due.
    pub schedule: Schedule,
    /// The schedule as text.
    pub written: String,
    /// Slots start up to this much later, by the same delay on every machine.
    pub stagger: Duration,
    /// The leases it may take, in order of preference.
    pub leases: Vec<Name>,
    /// The command; see [`Job::filled`].
    pub run: Vec<String>,
    /// Where it runs.
    pub dir: PathBuf,
    /// More variables of its environment.
    pub env: BTreeMap<String, String>,
    /// The key under which each slot is done; see [`Job::filled`].
    pub key: Option<String>,
    /// Targets that are fenced before it starts, with placeholders. Paths are absolute.
    pub fence: Vec<String>,
    /// Timing of its lease.
    pub wishes: TimingWishes,
    /// It is stopped after this long.
    pub max_run: Option<Duration>,
    /// What happens to a slot whose lease is held.
    pub busy: IfBusy,
    /// How many missed slots are run later.
    pub catch_up: usize,
    /// A missed slot that is older is dropped.
    pub catch_up_max_age: Option<Duration>,
    /// A slot that was lost, or whose outcome is unknown, is run again.
    pub retry: bool,
    /// How often a slot may fail before a person must decide.
    pub attempts: u32,
    /// How long records of slots are kept.
    pub keep: Duration,
    /// Pinged when a run starts and ends.
    pub ping: Option<SecretUrl>,
}

impl Job {
    /// Its schedule as machines compare it, and as text.
    pub fn named(&self) -> JobSchedule {
        JobSchedule { key: self.schedule.key(), written: self.written.clone() }
    }

    /// What a scheduler needs to know of it.
    pub fn terms(&self) -> Terms {
        Terms {
            job: self.name.clone(),
            schedule: self.schedule.clone(),
            named: self.named(),
            leases: self.leases.clone(),
            skips: self.busy != IfBusy::Open,
            catch_up: self.catch_up,
            max_age: self.catch_up_max_age,
            retry: self.retry,
            attempts: self.attempts,
            keep: self.keep,
            stagger: self.stagger,
        }
    }
}

/// A key of a `[[job]]`.
struct Key {
    name: &'static str,
    /// It may stand in `[defaults]`, for all jobs.
    for_all: bool,
    /// One line for people.
    what: &'static str,
}

const fn own(name: &'static str, what: &'static str) -> Key {
    Key { name, for_all: false, what }
}

const fn for_all(name: &'static str, what: &'static str) -> Key {
    Key { name, for_all: true, what }
}

const KEYS: [Key; 28] = [
    own("name", "the name of the job and of its slots; no two jobs share one (needed)"),
    own("every", "an interval in whole seconds, counted from 1970-01-01T00:00Z; this or cron"),
    own("offset", "with every: slots are due this long after each multiple"),
    own("cron", "minute, hour, day, month, day of the week; this or every"),
    for_all("timezone", "\"Europe/Berlin\", \"UTC\"; needed for cron, also at the top of the file"),
    own(
        "gap",
        "with cron: a time that the clock skips: \"run\" it when the gap ends, or \"skip\" it [\"run\"]",
    ),
    own("overlap", "with cron: a time that the clock shows twice counts \"first\" or \"last\" [\"first\"]"),
    own("stagger", "slots start up to this much later; the name of the job decides how much"),
    own("run", "the program and its arguments, as a list (needed)"),
    own("dir", "where it runs, relative to the directory of the file [that directory]"),
    own("env", "more variables for the command: { NAME = \"value\" }"),
    own("lease", "names the thing that only one run may work on at a time [the name of the job]"),
    own(
        "resources",
        "instead of lease, with on_busy = \"switch\": two or more leases; the first free one is used",
    ),
    for_all(
        "on_busy",
        "if the lease is held: \"skip\" the slot, \"wait\", or \"switch\" to another lease [\"skip\"]",
    ),
    for_all("wait", "how long, with on_busy = \"wait\" or \"switch\""),
    own("key", "each slot is done under this key, which contains {slot} or {date}"),
    own("fence", "targets that are fenced before the command starts, as a list"),
    for_all("ttl", "how long the lease lasts after its last renewal [\"90s\"]"),
    for_all("heartbeat", "time between renewals [a third of ttl]"),
    for_all("grace", "time between TERM and KILL [\"5s\" or less]"),
    for_all("max_run", "the command is stopped after this long; \"none\" for no limit [\"6h\"]"),
    for_all("catch_up", "how many of the newest missed slots are run, counting the one that is on time [1]"),
    for_all("catch_up_max_age", "a missed slot older than this is dropped [any age]"),
    for_all("retry", "true: a slot whose outcome is unknown is run again [false]"),
    for_all("attempts", "how often a slot may fail before it waits for you [1]"),
    for_all("keep", "how long records of slots are kept [\"90d\"]"),
    own("ping", "URL that a run requests: URL/start, then URL/EXITCODE; URL/log for a skip"),
    own("ping_file", "instead of ping: a file that contains the URL; relative to leasehold.toml"),
];

/// For `leasehold help leasehold.toml`.
pub fn reference() -> String {
    let line = |key: &Key| {
        let mark = if key.for_all { '*' } else { ' ' };
        format!("  {:<17}{mark} {}", key.name, key.what)
    };
    let keys: Vec<String> = KEYS.iter().map(line).collect();
    format!(
        "\
leasehold.toml names the store, and says which jobs are run and when:

  store = \"dir:/srv/leases\"          or store_file = \"PATH\"; relative to where the file is
  new_here = [\"OTHER-STORE\"]         keys and slots done on that store may be run again on this one
  keep_log = \"90d\"                  how long the run log is kept; \"none\": for ever
  keep_log_runs = 10000             how many records of a job are kept; 0: any number

  [alerts]                          one alert for each new problem and each recovery
  url_file = \"alert-url\"            gets JSON; or url = \"URL\"
  command = [\"./mail.sh\"]           gets the same on standard input
  on = [\"failed\", \"lost\", \"refused\", \"overdue\", \"unknown\"]

  [[job]]
  name = \"publish\"
  every = \"45m\"
  run = [\"./publish.sh\", \"site\"]

The keys of a job (* also in [defaults], for all jobs; the default is in brackets):

{}

Durations are written 90s, 80m, 1h20m, 1d. {{job}}, {{slot}}, {{date}} and {{date@Zone}} are replaced in run, key
and fence; {{key}} in run. A slot that fails and may be tried again is tried after 1 s, 2 s, 4 s, up to 60 s.
docs/schedule.md says which slots are due, and what happens to each.",
        keys.join("\n")
    )
}

const DAY: Duration = Duration::from_secs(86_400);
/// As `run --max-run`.
const MAX_RUN: Duration = Duration::from_secs(6 * 3600);
/// Each slot that is caught up has its own record, so their number is limited.
const CATCH_UP_MOST: u32 = 10_000;

/// Reads and checks all jobs of a file, and that their programs are there.
pub fn load(path: &Path) -> Result<Vec<Job>, BadFile> {
    from_file(path, missing_program)
}

/// Reads and checks all jobs of a file whose programs may be missing on this machine.
pub fn load_elsewhere(path: &Path) -> Result<Vec<Job>, BadFile> {
    from_file(path, |_| None)
}

/// The jobs of a file; none if there is no such file.
pub fn here(path: &Path) -> Result<Vec<Job>, BadFile> {
    config_file::text_of(path)?.map_or_else(|| Ok(Vec::new()), |text| parse(&text, path, |_| None))
}

fn from_file(path: &Path, wrong: impl Fn(&Job) -> Option<String>) -> Result<Vec<Job>, BadFile> {
    let text = config_file::text_of(path)?.ok_or_else(|| BadFile::missing(path))?;
    let jobs = parse(&text, path, wrong)?;
    if jobs.is_empty() {
        let what = format!("there is no [[job]] in {}", path.display());
        let next = "A [[job]] says what to run and when: leasehold help leasehold.toml";
        return Err(BadFile(Explanation::parts(what, "", next)));
    }
    Ok(jobs)
}

/// The table of a job, and the defaults for all jobs.
struct JobTable<'a> {
    own: Section<'a>,
    defaults: &'a Section<'a>,
    /// The time zone at the top of the file.
    zone: Option<&'a str>,
    patterns: &'a when::Patterns,
}

impl JobTable<'_> {
    /// From the table of the job, or else from the defaults.
    fn either<T>(
        &self,
        get: impl Fn(&Section<'_>) -> Result<Option<T>, BadFile>,
    ) -> Result<Option<T>, BadFile> {
        // Both are read, so that a mistake in the defaults is found even if no job needs them.
        let (own, defaults) = (get(&self.own)?, get(self.defaults)?);
        Ok(own.or(defaults))
    }

    fn duration(&self, key: &str) -> Result<Option<Duration>, BadFile> {
        self.either(|section| section.duration(key))
    }
}

pub(crate) fn parse(
    text: &str,
    path: &Path,
    wrong: impl Fn(&Job) -> Option<String>,
) -> Result<Vec<Job>, BadFile> {
    parse_with(text, path, wrong, &when::Patterns::default())
}

fn parse_with(
    text: &str,
    path: &Path,
    wrong: impl Fn(&Job) -> Option<String>,
    patterns: &when::Patterns,
) -> Result<Vec<Job>, BadFile> {
    let reader = Reader::new(text, path);
    let file = reader.file()?;
    file.only(&[config_file::KEYS.as_slice(), &config_file::PROJECT_KEYS].concat())?;
    let defaults = file.section("defaults")?.unwrap_or_else(|| file.empty());
    let in_defaults: Vec<&str> = KEYS.iter().filter(|key| key.for_all).map(|key| key.name).collect();
    defaults.only(&in_defaults)?;
    let in_a_job: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
    let zone = file.text("timezone")?;
    AlertSettings::of(&file, Path::new(""))?;
    for section in [&file, &defaults] {
        section.parsed("timezone", when::zone)?;
    }
    leases::check_defaults(&defaults)?;
    let base = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut jobs: Vec<Job> = Vec::new();
    let (mut names, mut keys) = (BTreeSet::new(), BTreeMap::new());
    for own in file.sections("job")? {
        own.only(&in_a_job)?;
        let said = JobTable { own, defaults: &defaults, zone: zone.as_deref(), patterns };
        let job = job(&said, base)?;
        if let Some(why) = wrong(&job) {
            let place = if job.dir.is_dir() { "run" } else { "dir" };
            return Err(said.own.bad(place, &why));
        }
        if !names.insert(job.name.clone()) {
            let why = format!(
                "two jobs are named {}; give each a name of its own, because slots belong to it",
                job.name
            );
            return Err(said.own.bad("name", &why));
        }
        let key = job.sample_key();
        if let Some(other) = key.and_then(|key| keys.insert(key, job.name.clone())) {
            let why = format!(
                "{} and {} would have the same keys, so the second would find its work done; put {{job}} into the key",
                other, job.name
            );
            return Err(said.own.bad("key", &why));
        }
        jobs.push(job);
    }
    Ok(jobs)
}

fn job(said: &JobTable<'_>, base: &Path) -> Result<Job, BadFile> {
    let own = &said.own;
    let name = own.name("name")?;
    let name = name.ok_or_else(|| own.bad("", "this job has no name; write name = \"publish\""))?;
    let (leases, busy) = leases::leases(said, &name)?;
    let due = when::due(said, busy)?;
    if let Some(home) = own.text("dir")?.filter(|dir| dir.starts_with('~')) {
        return Err(own.bad("dir", &format!("~ is not expanded in dir = {home:?}; write the whole path")));
    }
    let dir = std::path::absolute(base.join(own.text("dir")?.unwrap_or_default()))
        .map_err(|e| own.bad("dir", &format!("dir: {e}")))?;
    let max_run = said.either(|section| section.parsed("max_run", duration::parse_or_none))?;
    let count = |key, least, most| said.either(|section| section.count(key, least, most));
    let job = Job {
        schedule: due.schedule,
        written: due.written,
        stagger: due.stagger,
        run: run(own)?,
        env: own.variables("env")?,
        key: own.text("key")?,
        fence: fence(own, &dir)?,
        wishes: wishes(said)?,
        max_run: max_run.unwrap_or(Some(MAX_RUN)),
        busy,
        catch_up: count("catch_up", 0, CATCH_UP_MOST)?.map_or(1, |most| most as usize),
        catch_up_max_age: said
            .either(|section| at_least(section, "catch_up_max_age", Duration::from_secs(1)))?,
        retry: said.either(retry)?.unwrap_or(false),
        attempts: count("attempts", 1, 1000)?.unwrap_or(1),
        keep: said.either(|section| at_least(section, "keep", DAY))?.unwrap_or(90 * DAY),
        ping: SecretUrl::of(own, "ping", base)?,
        leases,
        name,
        dir,
    };
    if let Some(why) = templates::wrong_key(&job) {
        return Err(own.bad("key", &why));
    }
    if let Some(why) = templates::wrong_run(&job) {
        return Err(own.bad("run", &why));
    }
    let fence = |template: &String| templates::wrong_fence(template, &job.leases[0], &job.name);
    match job.fence.iter().find_map(fence) {
        Some(why) => Err(own.bad("fence", &why)),
        None => Ok(job),
    }
}

fn retry(section: &Section<'_>) -> Result<Option<bool>, BadFile> {
    section.truth("retry").map_err(|_| {
        let why = "retry must be true or false: whether a slot whose outcome is unknown is run again. For how often a \
                   slot may fail, write attempts";
        section.bad("retry", why)
    })
}

fn at_least(section: &Section<'_>, key: &str, least: Duration) -> Result<Option<Duration>, BadFile> {
    section.parsed(key, |text| match duration::parse(text)? {
        short if short < least => {
            let least = leasehold_core::human_duration::HumanDuration(least);
            Err(format!("{text:?} is too short; write at least {least}"))
        }
        enough => Ok(enough),
    })
}

fn run(own: &Section<'_>) -> Result<Vec<String>, BadFile> {
    if own.is_text("run") {
        let why = "run must be a list of the program and its arguments, such as [\"./publish.sh\", \"site\"]; for a line \
                   of shell write [\"sh\", \"-c\", \"…\"]";
        return Err(own.bad("run", why));
    }
    let run = own.texts("run")?.unwrap_or_default();
    match run.first().is_none_or(|program| program.is_empty()) {
        true => {
            Err(own.bad("run", "this job does not say what to run; write run = [\"./publish.sh\", \"site\"]"))
        }
        false => Ok(run),
    }
}

/// The timing. The store is not open yet, so its clock is not checked here.
fn wishes(said: &JobTable<'_>) -> Result<TimingWishes, BadFile> {
    let wishes = TimingWishes {
        ttl: Some(said.duration("ttl")?.unwrap_or(DEFAULT_TTL)),
        heartbeat: said.duration("heartbeat")?,
        grace: said.duration("grace")?,
    };
    Timing::new(wishes, StoreClock::default()).map_err(|e| {
        // If the job sets none of them, the defaults are wrong.
        let here =
            |section: &&Section<'_>| ["ttl", "heartbeat", "grace"].into_iter().find(|key| section.has(key));
        let place = [&said.own, said.defaults]
            .into_iter()
            .find_map(|section| here(&section).map(|key| (section, key)));
        let (section, key) = place.unwrap_or((&said.own, "ttl"));
        section.bad(key, &e.to_string())
    })?;
    Ok(wishes)
}

/// The targets. Their paths are relative to where the job runs; the process that fences them may run elsewhere.
fn fence(own: &Section<'_>, dir: &Path) -> Result<Vec<String>, BadFile> {
    // Targets are templates, and the directory is none.
    let escaped = |dir: &str| dir.replace('{', "{{").replace('}', "}}").into();
    let base: PathBuf = dir.to_str().map_or_else(|| dir.into(), escaped);
    let whole = |target: String| {
        named_target(&target, &base).map_err(|why| own.bad("fence", &format!("fence: {why}")))
    };
    own.texts("fence")?.unwrap_or_default().into_iter().map(whole).collect()
}

impl Job {
    /// Its program: a path with a slash is relative to where the job runs; others are looked up along the job's PATH.
    pub fn program(&self) -> Result<Program, LookupError> {
        let name = self.program_name();
        let ours = std::env::var_os("PATH");
        let path = self.env.get("PATH").map(OsStr::new).or(ours.as_deref());
        let wanted = match name.contains('/') {
            true => self.dir.join(&name).into_os_string(),
            false => name.clone().into(),
        };
        let found = lookup(&wanted, path)?;
        // An entry of PATH may be relative, and the job runs elsewhere.
        let path = std::path::absolute(&found.path).unwrap_or(found.path);
        Ok(Program { name: name.into(), path })
    }
}

/// Why a job cannot be started on this machine.
fn missing_program(job: &Job) -> Option<String> {
    let (name, dir) = (&job.name, job.dir.display());
    if !job.dir.is_dir() {
        return Some(format!("{name} would run in {dir}, and that directory does not exist"));
    }
    let why = job.program().err()?;
    Some(format!("the program of {name} cannot be run: {why} (dir = \"{dir}\")"))
}
