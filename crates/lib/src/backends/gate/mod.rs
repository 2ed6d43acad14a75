//! Gates: targets under which commands are run.

mod target;

pub use self::target::{ALL, GateTarget, Gates, HOLDS_NOTHING, NoContent, PREFIX, StoreGate};
use super::{AsTarget, Backend, Scheme, whole_path};
use crate::targets::TargetError;

const SCHEME: &str = "gate";

/// Its entry in the list of backends.
pub(super) const BACKEND: Backend = Backend {
    show: str::to_owned,
    variables: &[],
    store: None,
    target: Some(AsTarget {
        // By its name it is in the store that is in use then.
        anywhere: |shown| if named(shown).is_some() { Some(shown.into()) } else { whole_path(shown) },
        holds_content: false,
        name_in_store: named,
        ..AsTarget::new(&[Scheme { name: SCHEME, example: "gate:NAME" }], |url, path| match named(url) {
            None => Ok(Box::new(GateTarget::open(path)?)),
            // A file of that name in the current directory would stop no other run.
            Some(_) => Err(TargetError::Unfit {
                target: url.into(),
                why: "is a gate in the store of a lease, and no store was given".into(),
                fix: "Name it when you start the run: leasehold run NAME --fence gate:NAME".into(),
            }),
        })
    }),
};

/// The URL of the gate with this name or path.
pub fn url(given: &str) -> String {
    format!("{SCHEME}:{given}")
}

/// The name or path in the URL of a gate.
pub fn given(url: &str) -> Option<&str> {
    url.split_once(':').filter(|(scheme, _)| *scheme == SCHEME).map(|(_, given)| given)
}

/// The name in `gate:NAME`. A text that begins with `/` or `.` is a path.
pub fn named(url: &str) -> Option<&str> {
    given(url).filter(|given| !given.starts_with(['/', '.']))
}
