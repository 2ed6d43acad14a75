//! Measures how long a lease is free between one holder and the next one, which waits for it.
//!
//! The time runs from before the release is sent until the waiter has the lease. It is compared with the least
//! that the server's push allows: a conditional write that also notifies, and a conditional write by the
//! listener. The two measurements take turns. Run by `benches/handover`.

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::clock::boot_time;
use leasehold::core::ids::WriteId;
use leasehold::core::name::Name;
use leasehold::core::record::LeaseRecord;
use leasehold::core::rules::{Rules, Standard};
use leasehold::core::session::{Outcome, Within, lease_key};
use leasehold::core::time::BootTime;
use leasehold::core::timing::{Timing, TimingWishes};
use leasehold::manual::{self, AcquireRequest};
use leasehold::seen_tokens::SeenTokens;
use leasehold::stores::{self, Cas, Failure, Listed, Store, StoreFacts, Stored, Version};
use leasehold::{Leases, random};
use pollster::block_on;

const TTL: Duration = Duration::from_secs(60);
const TURNS: usize = 100;
/// First turns that are not counted, in which both sides connect.
const WARM: usize = 5;

fn main() {
    let mut bad = false;
    for (name, floor) in [("REDIS", redis_floor as fn(&str) -> Floor), ("POSTGRES", postgres_floor)] {
        let Ok(url) = std::env::var(format!("LEASEHOLD_TEST_{name}")) else {
            println!("{name}: SKIPPED, no server");
            bad = true;
            continue;
        };
        let mut floor = floor(&url);
        let (mut ours, mut least) = (Vec::new(), Vec::new());
        for turn in 0..TURNS + WARM {
            let (one, other) = (floor(), hand_over(&url));
            if turn >= WARM {
                least.push(one);
                ours.push(other);
            }
        }
        bad |= !told(name, &mut ours, &mut least);
    }
    std::process::exit(i32::from(bad));
}

/// Prints the figures; gives whether the bar is met.
fn told(name: &str, ours: &mut [Duration], least: &mut [Duration]) -> bool {
    let at = |times: &mut [Duration]| {
        times.sort_unstable();
        [50, 90, 99].map(|percent| times[times.len() * percent / 100].as_secs_f64() * 1e3)
    };
    let (ours, least) = (at(ours), at(least));
    let ratio = ours[0] / least[0];
    println!(
        "{name}: p50 {:.2} ms, p90 {:.2}, p99 {:.2}; push floor p50 {:.2}, p90 {:.2}, p99 {:.2}; p50 is {ratio:.2} of it",
        ours[0], ours[1], ours[2], least[0], least[1], least[2]
    );
    ratio <= 2.0
}

fn open(url: &str) -> Box<dyn Store> {
    stores::open(url).unwrap_or_else(|e| panic!("{e}"))
}

/// A store that reports each call that waits for a change.
struct Told {
    inner: Box<dyn Store>,
    waits: Sender<()>,
}

#[async_trait(?Send)]
impl Store for Told {
    fn facts(&self) -> StoreFacts {
        self.inner.facts()
    }
    async fn read(&mut self, key: &str) -> Result<Option<Stored>, Failure> {
        self.inner.read(key).await
    }
    async fn cas(&mut self, key: &str, expected: Option<&Version>, write: WriteId, body: &[u8]) -> Cas {
        self.inner.cas(key, expected, write, body).await
    }
    async fn list(&mut self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Failure> {
        self.inner.list(prefix, after, limit).await
    }
    async fn remove(&mut self, key: &str, version: &Version) -> Cas {
        self.inner.remove(key, version).await
    }
    async fn wait_change(&mut self, key: &str, version: Option<&Version>, at_most: Duration) -> bool {
        let _ = self.waits.send(());
        self.inner.wait_change(key, version, at_most).await
    }
    fn limit_calls(&mut self, each: Duration) -> Duration {
        self.inner.limit_calls(each)
    }
}

/// Holds a lease until a waiter listens to its changes; then releases it and gives the time until the waiter has it.
fn hand_over(url: &str) -> Duration {
    let name = Name::new(&format!("handover-{:016x}", random::seed() as u64)).unwrap();
    let mut holder = open(url);
    let facts = holder.facts();
    let wishes = TimingWishes { ttl: Some(TTL), heartbeat: None, grace: None };
    let timing = Timing::new(wishes, facts.store_clock()).unwrap();
    let ask = AcquireRequest {
        lease: name.clone(),
        job: name.clone(),
        timing,
        wait: Duration::ZERO,
        force: false,
        within: Within::default(),
    };
    let granted = manual::acquire(&ask, open(url), SeenTokens::none()).unwrap();
    assert!(matches!(granted, Outcome::Granted(_)), "{granted:?}");

    let (told, waits) = mpsc::channel();
    let waiter = thread::spawn({
        let (url, name) = (url.to_owned(), name.to_string());
        move || {
            let leases =
                Leases::on(move || Ok(Box::new(Told { inner: stores::open(&url)?, waits: told.clone() })));
            let got = block_on(leases.lease(&name).ttl(TTL).wait(TTL).acquire()).unwrap();
            let at = boot_time();
            block_on(got.lease().expect("handed over").release());
            at
        }
    });
    let key = lease_key(&name);
    let stored = block_on(holder.read(&key)).unwrap().unwrap();
    let record = LeaseRecord::decode(&name, &stored.body).unwrap();
    // A renewal wakes the waiter. When it waits again, it is sure to listen.
    waits.recv().unwrap();
    let renewed = Standard.renew(&record, WriteId(random::seed()));
    let version = written(holder.as_mut(), &key, &stored.version, &renewed);
    waits.recv().unwrap();
    let freed = Standard.release(&renewed, WriteId(random::seed()));
    let released = boot_time();
    written(holder.as_mut(), &key, &version, &freed);
    waiter.join().unwrap().since(released)
}

fn written(store: &mut dyn Store, key: &str, expected: &Version, record: &LeaseRecord) -> Version {
    match block_on(store.cas(key, Some(expected), record.write, &record.encode())) {
        Cas::Written { version, .. } => version,
        got => panic!("{got:?}"),
    }
}

/// One measurement of the least time.
type Floor = Box<dyn FnMut() -> Duration>;

/// One turn: a release, until the listener on another thread has taken the record.
fn turns(heard: Receiver<BootTime>, mut release: impl FnMut() + 'static) -> Floor {
    Box::new(move || {
        let began = boot_time();
        release();
        heard.recv().unwrap().since(began)
    })
}

fn redis_floor(url: &str) -> Floor {
    const CAS: &str = "
if redis.call('HGET', KEYS[1], 'v') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'v', ARGV[2], 'b', ARGV[3])
redis.call('PUBLISH', KEYS[1], ARGV[2])
return 1";
    let client = redis::Client::open(url).unwrap();
    let key = format!("floor:{:032x}", random::seed());
    let cas = move |link: &mut redis::Connection, key: &str, from: &str, to: &str| {
        let body = "x".repeat(400);
        let won: i32 =
            redis::cmd("EVAL").arg(CAS).arg(1).arg(key).arg(from).arg(to).arg(body).query(link).unwrap();
        assert_eq!(won, 1);
    };
    let (mut holder, mut taker, mut ear) = (
        client.get_connection().unwrap(),
        client.get_connection().unwrap(),
        client.get_connection().unwrap(),
    );
    let _: () = redis::cmd("HSET").arg(&key).arg("v").arg("held").query(&mut holder).unwrap();
    let (tell, heard) = mpsc::channel();
    let (ready, listening) = mpsc::channel();
    thread::spawn({
        let key = key.clone();
        move || {
            let mut ear = ear.as_pubsub();
            ear.subscribe(&key).unwrap();
            ready.send(()).unwrap();
            loop {
                // It also gets messages of its own writes.
                if ear.get_message().unwrap().get_payload_bytes() == b"free" {
                    cas(&mut taker, &key, "free", "held");
                    if tell.send(boot_time()).is_err() {
                        return;
                    }
                }
            }
        }
    });
    listening.recv().unwrap();
    turns(heard, move || cas(&mut holder, &key, "held", "free"))
}

fn postgres_floor(url: &str) -> Floor {
    let name = format!("floor_{:032x}", random::seed());
    let update = format!(
        "with u as (update {name} set v = $2, b = repeat('x', 400) where v = $1 returning v)
         select pg_notify('{name}', v) from u"
    );
    let mut holder = Pg::connect(url);
    holder.run(&format!("create table {name} (v text not null, b text); insert into {name} values ('held')"));
    let (tell, heard) = mpsc::channel();
    let (ready, listening) = mpsc::channel();
    thread::spawn({
        let (url, name, update) = (url.to_owned(), name.clone(), update.clone());
        move || {
            let (mut taker, mut ear) = (Pg::connect(&url), Pg::connect(&url));
            ear.run(&format!("listen {name}"));
            ready.send(()).unwrap();
            loop {
                if ear.notified() == "free" {
                    taker.cas(&update, "free", "held");
                    if tell.send(boot_time()).is_err() {
                        taker.run(&format!("drop table {name}"));
                        return;
                    }
                }
            }
        }
    });
    listening.recv().unwrap();
    turns(heard, move || holder.cas(&update, "held", "free"))
}

/// A blocking connection.
struct Pg {
    runtime: tokio::runtime::Runtime,
    client: tokio_postgres::Client,
    news: futures_channel::mpsc::UnboundedReceiver<String>,
}

impl Pg {
    fn connect(url: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (tell, news) = futures_channel::mpsc::unbounded();
        let client = runtime.block_on(async {
            let (client, mut link) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(async move {
                while let Some(Ok(message)) = std::future::poll_fn(|cx| link.poll_message(cx)).await {
                    if let tokio_postgres::AsyncMessage::Notification(note) = message {
                        let _ = tell.unbounded_send(note.payload().to_owned());
                    }
                }
            });
            client
        });
        Self { runtime, client, news }
    }

    fn run(&mut self, sql: &str) {
        self.runtime.block_on(self.client.batch_execute(sql)).unwrap();
    }

    fn cas(&mut self, sql: &str, from: &str, to: &str) {
        use tokio_postgres::types::Type;
        let parameters: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
            [(&from, Type::TEXT), (&to, Type::TEXT)];
        let rows = self.runtime.block_on(self.client.query_typed(sql, &parameters)).unwrap();
        assert_eq!(rows.len(), 1);
    }

    fn notified(&mut self) -> String {
        self.runtime.block_on(self.news.recv()).unwrap()
    }
}
