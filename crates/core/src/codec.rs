//! What the bodies of all records have in common: a limit, a format number, and a place for additions.

use alloc::format;
use alloc::string::{String, ToString};

use serde::Deserialize;

use crate::additions::{self, Additions};

/// The format number alone, so that a later version is recognised even with unknown fields.
#[derive(Deserialize)]
struct Format {
    #[serde(
        alias = "leasehold_fence",
        alias = "leasehold_item",
        alias = "leasehold_job",
        alias = "leasehold_log"
    )]
    leasehold: u64,
}

/// Decodes a body of at most so many bytes, up to this format. `parts`: its format number and its additions.
/// `newer` and `damaged`: the error for a later format, and for a body that another program wrote.
pub(crate) fn decode<'a, W: Deserialize<'a>, E>(
    body: &'a [u8],
    (most, newest): (usize, u64),
    parts: impl Fn(&W) -> (u64, &Additions),
    newer: fn(u64) -> E,
    damaged: fn(String) -> E,
) -> Result<W, E> {
    if body.len() > most {
        return Err(damaged(format!("more than {most} bytes long")));
    }
    let wire: W = match serde_json::from_slice(body) {
        Ok(wire) => wire,
        Err(e) => {
            let format = serde_json::from_slice(body).map_or(newest, |format: Format| format.leasehold);
            return Err(if format > newest { newer(format) } else { damaged(e.to_string()) });
        }
    };
    match parts(&wire) {
        (format, _) if format > newest => Err(newer(format)),
        (0, _) => Err(damaged("unknown format 0".into())),
        (format, more) if !additions::fits(format, more) => Err(damaged(additions::UNFIT.into())),
        _ => Ok(wire),
    }
}
