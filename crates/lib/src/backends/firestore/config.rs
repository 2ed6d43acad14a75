//! Reads a URL: a Firestore collection, and its server.

use super::shown;
use crate::backends::remote::is_here;
use crate::text::did_you_mean;

/// Google's endpoint for every database.
const GOOGLE: &str = "https://firestore.googleapis.com";

/// The default database of a project.
const DEFAULT_DATABASE: &str = "(default)";

const PARAMETERS: &[&str] = &["database", "endpoint"];

/// One collection of one database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Config {
    /// The URL as it may be shown.
    pub shown: String,
    /// `projects/P/databases/D`.
    pub database: String,
    /// The parent of the collection: the database's documents, or one document.
    pub parent: String,
    /// The collection's own name.
    pub collection: String,
    /// The scheme and host of the server.
    pub endpoint: String,
    /// Google's emulator, or a replacement for it on this machine, which gets no credentials.
    pub emulator: bool,
}

impl Config {
    /// Reads `firestore://PROJECT/COLLECTION?database=D&endpoint=URL`. `emulator` is the value of
    /// `FIRESTORE_EMULATOR_HOST`. The error is a sentence that repeats no value of the URL, because it may be a
    /// secret.
    pub fn parse(url: &str, emulator: Option<&str>) -> Result<Self, String> {
        let rest = url.strip_prefix("firestore://").ok_or_else(|| shape("has no \"//\" after the colon"))?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (project, path) = place.split_once('/').unwrap_or((place, ""));
        if !plain(project, "-._:") {
            return Err(shape("does not begin with a project id"));
        }
        let segments: Vec<&str> = path.strip_suffix('/').unwrap_or(path).split('/').collect();
        // In the path, collections and documents alternate.
        if segments.len().is_multiple_of(2) || !segments.iter().all(|name| usable(name)) {
            return Err(shape("names no collection after the project id"));
        }
        let (mut database, mut endpoint) = (DEFAULT_DATABASE, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=').unwrap_or((pair, "")) {
                ("database", name) if plain(name, "-()") => database = name,
                ("database", _) => return Err(shape("has a database= that cannot be a database id")),
                ("endpoint", server) => endpoint = Some(server),
                (other, _) => return Err(unknown(other)),
            }
        }
        let (endpoint, emulator) = match (endpoint, emulator.filter(|host| !host.is_empty())) {
            (Some(server), _) => server_of(server)?,
            (None, Some(host)) => (emulator_at(host)?, true),
            (None, None) => (GOOGLE.into(), false),
        };
        let database = format!("projects/{project}/databases/{database}");
        let (collection, above) = segments.split_last().expect("a split gives at least one part");
        let parent = above.iter().fold(format!("{database}/documents"), |path, name| path + "/" + name);
        Ok(Self { shown: shown(url), database, parent, collection: (*collection).into(), endpoint, emulator })
    }

    /// Reads `firestore://PROJECT/COLLECTION/DOCUMENT` in the same way, and returns the document's id too.
    pub fn of_document(url: &str, emulator: Option<&str>) -> Result<(Self, String), String> {
        let problem = || {
            "The Firestore URL names no document. Write firestore://PROJECT/COLLECTION/DOCUMENT, with ?database=ID if needed."
                .to_owned()
        };
        let (place, query) = url.split_at(url.find('?').unwrap_or(url.len()));
        let (collection, id) = place.rsplit_once('/').ok_or_else(problem)?;
        if !usable(id) || collection.ends_with('/') {
            return Err(problem());
        }
        let config = Self::parse(&format!("{collection}{query}"), emulator)
            .map_err(|why| if collection.matches('/').count() < 3 { problem() } else { why })?;
        Ok((Self { shown: shown(url), ..config }, id.into()))
    }

    /// The full name of one document.
    pub fn document(&self, id: &str) -> String {
        format!("{}/{}/{id}", self.parent, self.collection)
    }
}

fn shape(problem: &str) -> String {
    format!("The Firestore URL {problem}. Write firestore://PROJECT/COLLECTION, with ?database=ID if needed.")
}

fn unknown(parameter: &str) -> String {
    let meant = did_you_mean(parameter, PARAMETERS).map_or(String::new(), |p| format!(" Did you mean {p}=?"));
    format!("The Firestore URL has an unknown parameter.{meant} Known: {}.", PARAMETERS.join(", "))
}

/// Letters, digits and some `others`, at least one.
fn plain(name: &str, others: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || others.contains(c))
}

/// Whether it can be the name of a collection or a document, and needs no encoding in a request's path.
fn usable(name: &str) -> bool {
    let reserved = name.len() >= 4 && name.starts_with("__") && name.ends_with("__");
    !name.is_empty()
        && !reserved
        && name != "."
        && name != ".."
        && name.len() <= 400
        && !name.contains([':', '#', '%', '\\', '@', '&'])
        && !name.contains(char::is_control)
}

/// The server of `endpoint=`, and whether it is on this machine.
fn server_of(text: &str) -> Result<(String, bool), String> {
    let wrong = || {
        "The endpoint= of the Firestore URL is not the address of a server. Write endpoint=https://HOST, or endpoint=http://127.0.0.1:PORT for one on this machine.".to_owned()
    };
    let url = reqwest::Url::parse(text).map_err(|_| wrong())?;
    let host = url.host_str().unwrap_or_default();
    let bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
    if host.is_empty() || !bare || !url.username().is_empty() || url.password().is_some() {
        return Err(wrong());
    }
    let here = is_here(host);
    match url.scheme() {
        "https" => {}
        "http" if here => {}
        "http" => {
            return Err(
                "The endpoint= of the Firestore URL is http:// to another machine, so credentials would cross the network without encryption. Write endpoint=https://HOST.".into(),
            );
        }
        _ => return Err(wrong()),
    }
    Ok((url.as_str().trim_end_matches('/').to_owned(), here))
}

fn emulator_at(host: &str) -> Result<String, String> {
    let server = format!("http://{}", host.trim_start_matches("http://").trim_end_matches('/'));
    match reqwest::Url::parse(&server) {
        Ok(url) if url.path() == "/" && url.host_str().is_some() && url.username().is_empty() => Ok(server),
        _ => {
            Err("FIRESTORE_EMULATOR_HOST is not HOST:PORT. Correct it, or unset it to use Google's servers."
                .into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_collection() {
        let a = Config::parse("firestore://demo/leases", None).unwrap();
        assert_eq!(a.document("x"), "projects/demo/databases/(default)/documents/leases/x");
        assert_eq!((a.endpoint.as_str(), a.emulator), (GOOGLE, false));
        let a = Config::parse("firestore://example.com:demo/a/b/c/?database=ops-1", Some("")).unwrap();
        assert_eq!(a.parent, "projects/example.com:demo/databases/ops-1/documents/a/b");
        assert_eq!((a.collection.as_str(), a.emulator), ("c", false));
    }

    #[test]
    fn servers_on_this_machine_stand_in_for_the_emulator() {
        let to = |url: &str, host| Config::parse(url, host).map(|a| (a.endpoint, a.emulator));
        let url = "firestore://demo/leases";
        assert_eq!(to(url, Some("localhost:8080")), Ok(("http://localhost:8080".into(), true)));
        assert_eq!(to(url, Some("http://emu:1/")), Ok(("http://emu:1".into(), true)));
        for (server, here) in [
            ("http://127.0.0.1:9", true),
            ("http://[::1]:9", true),
            ("https://localhost:9", true),
            ("https://eu.example", false),
        ] {
            let with = format!("{url}?endpoint={server}");
            assert_eq!(to(&with, Some("other:1")), Ok((server.to_owned(), here)));
        }
        for bad in
            ["http://db.example", "ftp://127.0.0.1", "https://u:secret@h", "https://h/secret", "secret", ""]
        {
            let message = to(&format!("{url}?endpoint={bad}"), None).unwrap_err();
            assert!(message.ends_with('.') && !message.contains("secret"), "{message}");
        }
        assert!(to(url, Some("a b/c")).unwrap_err().contains("FIRESTORE_EMULATOR_HOST"));
    }

    #[test]
    fn wrong_urls_say_what_would_do_and_repeat_no_value() {
        for bad in [
            "firestore:secret",
            "firestore://",
            "firestore://demo",
            "firestore://demo/",
            "firestore://demo/leases/secret",
            "firestore://demo//secret/x",
            "firestore://demo/__secret__",
            "firestore://demo/a%2fsecret",
            "firestore://user:secret@demo/leases",
            "firestore://demo/leases?database=",
            "firestore://demo/leases?databse=secret",
            "firestore://demo/leases?password=secret",
        ] {
            let message = Config::parse(bad, None).unwrap_err();
            assert!(message.ends_with('.') && !message.contains("secret"), "{bad}: {message}");
        }
        let message = Config::parse("firestore://demo/leases?databse=x", None).unwrap_err();
        assert!(message.contains("Did you mean database=?"), "{message}");
    }
}
