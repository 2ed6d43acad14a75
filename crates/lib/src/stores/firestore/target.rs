//! What a target in Firestore needs of this store: its connection, its answers, its words.

use leasehold_core::ids::WriteId;
use reqwest::Method;
use serde_json::{Value, json};

use super::address::Address;
use super::{Cas, EMULATOR, Failure, FirestoreStore, Version, answer, wire, within};

/// The field of a fence document that holds the fence.
const FENCE: &str = "fence";
/// The field of the user's document that holds the content; its other fields are left alone.
const CONTENT: &str = "content";

/// The two documents of a target, by their full names.
pub(crate) struct Documents {
    pub fence: String,
    pub content: String,
}

/// A field of a document, with the document's version.
pub(crate) struct Document {
    /// Nothing: the field is missing, or of another type.
    pub bytes: Option<Vec<u8>>,
    pub version: Version,
}

impl FirestoreStore {
    /// The database of a target, and its documents. Reaches nothing yet.
    pub(crate) fn for_target(url: &str) -> Result<(Self, Documents), String> {
        let emulator = std::env::var(EMULATOR).ok();
        let (address, id) = Address::of_document(url, emulator.as_deref())?;
        let content = address.document(&id);
        // Below the document: no query of the user's collection ever sees it.
        let fence = format!("{content}/leasehold/fence");
        Ok((Self { address, access: None }, Documents { fence, content }))
    }

    /// The URL as it may be shown.
    pub(crate) fn shown(&self) -> &str {
        &self.address.shown
    }

    /// The database, and where it is.
    pub(crate) fn server(&self) -> String {
        format!("{} {}", self.address.database, self.address.endpoint)
    }

    /// The fence document.
    pub(crate) async fn fence(&mut self, documents: &Documents) -> Result<Option<Document>, Failure> {
        self.document(&documents.fence, FENCE).await
    }

    /// The user's document.
    pub(crate) async fn content(&mut self, documents: &Documents) -> Result<Option<Document>, Failure> {
        self.document(&documents.content, CONTENT).await
    }

    async fn document(&mut self, name: &str, field: &str) -> Result<Option<Document>, Failure> {
        let path = format!("{}/documents:batchGet", self.address.database);
        let good = self.ask(Method::POST, &path, Some(&json!({ "documents": [name] }))).await?;
        for part in good.as_array().into_iter().flatten() {
            if let Some(found) = part.get("found") {
                let version = found["updateTime"].as_str();
                let version = version.ok_or_else(|| answer::puzzling(&self.address))?;
                let bytes = wire::bytes(&found["fields"][field]);
                return Ok(Some(Document { bytes, version: Version(version.into()) }));
            }
            if part["missing"].as_str().is_some_and(|missing| within(missing) == within(name)) {
                return Ok(None);
            }
        }
        Err(answer::puzzling(&self.address))
    }

    /// One commit: the fence, if it is still at `expected`, and with it the content if there is any.
    pub(crate) async fn swap(
        &mut self,
        documents: &Documents,
        expected: Option<&Version>,
        write: WriteId,
        fence: &[u8],
        content: Option<&[u8]>,
    ) -> Cas {
        let fields = json!({
            FENCE: wire::value(fence),
            // A commit that changes nothing keeps `updateTime`, and two writers off one version could both
            // be told that they won.
            "write": { "stringValue": write.to_string() },
        });
        let fence = json!({
            "update": { "name": documents.fence, "fields": fields },
            "currentDocument": wire::condition(expected),
        });
        let content = content.map(|content| {
            json!({
                "update": { "name": documents.content, "fields": { CONTENT: wire::value(content) } },
                "updateMask": { "fieldPaths": [CONTENT] },
            })
        });
        let writes: Vec<Value> = [Some(fence), content].into_iter().flatten().collect();
        match self.commit_all(&writes, expected.is_none()).await {
            Ok((results, time)) if results.len() == writes.len() => self.written(&results[0], expected, time),
            Ok(_) => Cas::Unknown(answer::puzzling(&self.address)),
            Err(cas) => cas,
        }
    }
}
