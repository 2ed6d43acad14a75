//! The binary `leasehold`: arguments in, exit code out. See `ARCHITECTURE.md` for the walk of one lease.

mod args;
mod cmd;
mod config;
mod exit;
mod messages;
mod notify;
mod out;
mod report;
mod timeline;

use std::process::ExitCode;

use out::Out;

fn main() -> ExitCode {
    // `ulimit -f` must not end this process in the middle of a write: the job would go on without it.
    leasehold_run::runner::spawn::outlive_full_files();
    if let Some(code) = cmd::push::as_helper() {
        return ExitCode::from(code);
    }
    let cli = match args::parse() {
        Ok(cli) => cli,
        Err(error) => return ExitCode::from(cmd::help::usage(error)),
    };
    let out = Out::new(&cli.everywhere);
    match cmd::dispatch::dispatch(&cli, &out) {
        Ok(code) => ExitCode::from(code),
        Err(failed) => {
            out.fail(&failed);
            ExitCode::from(failed.code())
        }
    }
}
