//! `leasehold gate RESOURCE -- CMD`: a command that begins only while our token is current there.

use leasehold::runner::lookup::lookup;
use leasehold::runner::plain;
use leasehold::state::StateDir;
use leasehold::targets::gate::GateTarget;

use super::targets;
use crate::args::Gate;
use crate::config;
use crate::exit::Failed;
use crate::out::Out;

/// Where a gate lies, with or without `gate:` before it: what begins with `/` or `.` is a path, and anything
/// else a name, in the state directory.
pub fn place(resource: &str, state: &StateDir) -> Result<String, Failed> {
    let given = resource.strip_prefix("gate:").unwrap_or(resource);
    if given.starts_with(['/', '.']) {
        return Ok(std::path::absolute(given).map_or(given.into(), |path| path.display().to_string()));
    }
    let name = super::name(given)?;
    let dir = state.gates().map_err(|e| Failed::config(e.to_string()))?;
    Ok(dir.join(name.as_str().replace('/', "=")).display().to_string())
}

/// Runs it; the exit code is its own, or 76.
pub fn run(args: &Gate, out: &Out) -> Result<u8, Failed> {
    let bearer = targets::enclosing("gate")?;
    let program = lookup(&args.command[0], std::env::var_os("PATH").as_deref())
        .map_err(|e| Failed::new(e.exit_code(), "command", format!("{e}. Nothing was run.")))?;
    let path = place(&args.resource, &config::state_dir()?)?;
    let mut gate = GateTarget::open(&path).map_err(|error| targets::failed(&error))?;
    let (inside, entered) = gate.enter(&bearer).map_err(|error| targets::failed(&error))?;
    if let Some(refused) = &entered.let_in {
        out.warn(&format!("this command {}", targets::let_in(refused)));
    }
    let refused = |e: std::io::Error| Failed::new(126, "command", format!("{e}. Nothing was run."));
    // What outlives the command stays inside: the next start waits for it.
    inside.inherited().map_err(refused)?;
    let mut child = plain::start(&program, &args.command[1..], |_| {}).map_err(refused)?;
    child.wait().map(plain::code).map_err(refused)
}
