//! From the command line to the command.

use super::*;
use crate::args::{Cli, Command};
use crate::out::{self, Out};

/// The command that was typed; its exit code.
pub fn dispatch(cli: &Cli, out: &Out) -> Result<u8, Failed> {
    let flags = &cli.everywhere;
    match &cli.command {
        Command::Run(args) => run::run(flags, args, out),
        Command::Once(args) => once::run(flags, args, out),
        Command::History(args) => {
            history::run(flags, args, out).and_then(out::all_written).map_err(Failed::of_a_look)
        }
        Command::Why(args) => {
            why::run(flags, args, out).and_then(out::all_written).map_err(Failed::of_a_look)
        }
        Command::Daemon(args) => daemon::daemon(flags, args, out),
        Command::Tick(args) => daemon::tick(flags, args, out),
        Command::Plan(args) => plan::run(flags, args, out).and_then(out::all_written),
        Command::Pause(args) => pause::run(flags, args, true, out).map_err(Failed::of_a_look),
        Command::Resume(args) => pause::run(flags, args, false, out).map_err(Failed::of_a_look),
        Command::Step(args) => step::run(args, out),
        Command::Retry(args) => retry::run(flags, args, out).map_err(Failed::of_a_look),
        Command::Write(args) => write::run(args, out),
        Command::Push(args) => push::run(args, out),
        Command::Read(args) => read::run(args, out),
        Command::Gate(args) => gate::run(flags, args, out),
        Command::Fence(args) => fence::run(flags, args, out).and_then(out::all_written),
        Command::Guard(args) => guard::run(args, out).and_then(out::all_written),
        Command::Status(args) => {
            status::run(flags, args, out).and_then(out::all_written).map_err(Failed::of_a_look)
        }
        Command::Doctor(args) => {
            doctor::run(flags, args, out).and_then(out::all_written).map_err(Failed::of_a_look)
        }
        Command::Acquire(args) => manual::acquire(flags, args, out),
        Command::Renew(args) => manual::renew(flags, args, out),
        Command::Release(args) => manual::release(flags, args, out),
        Command::Break(args) => break_::run(flags, args, out),
        Command::Adopt(args) => adopt::run(flags, args, out),
        Command::Use(args) => use_::run(flags, args, out),
        #[cfg(feature = "http")]
        Command::Serve(args) => serve::run(flags, args, out),
        Command::RunSlot(_) => run::slot(),
        Command::Demo(args) if args.git => demo::git::run(out),
        Command::Demo(_) => demo::run(out),
        Command::DemoActor(args) => demo::actor::run(args),
        Command::Help(args) => help::help(args).and_then(out::all_written),
        Command::Completions(args) => out::all_written(help::completions(args)),
        Command::Man(args) => help::man(args).and_then(out::all_written),
    }
}
