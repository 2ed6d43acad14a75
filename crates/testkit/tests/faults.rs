//! The fault suites themselves, on a small store over a real Redis: an honest one passes, broken ones
//! are caught.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::core::ids::WriteId;
use leasehold::stores::{Cas, Clock, Failure, FailureKind, Listed, Store, StoreFacts, Stored, Version};
use leasehold_testkit::faults::{Liar, Lie, StoreBench, Violation};
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::{count, server};

const READ: &str = "return redis.call('HMGET', KEYS[1], 'v', 'b')";
const CAS: &str = "if (redis.call('HGET', KEYS[1], 'v') or '') ~= ARGV[1] then return 0 end \
                   redis.call('HSET', KEYS[1], 'v', ARGV[2], 'b', ARGV[3]) return 1";

enum Reply {
    Number(i64),
    Bytes(Option<Vec<u8>>),
    Many(Vec<Reply>),
}

/// As little of a store as the suites need, without any library in between.
struct Plain {
    address: String,
    limit: Duration,
    connection: Option<BufReader<TcpStream>>,
    /// Reads twice where once would do.
    wasteful: bool,
}

impl Plain {
    fn open(url: &str) -> Box<dyn Store> {
        Box::new(Self::new(url, false))
    }

    fn new(url: &str, wasteful: bool) -> Self {
        let address = url.trim_start_matches("redis://").to_owned();
        Self { address, limit: Duration::from_secs(10), connection: None, wasteful }
    }

    /// A connection that failed is never used again.
    fn call(&mut self, script: &str, key: &str, arguments: &[&[u8]]) -> io::Result<Reply> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => BufReader::new(TcpStream::connect(&self.address)?),
        };
        connection.get_ref().set_read_timeout(Some(self.limit))?;
        let mut parts: Vec<&[u8]> = vec![b"EVAL", script.as_bytes(), b"1", key.as_bytes()];
        parts.extend(arguments);
        let mut request = format!("*{}\r\n", parts.len()).into_bytes();
        for part in parts {
            request.extend(format!("${}\r\n", part.len()).into_bytes());
            request.extend(part);
            request.extend(b"\r\n");
        }
        connection.get_mut().write_all(&request)?;
        let reply = reply(&mut connection)?;
        self.connection = Some(connection);
        Ok(reply)
    }
}

fn reply(from: &mut BufReader<TcpStream>) -> io::Result<Reply> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    let line = line.strip_suffix("\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    let number = || line[1..].parse::<i64>().map_err(io::Error::other);
    match line.as_bytes()[0] {
        b':' => Ok(Reply::Number(number()?)),
        b'*' => (0..number()?).map(|_| reply(from)).collect::<io::Result<_>>().map(Reply::Many),
        b'$' if number()? < 0 => Ok(Reply::Bytes(None)),
        b'$' => {
            let mut bytes = vec![0; number()? as usize + 2];
            from.read_exact(&mut bytes)?;
            bytes.truncate(bytes.len() - 2);
            Ok(Reply::Bytes(Some(bytes)))
        }
        _ => Err(io::Error::other(line.to_owned())),
    }
}

fn failure(e: &io::Error) -> Failure {
    Failure::new(FailureKind::Unreachable, e.to_string())
}

#[async_trait(?Send)]
impl Store for Plain {
    fn facts(&self) -> StoreFacts {
        StoreFacts {
            url: "plain".into(),
            instance: "one".into(),
            clock: Clock::Observed,
            resolution: Duration::ZERO,
            jump: Duration::ZERO,
            this_machine_only: false,
            lock_dir: None,
            spacing: Duration::ZERO,
            pushes: false,
            durability: "none",
            caution: None,
        }
    }

    async fn read(&mut self, key: &str) -> Result<Option<Stored>, Failure> {
        if self.wasteful {
            let _ = self.call(READ, key, &[]);
        }
        let answer = self.call(READ, key, &[]).map_err(|e| failure(&e))?;
        let Reply::Many(mut parts) = answer else { panic!("not what HMGET says") };
        match (parts.remove(0), parts.remove(0)) {
            (Reply::Bytes(Some(version)), Reply::Bytes(Some(body))) => {
                let version = Version(String::from_utf8(version).unwrap());
                Ok(Some(Stored { body, version, age: None }))
            }
            _ => Ok(None),
        }
    }

    async fn cas(&mut self, key: &str, expected: Option<&Version>, write: WriteId, body: &[u8]) -> Cas {
        let (before, after) = (expected.map_or("", |v| &v.0), write.to_string());
        match self.call(CAS, key, &[before.as_bytes(), after.as_bytes(), body]) {
            Ok(Reply::Number(1)) => Cas::Written { version: Version(after), store_time: None },
            Ok(_) => Cas::Conflict,
            Err(e) => Cas::Unknown(failure(&e)),
        }
    }

    async fn list(&mut self, _: &str, _: &str, _: usize) -> Result<Vec<Listed>, Failure> {
        Ok(Vec::new())
    }

    async fn remove(&mut self, _: &str, _: &Version) -> Cas {
        Cas::Conflict
    }

    fn limit_calls(&mut self, each: Duration) -> Duration {
        std::mem::replace(&mut self.limit, each)
    }
}

#[test]
fn an_honest_store_survives_dropped_and_late_writes() {
    let url = server("REDIS");
    let proxy = Proxy::tcp(&url);
    let through = proxy.url(&url);
    let bench = StoreBench::new("plain", &proxy, || Plain::open(&through), || Plain::open(&url));
    bench.dropped(count(500, 5_000)).assert_clean(count(500, 5_000));
    bench.late(count(200, 2_000)).assert_clean(count(200, 2_000));
}

#[test]
fn stores_that_make_something_up_are_caught() {
    let url = server("REDIS");
    let proxy = Proxy::tcp(&url);
    let through = proxy.url(&url);
    for lie in [Lie::Written, Lie::Conflict, Lie::Retry] {
        let liar = || Liar::of(Plain::open(&through), lie);
        let bench = StoreBench::new("liar", &proxy, liar, || Plain::open(&url));
        let (dropped, late) = (bench.dropped(200), bench.late(100));
        println!("{lie:?}: {dropped}\n{late}");
        match lie {
            Lie::Written => {
                for report in [dropped, late] {
                    assert!(report.count(Violation::DoubleGrant) > 0, "{report}");
                    assert!(report.count(Violation::Deadline) > 0, "{report}");
                }
            }
            Lie::Conflict => {
                assert!(dropped.count(Violation::Answer) > 0, "{dropped}");
                assert!(dropped.count(Violation::Lost) > 0, "{dropped}");
            }
            Lie::Retry => assert!(dropped.count(Violation::Answer) > 0, "{dropped}"),
        }
    }
}

#[test]
#[should_panic(expected = "faults do not strike")]
fn a_suite_that_hits_nothing_says_so() {
    let url = server("REDIS");
    let proxy = Proxy::tcp(&url);
    let bench = StoreBench::new("past", &proxy, || Plain::open(&url), || Plain::open(&url));
    bench.dropped(100).assert_clean(100);
}

#[test]
fn round_trips_are_counted() {
    let url = server("REDIS");
    let proxy = Proxy::tcp(&url);
    let through = proxy.url(&url);
    let bench = StoreBench::new("plain", &proxy, || Plain::open(&through), || Plain::open(&url));
    bench.round_trips().assert_fewest();
    let wasteful = || Box::new(Plain::new(&through, true)) as Box<dyn Store>;
    let trips = StoreBench::new("wasteful", &proxy, wasteful, || Plain::open(&url)).round_trips();
    assert_eq!((trips.held, trips.acquire), (2, 3), "{trips:?}");
}
