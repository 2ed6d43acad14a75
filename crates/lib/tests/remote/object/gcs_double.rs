//! A small Google Cloud Storage, written from the public documentation of its XML API: objects with
//! generations, `x-goog-if-generation-match`, and listings. No honest server of it is packaged, so
//! what passes here is tested for the protocol only, and is said to be no more than that.
//!
//! It is honest: one lock around every request. Its ETags are a hash of the content on purpose, as
//! Google's are, so that nothing can come to depend on them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use jiff::Timestamp;

const BUCKET: &str = "leases";

struct Object {
    generation: u64,
    written: Timestamp,
    body: Vec<u8>,
}

#[derive(Default)]
struct World {
    objects: BTreeMap<String, Object>,
    last_generation: u64,
}

/// The double. Dropping it stops it.
pub struct GcsDouble {
    address: SocketAddr,
    closing: Arc<AtomicBool>,
}

impl GcsDouble {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let closing = Arc::new(AtomicBool::new(false));
        let (world, ours) = (Arc::<Mutex<World>>::default(), Arc::clone(&closing));
        thread::spawn(move || {
            for stream in listener.incoming() {
                if ours.load(Ordering::SeqCst) {
                    return;
                }
                let world = Arc::clone(&world);
                thread::spawn(move || stream.map(|stream| serve(stream, &world)));
            }
        });
        Self { address, closing }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for GcsDouble {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::SeqCst);
        // Wakes the acceptor.
        let _ = TcpStream::connect(self.address);
    }
}

struct Request {
    method: String,
    path: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

struct Response {
    status: u16,
    headers: String,
    body: Vec<u8>,
}

impl Response {
    fn error(status: u16, code: &str) -> Self {
        let body = format!("<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code></Error>");
        Self { status, headers: "Content-Type: application/xml\r\n".into(), body: body.into() }
    }
}

fn serve(stream: TcpStream, world: &Mutex<World>) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut writer = stream;
    while let Some(request) = parse(&mut reader) {
        let response = {
            let mut world = world.lock().unwrap();
            answer(&mut world, &request)
        };
        let mut bytes = format!(
            "HTTP/1.1 {} X\r\nDate: {}\r\n{}Content-Length: {}\r\n\r\n",
            response.status,
            http_date(now()),
            response.headers,
            response.body.len()
        )
        .into_bytes();
        bytes.extend(response.body);
        writer.write_all(&bytes).ok()?;
    }
    None
}

fn parse(reader: &mut impl BufRead) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let (method, rest) = line.split_once(' ')?;
    let (path, query) = rest.split(' ').next()?.split_once('?').unwrap_or((rest.split(' ').next()?, ""));
    let (method, path) = (method.to_owned(), decode(path));
    let pair = |pair: &str| pair.split_once('=').map(|(k, v)| (decode(k), decode(&v.replace('+', " "))));
    let query = query.split('&').filter_map(pair).collect();
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let mut body = vec![0; headers.get("content-length").map_or(0, |v| v.parse().unwrap())];
    reader.read_exact(&mut body).ok()?;
    Some(Request { method, path, query, headers, body })
}

fn answer(world: &mut World, request: &Request) -> Response {
    let path = request.path.trim_start_matches('/');
    let (bucket, name) = path.split_once('/').unwrap_or((path, ""));
    if bucket != BUCKET {
        return Response::error(404, "NoSuchBucket");
    }
    match (request.method.as_str(), name) {
        ("GET", "") => list(world, request),
        ("GET", name) => get(world, name),
        ("PUT", name) if !name.is_empty() => match refused(world, name, request) {
            Some(refusal) => refusal,
            None => put(world, name, request),
        },
        ("DELETE", name) if world.objects.contains_key(name) => match refused(world, name, request) {
            Some(refusal) => refusal,
            None => {
                world.objects.remove(name);
                Response { status: 204, headers: String::new(), body: Vec::new() }
            }
        },
        _ => Response::error(405, "MethodNotAllowed"),
    }
}

fn get(world: &World, name: &str) -> Response {
    let Some(object) = world.objects.get(name) else { return Response::error(404, "NoSuchKey") };
    let mut headers = object_headers(object);
    write!(headers, "Last-Modified: {}\r\n", http_date(object.written)).unwrap();
    Response { status: 200, headers, body: object.body.clone() }
}

/// The condition does not hold. 0 means that it must not exist; without the header anything goes, as there.
fn refused(world: &World, name: &str, request: &Request) -> Option<Response> {
    let stored = world.objects.get(name).map_or(0, |o| o.generation);
    match request.headers.get("x-goog-if-generation-match")?.parse::<u64>() {
        Ok(wanted) if wanted == stored => None,
        Ok(_) => Some(Response::error(412, "PreconditionFailed")),
        Err(_) => Some(Response::error(400, "InvalidArgument")),
    }
}

fn now() -> Timestamp {
    let micros = leasehold::clock::wall().as_micros();
    Timestamp::from_microsecond(i64::try_from(micros).unwrap()).unwrap()
}

fn put(world: &mut World, name: &str, request: &Request) -> Response {
    let written = now();
    world.last_generation = (world.last_generation + 1).max(written.as_microsecond().unsigned_abs());
    let object = Object { generation: world.last_generation, written, body: request.body.clone() };
    let headers = object_headers(&object);
    world.objects.insert(name.into(), object);
    Response { status: 200, headers, body: Vec::new() }
}

fn list(world: &World, request: &Request) -> Response {
    let text = |name: &str| request.query.get(name).map_or("", String::as_str);
    let after = text("start-after").max(text("continuation-token"));
    // Small pages, so that going on is tested.
    let most: usize = text("max-keys").parse().unwrap_or(1_000).min(7);
    let mut found =
        world.objects.iter().filter(|(name, _)| name.starts_with(text("prefix")) && name.as_str() > after);
    let page: Vec<_> = found.by_ref().take(most).collect();
    let mut xml = "<?xml version='1.0' encoding='UTF-8'?><ListBucketResult>".to_owned();
    for (name, object) in &page {
        let (name, size, written) = (escape(name), object.body.len(), object.written);
        write!(
            xml,
            "<Contents><Key>{name}</Key><Generation>{}</Generation><LastModified>{written}</LastModified>\
             <ETag>{}</ETag><Size>{size}</Size></Contents>",
            object.generation,
            escape(&etag(&object.body))
        )
        .unwrap();
    }
    if let (Some((last, _)), Some(_)) = (page.last(), found.next()) {
        write!(xml, "<NextContinuationToken>{}</NextContinuationToken>", escape(last)).unwrap();
    }
    xml.push_str("</ListBucketResult>");
    Response { status: 200, headers: "Content-Type: application/xml\r\n".into(), body: xml.into() }
}

fn object_headers(object: &Object) -> String {
    format!("ETag: {}\r\nx-goog-generation: {}\r\n", etag(&object.body), object.generation)
}

fn etag(body: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    body.hash(&mut hasher);
    format!("\"{:016x}\"", hasher.finish())
}

fn http_date(time: Timestamp) -> String {
    time.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;").replace('\'', "&apos;")
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next().unwrap(), rest.next().unwrap()];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).unwrap()
}
