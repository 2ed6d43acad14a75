//! From the command line to the command.

use super::*;
use crate::args::{Cli, Command};
use crate::exit::Failed;
use crate::out::{self, Out};

/// Carries out the command that was typed; its exit code.
pub fn dispatch(cli: &Cli, out: &Out) -> Result<u8, Failed> {
    let done = carry_out(cli, out);
    let done = if prints(&cli.command) { done.and_then(out::all_written) } else { done };
    if runs_no_job(&cli.command) { done.map_err(Failed::of_a_look) } else { done }
}

/// Whether the command was typed for its output: it fails if the output cannot be written.
fn prints(command: &Command) -> bool {
    use Command::{
        Check, Completions, Doctor, Fence, Forget, Guard, Help, History, Man, Metrics, Plan, Stats, Status,
        Uninstall, Why,
    };
    matches!(
        command,
        Check(_)
            | Completions(_)
            | Doctor(_)
            | Fence(_)
            | Forget(_)
            | Guard(_)
            | Help(_)
            | History(_)
            | Man(_)
            | Metrics(_)
            | Plan(_)
            | Stats(_)
            | Status(_)
            | Uninstall(_)
            | Why(_)
    )
}

/// Whether the command could not have run a job: its failures need not say that nothing was run.
fn runs_no_job(command: &Command) -> bool {
    use Command::{Check, Doctor, History, Metrics, Pause, Resume, Retry, Stats, Status, Why};
    matches!(
        command,
        Check(_)
            | Doctor(_)
            | History(_)
            | Metrics(_)
            | Pause(_)
            | Resume(_)
            | Retry(_)
            | Stats(_)
            | Status(_)
            | Why(_)
    )
}

fn carry_out(cli: &Cli, out: &Out) -> Result<u8, Failed> {
    let flags = &cli.everywhere;
    match &cli.command {
        Command::Run(args) => run::run(flags, args, out),
        Command::Once(args) => once::run(flags, args, out),
        Command::History(args) => history::run(flags, args, out),
        Command::Why(args) => why::run(flags, args, out),
        Command::Daemon(args) => daemon::daemon(flags, args, out),
        Command::Tick(args) => daemon::tick(flags, args, out),
        Command::Check(args) => check::run(flags, args, out),
        Command::Stats(args) => stats::run(flags, args, out),
        Command::Metrics(args) => metrics::run(flags, args, out),
        Command::Trigger(args) => trigger::run(flags, args, out),
        Command::Plan(args) => plan::run(flags, args, out),
        Command::Pause(args) => pause::run(flags, args, pause::Verb::Pause, out),
        Command::Resume(args) => pause::run(flags, args, pause::Verb::Resume, out),
        Command::Step(args) => step::run(args, out),
        Command::Retry(args) => retry::run(flags, args, out),
        Command::Write(args) => write::run(args, out),
        Command::Push(args) => push::run(args, out),
        Command::Read(args) => read::run(args, out),
        Command::Gate(args) => gate::run(flags, args, out),
        Command::Fence(args) => fence::run(flags, args, out),
        Command::Guard(args) => guard::run(args, out),
        Command::Status(args) => status::run(flags, args, out),
        Command::Doctor(args) => doctor::run(flags, args, out),
        Command::Acquire(args) => manual::acquire(flags, args, out),
        Command::Renew(args) => manual::renew(flags, args, out),
        Command::Release(args) => manual::release(flags, args, out),
        Command::Break(args) => break_::run(flags, args, out),
        Command::Adopt(args) => adopt::run(flags, args, out),
        Command::Forget(args) => forget::run(flags, args, out),
        Command::Uninstall(args) => uninstall::run(flags, args, out),
        Command::Use(args) => use_::run(flags, args, out),
        #[cfg(feature = "http")]
        Command::Serve(args) => serve::run(flags, args, out),
        Command::RunSlot(_) => run::slot(),
        Command::Demo(args) if args.git => demo::git::run(out),
        Command::Demo(_) => demo::run(out),
        Command::DemoActor(args) => demo::actor::run(args),
        Command::Help(args) => help::help(args),
        Command::Completions(args) => Ok(help::completions(args)),
        Command::Man(args) => help::man(args),
    }
}
