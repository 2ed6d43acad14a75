//! The two documents of a target, and the commit that replaces both.

use leasehold_core::ids::WriteId;
use reqwest::Method;
use serde_json::{Value, json};

use crate::backends::firestore::config::Config;
use crate::backends::firestore::connection::FirestoreConnection;
use crate::backends::firestore::{emulator, response, wire};
use crate::stores::{Cas, Failure, Version};

/// The field of a fence document with the fence.
const FENCE: &str = "fence";
/// The field of the user's document with the content. Its other fields are not changed.
const CONTENT: &str = "content";

/// The full names of a target's two documents.
#[derive(Debug)]
pub(super) struct Documents {
    pub fence: String,
    pub content: String,
}

/// A field of a document, with the document's version.
pub(super) struct Document {
    /// None if the field is missing, or has another type.
    pub bytes: Option<Vec<u8>>,
    pub version: Version,
}

impl Documents {
    /// The documents that a URL names, and a connection. Contacts nothing yet.
    pub fn of(url: &str) -> Result<(FirestoreConnection, Self), String> {
        let (config, id) = Config::of_document(url, emulator().as_deref())?;
        let content = config.document(&id);
        // Below the document, so that no query of the user's collection returns it.
        let fence = format!("{content}/leasehold/fence");
        Ok((FirestoreConnection::new(config), Self { fence, content }))
    }
}

impl FirestoreConnection {
    /// The fence document.
    pub(super) async fn fence(&mut self, documents: &Documents) -> Result<Option<Document>, Failure> {
        self.document(&documents.fence, FENCE).await
    }

    /// The user's document.
    pub(super) async fn content(&mut self, documents: &Documents) -> Result<Option<Document>, Failure> {
        self.document(&documents.content, CONTENT).await
    }

    async fn document(&mut self, name: &str, field: &str) -> Result<Option<Document>, Failure> {
        let path = format!("{}/documents:batchGet", self.config.database);
        let good = self.ask(Method::POST, &path, Some(&json!({ "documents": [name] }))).await?;
        for part in good.as_array().into_iter().flatten() {
            if let Some(found) = part.get("found") {
                let version = found["updateTime"].as_str();
                let version = version.ok_or_else(|| response::puzzling(&self.config))?;
                let bytes = wire::bytes(&found["fields"][field]);
                return Ok(Some(Document { bytes, version: Version(version.into()) }));
            }
            if part["missing"].as_str().is_some_and(|missing| wire::within(missing) == wire::within(name)) {
                return Ok(None);
            }
        }
        Err(response::puzzling(&self.config))
    }

    /// Replaces the fence in one commit, if it still has the version `expected`, and the content if there is one.
    pub(super) async fn swap(
        &mut self,
        documents: &Documents,
        expected: Option<&Version>,
        write: WriteId,
        fence: &[u8],
        content: Option<&[u8]>,
    ) -> Cas {
        let fields = json!({
            FENCE: wire::value(fence),
            // A commit that changes nothing keeps `updateTime`. Then two writers with the same expected version could
            // both succeed.
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
            Ok(_) => Cas::Unknown(response::puzzling(&self.config)),
            Err(cas) => cas,
        }
    }
}
