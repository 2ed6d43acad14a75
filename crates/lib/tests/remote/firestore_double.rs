//! A small Firestore in this process, written from the public documentation of its REST API: exactly the
//! calls that the store makes, each one atomic. It can also misbehave on request.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};

/// One request as it came.
pub(crate) struct Request {
    pub(crate) line: String,
    pub(crate) authorization: String,
    pub(crate) content_type: String,
    pub(crate) body: Vec<u8>,
}

/// What a server does with a request.
pub(crate) enum Reply {
    /// Answers with this status and body.
    Answer(u16, String),
    /// Sends the caller elsewhere.
    Redirect(String),
    /// Closes the connection without a word.
    Close,
}

/// A server on loopback, a thread for each connection, until it is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    ended: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn new(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let ended = Arc::new(AtomicBool::new(false));
        let (answer, over) = (Arc::new(answer), Arc::clone(&ended));
        let accepting = thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                let (answer, Ok(stream)) = (Arc::clone(&answer), stream) else { continue };
                thread::spawn(move || while exchange(&stream, &*answer).is_some() {});
            }
        });
        Self { address, ended, accepting: Some(accepting) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
        let _ = self.accepting.take().unwrap().join();
    }
}

/// Reads one request and answers it. Nothing: the connection is done with.
fn exchange(stream: &TcpStream, answer: &dyn Fn(&Request) -> Reply) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    let mut request = Request {
        line: String::new(),
        authorization: String::new(),
        content_type: String::new(),
        body: vec![],
    };
    let mut length = 0;
    while reader.read_line(&mut line).ok()? > 0 && line != "\r\n" {
        let (name, value) = line.split_once(": ").unwrap_or((&line, ""));
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "authorization" => request.authorization = value.into(),
            "content-type" => request.content_type = value.into(),
            "content-length" => length = value.parse().ok()?,
            _ if request.line.is_empty() => request.line = line.trim().into(),
            _ => {}
        }
        line.clear();
    }
    request.body = vec![0; length];
    reader.read_exact(&mut request.body).ok()?;
    if request.line.is_empty() {
        return None;
    }
    let (status, body, more) = match answer(&request) {
        Reply::Answer(status, body) => (status, body, String::new()),
        Reply::Redirect(to) => (307, String::new(), format!("location: {to}\r\n")),
        Reply::Close => return None,
    };
    let head = format!("HTTP/1.1 {status} X\r\n{more}content-length: {}\r\n\r\n", body.len());
    (&mut &*stream).write_all((head + &body).as_bytes()).ok()
}

/// How the double deals with a write, once.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// The write lands and its answer is lost.
    LoseReply,
    /// The write never arrives.
    LoseRequest,
    /// The write lands when [`Double::land`] is called, long after its sender was cut off.
    LandLate,
    /// The write lands and its answer comes when [`Double::land`] is called.
    ReplyLate,
    /// This is answered and nothing is written.
    Say(u16, String),
}

/// What is wrong with a double for as long as it lives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Flaw {
    None,
    /// Writes whatever the condition.
    NoConditions,
    /// Looks at the condition first and writes later.
    CheckThenWrite,
    /// Takes the `write` field out of every document: as if the store did not send it.
    NoWriteField,
}

#[derive(Clone)]
struct Document {
    fields: Value,
    created: u64,
    updated: u64,
}

#[derive(Default)]
struct State {
    documents: BTreeMap<String, Document>,
    /// Microseconds; every commit is later than the last.
    last: u64,
    calls: Vec<String>,
    faults: VecDeque<Fault>,
    late: Vec<Value>,
    landed: usize,
}

struct Inner {
    state: Mutex<State>,
    landed: Condvar,
    flaw: Flaw,
}

/// A Firestore that keeps its documents in memory.
pub(crate) struct Double {
    inner: Arc<Inner>,
    server: Server,
}

impl Double {
    pub(crate) fn new(flaw: Flaw) -> Self {
        let inner = Arc::new(Inner { state: Mutex::default(), landed: Condvar::new(), flaw });
        let shared = Arc::clone(&inner);
        Self { inner, server: Server::new(move |request| shared.answer(request)) }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.server.address)
    }

    /// The next writes are dealt with like this, one each.
    pub(crate) fn fault(&self, fault: Fault) {
        self.inner.state.lock().unwrap().faults.push_back(fault);
    }

    /// Forgets the faults that hit nothing; how many there were.
    pub(crate) fn calm(&self) -> usize {
        std::mem::take(&mut self.inner.state.lock().unwrap().faults).len()
    }

    /// Executes all writes that are to land late, and sends all late answers.
    pub(crate) fn land(&self) {
        let mut state = self.inner.state.lock().unwrap();
        for commit in std::mem::take(&mut state.late) {
            drop(state.commit(&commit, Flaw::None));
        }
        state.landed += 1;
        self.inner.landed.notify_all();
    }

    /// The calls since the last time this was asked.
    pub(crate) fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.inner.state.lock().unwrap().calls)
    }
}

/// An error as the API words it.
pub(crate) fn error(code: u16, status: &str, message: &str) -> String {
    json!({ "error": { "code": code, "message": message, "status": status } }).to_string()
}

type Refusal = (u16, i64, &'static str);

const EXISTS: Refusal = (409, 6, "ALREADY_EXISTS");
const PRECONDITION: Refusal = (400, 9, "FAILED_PRECONDITION");
const NOT_FOUND: Refusal = (404, 5, "NOT_FOUND");
const INVALID: Refusal = (400, 3, "INVALID_ARGUMENT");

/// A time as the API writes it: RFC 3339 with microseconds.
fn told(micros: u64) -> String {
    let (seconds, fraction) = (micros / 1_000_000, micros % 1_000_000);
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    // Days to a date, by counting eras of 400 years that begin in March.
    let z = days + 719_468;
    let era = z / 146_097;
    let doe = z % 146_097;
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction:06}Z")
}

impl State {
    fn now(&self) -> u64 {
        let wall = u64::try_from(leasehold::clock::wall().as_micros()).unwrap();
        wall.max(self.last)
    }

    /// Whether the condition of a write holds.
    fn check(&self, write: &Value) -> Result<(), Refusal> {
        let name = write["update"]["name"].as_str().or(write["delete"].as_str()).ok_or(INVALID)?;
        let found = self.documents.get(name);
        let condition = &write["currentDocument"];
        match (condition["exists"].as_bool(), condition["updateTime"].as_str(), found) {
            (Some(false), None, None) | (None, None, _) => Ok(()),
            (Some(false), None, Some(_)) => Err(EXISTS),
            (Some(true), None, Some(_)) => Ok(()),
            (Some(true), None, None) => Err(NOT_FOUND),
            (None, Some(time), Some(document)) if told(document.updated) == time => Ok(()),
            (None, Some(_), _) => Err(PRECONDITION),
            _ => Err(INVALID),
        }
    }

    /// Applies one write whose condition holds; gives its result.
    fn apply(&mut self, write: &Value, flaw: Flaw) -> Value {
        let now = self.now().max(self.last + 1);
        self.last = now;
        if let Some(name) = write["delete"].as_str() {
            self.documents.remove(name);
            return json!({});
        }
        let mut fields = write["update"]["fields"].clone();
        if flaw == Flaw::NoWriteField {
            fields.as_object_mut().unwrap().remove("write");
        }
        let name = write["update"]["name"].as_str().unwrap();
        let old = self.documents.get(name);
        if let (Some(mask), Some(old)) = (write["updateMask"]["fieldPaths"].as_array(), old) {
            let mut merged = old.fields.clone();
            for path in mask.iter().filter_map(Value::as_str) {
                merged[path] = fields[path].take();
            }
            fields = merged;
        }
        let created = old.map_or(now, |old| old.created);
        // As documented: a write that changes nothing keeps the time of the last change.
        let updated = old.filter(|old| old.fields == fields).map_or(now, |old| old.updated);
        self.documents.insert(name.into(), Document { fields, created, updated });
        json!({ "updateTime": told(updated) })
    }

    /// All writes or none.
    fn commit(&mut self, body: &Value, flaw: Flaw) -> Result<Value, Refusal> {
        let writes = body["writes"].as_array().ok_or(INVALID)?;
        if flaw != Flaw::NoConditions {
            writes.iter().try_for_each(|write| self.check(write))?;
        }
        let results: Vec<Value> = writes.iter().map(|write| self.apply(write, flaw)).collect();
        Ok(json!({ "writeResults": results, "commitTime": told(self.last) }))
    }

    /// Each write by itself.
    fn batch(&mut self, body: &Value, flaw: Flaw) -> Result<Value, Refusal> {
        let writes = body["writes"].as_array().ok_or(INVALID)?;
        let (mut results, mut statuses) = (Vec::new(), Vec::new());
        for write in writes {
            let (result, status) = match self.commit(&json!({ "writes": [write] }), flaw) {
                Ok(mut good) => (good["writeResults"][0].take(), json!({})),
                Err((_, code, name)) => (json!({}), json!({ "code": code, "message": name })),
            };
            results.push(result);
            statuses.push(status);
        }
        Ok(json!({ "writeResults": results, "status": statuses }))
    }

    fn shown(name: &str, document: &Document) -> Value {
        json!({
            "name": name,
            "fields": document.fields,
            "createTime": told(document.created),
            "updateTime": told(document.updated),
        })
    }

    fn get(&self, body: &Value) -> Result<Value, Refusal> {
        let names = body["documents"].as_array().ok_or(INVALID)?;
        let time = told(self.now());
        let one = |name: &Value| {
            let name = name.as_str().unwrap_or_default();
            match self.documents.get(name) {
                Some(found) => json!({ "found": Self::shown(name, found), "readTime": time }),
                None => json!({ "missing": name, "readTime": time }),
            }
        };
        Ok(names.iter().map(one).collect())
    }

    fn query(&self, parent: &str, body: &Value) -> Result<Value, Refusal> {
        let query = &body["structuredQuery"];
        let collection = query["from"][0]["collectionId"].as_str().ok_or(INVALID)?;
        let limit = usize::try_from(query["limit"].as_i64().ok_or(INVALID)?).map_err(|_| INVALID)?;
        let filters = query["where"]["compositeFilter"]["filters"].as_array().ok_or(INVALID)?;
        let fits = |key: &str| {
            filters.iter().all(|f| {
                let than = f["fieldFilter"]["value"]["stringValue"].as_str().unwrap();
                match f["fieldFilter"]["op"].as_str().unwrap() {
                    "GREATER_THAN" => key > than,
                    "GREATER_THAN_OR_EQUAL" => key >= than,
                    "LESS_THAN" => key < than,
                    other => panic!("{other} is not a comparison this double knows"),
                }
            })
        };
        let place = format!("{parent}/{collection}/");
        let mut found: Vec<(&str, Value)> = Vec::new();
        for (name, document) in &self.documents {
            let key = document.fields["key"]["stringValue"].as_str();
            let here = name.strip_prefix(&place).is_some_and(|id| !id.contains('/'));
            if let Some(key) = key.filter(|key| here && fits(key)) {
                found.push((key, Self::shown(name, document)));
            }
        }
        found.sort_by(|a, b| a.0.cmp(b.0));
        let time = told(self.now());
        if found.is_empty() || limit == 0 {
            return Ok(json!([{ "readTime": time, "done": true }]));
        }
        let each = found.into_iter().take(limit);
        Ok(each.map(|(_, document)| json!({ "document": document, "readTime": time })).collect())
    }
}

impl Inner {
    fn answer(&self, request: &Request) -> Reply {
        let target = request.line.split(' ').nth(1).unwrap_or_default();
        let (place, verb) = target.trim_start_matches("/v1/").rsplit_once(':').unwrap_or((target, ""));
        let refuse = |(code, _, name): Refusal| Reply::Answer(code, error(code, name, "as documented"));
        let body: Value = match serde_json::from_slice(&request.body) {
            Ok(body) if request.content_type == "application/json" => body,
            _ => return refuse(INVALID),
        };
        if request.authorization != "Bearer owner" {
            return Reply::Answer(401, error(401, "UNAUTHENTICATED", "who are you"));
        }
        let mut state = self.state.lock().unwrap();
        state.calls.push(verb.into());
        let writes = matches!(verb, "commit" | "batchWrite");
        let fault = if writes { state.faults.pop_front() } else { None };
        match &fault {
            Some(Fault::LoseRequest) => return Reply::Close,
            Some(Fault::LandLate) => {
                state.late.push(body);
                return Reply::Close;
            }
            Some(Fault::Say(code, words)) => return Reply::Answer(*code, words.clone()),
            Some(Fault::LoseReply | Fault::ReplyLate) | None => {}
        }
        if self.flaw == Flaw::CheckThenWrite && verb == "commit" {
            let good = body["writes"].as_array().into_iter().flatten().try_for_each(|w| state.check(w));
            if let Err(refusal) = good {
                return refuse(refusal);
            }
            // Others get in here.
            let pause = self.landed.wait_timeout(state, Duration::from_millis(2)).unwrap();
            state = pause.0;
            return match state.commit(&body, Flaw::NoConditions) {
                Ok(good) => Reply::Answer(200, good.to_string()),
                Err(refusal) => refuse(refusal),
            };
        }
        let answered = match verb {
            "commit" => state.commit(&body, self.flaw),
            "batchWrite" => state.batch(&body, self.flaw),
            "batchGet" => state.get(&body),
            "runQuery" => state.query(place, &body),
            _ => Err(NOT_FOUND),
        };
        match fault {
            Some(Fault::LoseReply) => return Reply::Close,
            Some(Fault::ReplyLate) => {
                let before = state.landed;
                drop(self.landed.wait_while(state, |state| state.landed == before));
            }
            _ => {}
        }
        match answered {
            Ok(good) => Reply::Answer(200, good.to_string()),
            Err(refusal) => refuse(refusal),
        }
    }
}

#[test]
fn times_are_written_as_the_api_does() {
    assert_eq!(told(0), "1970-01-01T00:00:00.000000Z");
    assert_eq!(told(951_782_400_000_001), "2000-02-29T00:00:00.000001Z");
    assert_eq!(told(1_794_785_305_368_402), "2026-11-15T23:28:25.368402Z");
}
