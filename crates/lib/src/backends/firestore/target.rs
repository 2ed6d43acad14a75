//! One document in Firestore as a target: `firestore://PROJECT/COLLECTION/DOCUMENT`.
//!
//! The content is the field `content` of that document: a string if it is text, otherwise bytes. The fence is a
//! document below it, `leasehold/fence`, which no query of the collection returns. One atomic commit replaces the
//! fence, if its `updateTime` is still the one that was read, and sets the content. The fence document changes
//! with every commit.

mod documents;

#[cfg(feature = "conformance")]
use std::time::Duration;

use leasehold_core::fence_record::FenceRecord;
use leasehold_core::ids::WriteId;
use leasehold_core::store::{Cas, Version};

use self::documents::{Document, Documents};
use super::connection::FirestoreConnection;
use super::shown;
use crate::random;
use crate::targets::TargetError;
use crate::targets::cas_fence::{self, CasFence, Swap};
use crate::targets::deadline::{Networked, Server};

/// A document may have 1 MiB with its field names, so this leaves room for them.
pub const LARGEST: usize = 1_000_000;
/// A time before Firestore existed, so no document has it.
const LONG_AGO: &str = "2000-01-01T00:00:00.000000Z";

/// A document that only the holder of a lease may change.
#[derive(Debug)]
pub struct FirestoreTarget {
    server: Server<FirestoreConnection>,
    documents: Documents,
}

impl FirestoreTarget {
    /// The document that `url` names. Contacts nothing.
    pub fn open(url: &str) -> Result<Self, TargetError> {
        let (connection, documents) = Documents::of(url).map_err(|fix| TargetError::Unfit {
            target: shown(url),
            why: "cannot be a target".into(),
            fix,
        })?;
        let config = &connection.config;
        let (shown, name) = (config.shown.clone(), format!("{} {}", config.database, config.endpoint));
        Ok(Self { server: Server::new(connection, shown, name), documents })
    }

    /// Waits this long for one call, and for all calls of one verb.
    #[cfg(feature = "conformance")]
    #[must_use]
    pub fn with_patience(mut self, each: Duration, all: Duration) -> Self {
        self.server.calls.limit(each, all);
        self
    }

    fn bad_fence(&self, why: &str) -> TargetError {
        let name = self.documents.fence.split_once("/documents/").map_or("", |(_, name)| name);
        let fence = format!("the document {name}");
        TargetError::BadFence { target: self.server.shown.clone(), fence, why: why.into() }
    }
}

impl CasFence for FirestoreTarget {
    type Content = [u8];

    fn shown(&self) -> &str {
        &self.server.shown
    }

    fn load(&mut self) -> Result<Option<(FenceRecord, Version)>, TargetError> {
        let documents = &self.documents;
        let found = self.server.calls.call(0, async |store| store.fence(documents).await, Err);
        let found = found.map_err(|f| self.server.failed("read the fence of", f))?;
        let Some(Document { bytes, version }) = found else { return Ok(None) };
        let record = FenceRecord::decode(&bytes.unwrap_or_default());
        Ok(Some((record.map_err(|bad| self.bad_fence(&bad.to_string()))?, version)))
    }

    fn swap(
        &mut self,
        at: Option<&Version>,
        record: &FenceRecord,
        content: Option<&[u8]>,
    ) -> Result<Swap, TargetError> {
        let (documents, fence) = (&self.documents, record.encode());
        let write = WriteId(random::seed());
        let work =
            async |store: &mut FirestoreConnection| store.swap(documents, at, write, &fence, content).await;
        Ok(self.server.calls.call(content.map_or(0, <[u8]>::len), work, Cas::Unknown).into())
    }

    fn examine(&mut self) -> Result<Swap, TargetError> {
        cas_fence::refuses(self, &Version(LONG_AGO.into()))
    }
}

impl Networked for FirestoreTarget {
    const KIND: &'static str = "document";
    const MOST: usize = LARGEST;

    fn server_name(&self) -> &str {
        &self.server.name
    }

    fn begin(&mut self, bytes: usize) {
        self.server.calls.begin(bytes);
    }

    fn fetch(&mut self) -> Result<Vec<u8>, TargetError> {
        let documents = &self.documents;
        let found = self.server.calls.call(LARGEST, async |store| store.content(documents).await, Err);
        let found = found.map_err(|f| self.server.failed("read", f))?;
        let Some(bytes) = found.and_then(|document| document.bytes) else {
            return Err(TargetError::Unfit {
                target: self.server.shown.clone(),
                why: "has no field named content that is text or bytes".into(),
                fix: "Run the job that writes it".into(),
            });
        };
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_document() {
        let target =
            FirestoreTarget::open("firestore://demo/site/today?endpoint=http://127.0.0.1:1").unwrap();
        assert_eq!(target.documents.content, "projects/demo/databases/(default)/documents/site/today");
        assert!(target.documents.fence.ends_with("/documents/site/today/leasehold/fence"));
        for url in [
            "firestore:",
            "firestore://demo",
            "firestore://demo/site",
            "firestore://demo/site/",
            "firestore://demo/site/..",
            "firestore://demo/a/b/c",
            "firestore://demo/site/today?colour=s3cret",
        ] {
            let said = FirestoreTarget::open(url).expect_err(url).to_string();
            assert!(said.contains("Nothing was written") && said.contains("Firestore URL"), "{url}: {said}");
        }
    }
}
