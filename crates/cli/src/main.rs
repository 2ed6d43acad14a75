//! The binary `leasehold`: arguments in, exit code out. See `ARCHITECTURE.md` for the walk of one lease.

mod args;
mod cmd;
mod config;
mod duration;
mod exit;
mod out;
mod report;

use std::process::ExitCode;

use args::{Cli, Command};
use clap::Parser;
use exit::Failed;
use out::Out;

fn main() -> ExitCode {
    if let Some(code) = cmd::push::as_helper() {
        return ExitCode::from(code);
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return ExitCode::from(cmd::help::usage(&error)),
    };
    let out = Out::new(&cli.everywhere);
    match dispatch(&cli, &out) {
        Ok(code) => ExitCode::from(code),
        Err(failed) => {
            out.fail(&failed);
            ExitCode::from(failed.code)
        }
    }
}

fn dispatch(cli: &Cli, out: &Out) -> Result<u8, Failed> {
    let flags = &cli.everywhere;
    match &cli.command {
        Command::Run(args) => cmd::run::run(flags, args, out),
        Command::Write(args) => cmd::write::run(args, out),
        Command::Push(args) => cmd::push::run(args, out),
        Command::Read(args) => cmd::read::run(args),
        Command::Gate(args) => cmd::gate::run(args, out),
        Command::Fence(args) => cmd::fence::run(args, out).and_then(out::all_written),
        #[cfg(any(feature = "postgres", feature = "sqlite"))]
        Command::Guard(args) => cmd::guard::run(args, out).and_then(out::all_written),
        Command::Status(args) => {
            cmd::status::run(flags, args, out).and_then(out::all_written).map_err(Failed::of_a_look)
        }
        Command::Doctor(args) => {
            cmd::doctor::run(flags, args, out).and_then(out::all_written).map_err(Failed::of_a_look)
        }
        Command::Acquire(args) => cmd::by_hand::acquire(flags, args, out),
        Command::Renew(args) => cmd::by_hand::renew(flags, args, out),
        Command::Release(args) => cmd::by_hand::release(flags, args, out),
        Command::Break(args) => cmd::break_::run(flags, args, out),
        Command::Use(args) => cmd::use_::run(flags, args, out),
        #[cfg(feature = "http")]
        Command::Serve(args) => cmd::serve::run(flags, args, out),
        Command::Demo(args) if args.git => cmd::demo::git::run(out),
        Command::Demo(_) => cmd::demo::run(out),
        Command::DemoActor(args) => cmd::demo::actor::run(args),
        Command::Help(args) => cmd::help::help(args).and_then(out::all_written),
        Command::Completions(args) => out::all_written(cmd::help::completions(args)),
        Command::Man(args) => cmd::help::man(args).and_then(out::all_written),
    }
}
