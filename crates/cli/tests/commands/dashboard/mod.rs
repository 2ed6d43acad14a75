//! `leasehold serve`: the dashboard, as a browser and as a program meet it.

mod first_byte;
mod metrics;
mod night;
mod pages;
mod refused;
mod tools;
mod words;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use leasehold_testkit::messages::note_wrapped;

use crate::world::{PATIENCE, Running, World};

/// A dashboard of a store.
pub struct Board {
    pub world: World,
    /// The store.
    pub url: String,
    pub server: Running,
    /// `127.0.0.1:PORT`
    pub address: String,
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    fn of(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        note_wrapped(&words(body));
        Self { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    /// It has this status.
    #[track_caller]
    pub fn is(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{self:#?}");
        self
    }

    /// A page has these texts.
    #[track_caller]
    pub fn has(self, facts: &[&str]) -> Self {
        let text = words(&self.body);
        let missing: Vec<&&str> = facts.iter().filter(|fact| !text.contains(**fact)).collect();
        assert!(missing.is_empty(), "should have {missing:?}: {text}");
        self
    }

    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:#?}"))
    }

    /// It has this reason.
    #[track_caller]
    pub fn because(self, reason: &str) -> Self {
        assert_eq!(self.json()["reason"], reason, "{self:#?}");
        self
    }
}

/// The text of a page, as somebody reads it.
pub fn words(html: &str) -> String {
    let mut text = String::new();
    let mut rest = html;
    while let Some((before, tag)) = rest.split_once('<') {
        text.push_str(before);
        let (tag, after) = tag.split_once('>').unwrap_or((tag, ""));
        // Words of one sentence may stand in several elements.
        if ["td", "/td", "/th", "/p", "/h", "/li", "/div", "/dt", "/dd", "/b"]
            .iter()
            .any(|end| tag.starts_with(end))
        {
            text.push(' ');
        }
        rest = after;
    }
    text.push_str(rest);
    let plain = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&amp;", "&")];
    let text = plain.iter().fold(text, |text, (from, to)| text.replace(from, to));
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Board {
    /// Of an empty store.
    pub fn new() -> Self {
        let world = World::new();
        let url = world.store("sqlite");
        Self::of(world, url, &[])
    }

    /// Of a store with a day of runs in it.
    pub fn of_a_night() -> Self {
        let world = World::new();
        let url = world.store("sqlite");
        night::fill(&world, &url);
        Self::of(world, url, &[])
    }

    pub fn of(world: World, url: String, more: &[&str]) -> Self {
        let args = [&["--store", &url, "--json", "serve", "--listen", "127.0.0.1:0"], more].concat();
        let mut command = world.hearing(crate::world::binary());
        command.args(&args);
        let mut server = Running::new(command);
        let told: serde_json::Value = serde_json::from_str(&server.line()).unwrap();
        let address = told["listen"].as_str().unwrap().to_owned();
        assert_eq!(told["dashboard"], format!("http://{address}/"));
        Self { world, url, server, address }
    }

    /// A command on its store.
    pub fn run(&self, args: &[&str]) -> crate::world::Ended {
        self.world.run(&[&["--store", &self.url], args].concat())
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[])
    }

    /// With these headers, where one of the same name replaces the usual one.
    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
        let mut all = vec![("host", self.address.as_str()), ("connection", "close")];
        all.retain(|(name, _)| !headers.iter().any(|(other, _)| other.eq_ignore_ascii_case(name)));
        all.extend(headers);
        let head: String = all.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        self.send(format!("{method} {path} HTTP/1.1\r\n{head}\r\n").as_bytes())
    }

    /// Sends this, and reads until the server is done.
    pub fn send(&self, request: &[u8]) -> Answer {
        let mut stream = self.connect();
        // A server that has refused it already may have closed.
        let _ = stream.write_all(request);
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        Answer::of(&bytes)
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Events of a page that is open.
    pub fn events(&self, query: &str) -> Events {
        let mut stream = self.connect();
        let request = format!("GET /events?{query} HTTP/1.1\r\nhost: {}\r\n\r\n", self.address);
        stream.write_all(request.as_bytes()).unwrap();
        Events { stream, text: String::new() }
    }
}

/// Events as they come.
pub struct Events {
    stream: TcpStream,
    text: String,
}

impl Events {
    /// Waits for an event of this name, with this in it; gives its data.
    #[track_caller]
    pub fn next(&mut self, name: &str, fact: &str) -> String {
        let end = leasehold::clock::boot_time().plus(Duration::from_secs(30));
        loop {
            while let Some((event, rest)) = self.text.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.text = rest;
                if event.contains(&format!("event: {name}")) && event.contains(fact) {
                    return event;
                }
            }
            assert!(leasehold::clock::boot_time() < end, "no event {name} with {fact:?}");
            let mut bytes = [0; 8192];
            let n = self.stream.read(&mut bytes).unwrap();
            assert_ne!(n, 0, "the events ended: {}", self.text);
            self.text.push_str(&String::from_utf8_lossy(&bytes[..n]).replace('\r', ""));
        }
    }
}
