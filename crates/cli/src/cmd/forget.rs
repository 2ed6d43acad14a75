//! `leasehold forget NAME|PREFIX/`: removes the records of names that are over.

use leasehold::core::forgotten::{LEAST_AGE, Names};
use leasehold::core::human_duration::HumanDuration;
use leasehold::core::ledger::Subject;
use leasehold::core::name::Name;
use leasehold::core::run_log::{LogEvent, LogRecord};
use leasehold::forget::{self, ForgetError, Forgot, Wish};
use leasehold::ledger::lease_of;
use leasehold::stores::Clock;
use leasehold::text::shell_quoted;
use serde_json::json;

use super::{OpenedStore, fence, history, item_args, run_log, store_failed};
use crate::args::{Everywhere, ForgetArgs};
use crate::exit::{self, Failed};
use crate::messages::forget as say;
use crate::out::{self, Out};

/// How many of the records that are left are shown to people.
const LEFT_SHOWN: usize = 20;

/// Forgets.
pub fn run(flags: &Everywhere, args: &ForgetArgs, out: &Out) -> Result<u8, Failed> {
    if args.older_than < LEAST_AGE {
        return Err(say::too_young(HumanDuration(args.older_than), HumanDuration(LEAST_AGE)));
    }
    let text = item_args::checked(args.name.clone())?;
    let names = Names::parse(&text);
    let leases: Vec<Name> = match &names {
        Some(Names::One(name)) => vec![name.clone()],
        _ => Vec::new(),
    };
    let mut opened = super::open(flags, &leases)?;
    if opened.store.facts().clock == Clock::Observed {
        return Err(say::no_ages(&opened.chosen.shown));
    }
    let (by, notes) = (run_log::who(), opened.memory.clone());
    let wish = Wish {
        text: &text,
        names: names.as_ref(),
        older_than: args.older_than,
        by: &by,
        notes: Some(&notes),
        dry: args.dry_run,
    };
    let mut forgot = Forgot::default();
    let done = forget::forget(opened.store.as_mut(), &wish, &mut forgot);
    // What was removed is removed, also if not all could be.
    if !args.dry_run {
        forgot.leases.iter().for_each(|lease| opened.memory.drop_notes(lease));
        log(&mut opened, &wish, &forgot);
    }
    let fenced = match done.is_ok() && !forgot.leases.is_empty() {
        true => fence::of_leases(flags, &opened.state, &forgot.leases),
        false => Vec::new(),
    };
    show(&opened, args, &forgot, &fenced, out);
    match done {
        Err(ForgetError::Store(failure)) => Err(store_failed(&failure, &opened.chosen)),
        Err(ForgetError::Bad(names, bad)) => Err(say::bad_record(names.key(), &opened.chosen.shown, bad)),
        Ok(()) if is_unknown(&wish, &forgot) => Err(history::unheard_of(&mut opened, &text)?),
        Ok(()) => Ok(exit::OK),
    }
}

/// Whether nothing has, or had, the name that was asked for.
fn is_unknown(wish: &Wish<'_>, forgot: &Forgot) -> bool {
    let none = forgot.leases.is_empty() && forgot.keys.is_empty() && forgot.left.is_empty();
    none && !forgot.before && !matches!(wish.names, Some(Names::Under(_)))
}

fn log(opened: &mut OpenedStore, wish: &Wish<'_>, forgot: &Forgot) {
    let count = forgot.leases.len() + forgot.keys.len();
    if count == 0 {
        return;
    }
    let job = match wish.names {
        Some(Names::One(name)) => name.clone(),
        Some(names) => Name::new(names.text().trim_end_matches('/')).unwrap_or_else(|_| lease_of(wish.text)),
        None => lease_of(wish.text),
    };
    let key = forgot.keys.iter().find(|key| *key == wish.text);
    let item = key.map(|key| Subject::Key(key.clone()));
    let count = u64::try_from(count).ok();
    run_log::by_person(opened, LogEvent::Forget, &job, |log| LogRecord { item, count, ..log });
}

fn show(opened: &OpenedStore, args: &ForgetArgs, forgot: &Forgot, fenced: &[String], out: &Out) {
    let (store, dry) = (&opened.chosen.shown, args.dry_run);
    let (leases, keys) = (forgot.leases.len(), forgot.keys.len());
    if out.json {
        let left = forgot
            .left
            .iter()
            .map(|left| json!({"kind": left.kind.word(), "name": left.name, "why": left.why.word()}));
        out.object(&json!({
            "v": 1, "store": store, "name": args.name, "dry_run": dry, "leases": leases, "keys": keys,
            "log": forgot.log, "left": left.collect::<Vec<_>>(), "fenced": fenced,
        }));
    } else if !forgot.left.is_empty() {
        let head = ["LEFT", "NAME", "WHY"].map(str::to_owned).to_vec();
        let rows = forgot
            .left
            .iter()
            .take(LEFT_SHOWN)
            .map(|left| vec![left.kind.word().to_owned(), left.name.clone(), left.why.word().to_owned()]);
        out::table(&[head].into_iter().chain(rows).collect::<Vec<_>>());
        if forgot.left.len() > LEFT_SHOWN {
            out.note(&say::more_left(forgot.left.len() - LEFT_SHOWN));
        }
    }
    let name = &args.name;
    let age = HumanDuration(args.older_than);
    match leases + keys {
        0 if forgot.before => out.note(&say::before(name, store)),
        0 => out.note(&say::nothing(name, store, age)),
        _ if dry => out.note(&say::would(name, store, leases, keys)),
        _ => out.note(&say::forgot(name, store, leases, keys, forgot.log)),
    }
    for target in fenced {
        out.note(&say::still_fenced(target, shell_quoted(target)));
    }
}
