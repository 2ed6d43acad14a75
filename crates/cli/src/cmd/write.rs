//! `leasehold write TARGET`: a file, a tree or an object, fenced.

use std::fs::File;
use std::io;
use std::path::Path;

use leasehold::core::fence::Bearer;
use leasehold::targets::{Content, Target, Written};
use leasehold::text::masked;
use serde_json::json;

use super::targets;
use crate::args::Write;
use crate::exit::{self, Failed};
use crate::out::Out;

/// Writes it as part of the run that we are in.
pub fn run(args: &Write, out: &Out) -> Result<u8, Failed> {
    let bearer = targets::enclosing("write")?;
    let mut target = targets::opened(&args.target)?;
    let written = put(target.as_mut(), &bearer, args.from.as_deref());
    let written = written.inspect_err(|failed| told(args, &bearer, Err(failed), out))?;
    told(args, &bearer, Ok(&written), out);
    if let Some(refused) = &written.let_in {
        out.warn(&format!("this write {}", targets::let_in(refused)));
    } else if written.repeat {
        out.chat(&format!("{} had this write already (number {})", target.shown(), written.seq));
    } else {
        out.chat(&format!("wrote {} (token {}, write {})", target.shown(), bearer.token, written.seq));
    }
    Ok(exit::OK)
}

fn put(target: &mut dyn Target, bearer: &Bearer, from: Option<&Path>) -> Result<Written, Failed> {
    let unreadable = |path: &Path, e: io::Error| {
        let shown = path.display();
        Failed::new(exit::USAGE, "from", format!("cannot read {shown}: {e}. Nothing was written"))
    };
    let written = match from {
        None => target.write(bearer, None, Content::Stream(&mut io::stdin().lock())),
        Some(path) if path.is_dir() => target.write(bearer, None, Content::Directory(path)),
        Some(path) => {
            let mut file = File::open(path).map_err(|e| unreadable(path, e))?;
            target.write(bearer, None, Content::Stream(&mut file))
        }
    };
    written.map_err(|error| targets::failed(&error))
}

/// The outcome in the words of history, for whoever asked for JSON.
fn told(args: &Write, bearer: &Bearer, result: Result<&Written, &Failed>, out: &Out) {
    if !out.json {
        return;
    }
    let mut value = json!({
        "v": 1,
        "target": masked(&args.target),
        "lease": bearer.lease.as_str(),
        "token": bearer.token.get(),
    });
    match result {
        Ok(written) => {
            value["outcome"] = "accepted".into();
            value["seq"] = written.seq.into();
            if let Some(refused) = &written.let_in {
                value["would_refuse"] = refused.reason.word().into();
            }
        }
        Err(failed) => {
            let outcome = match failed.code {
                exit::REFUSED => "refused",
                exit::NEEDS_YOU => "unknown",
                _ => "failed",
            };
            value["outcome"] = outcome.into();
            value["reason"] = failed.word.into();
        }
    }
    out.object(&value);
}
