//! Redis: fence and value by one script.

use std::thread;
use std::time::Duration;

use ::redis::{Commands, Connection};
use leasehold::backends::redis::RedisTarget;
use leasehold::core::fence::{Fence, FenceCase, FenceMode};
use leasehold::core::fence_record::FenceRecord;
use leasehold::core::store::Landed;
use leasehold::targets::conformance::{OLD, TargetBench, replay, some_of_each_kind, whole};
use leasehold::targets::{Target, TargetError};
use leasehold_testkit::proxy::{Fault, Proxy};
use leasehold_testkit::{count, server};

use super::kit::{Site, assert_stale, at, bearer, seal, write};
use super::{examined, manners, zombies};
use crate::redis::restarts::follow;
use crate::redis::server::Server;

const LONG: Duration = Duration::from_secs(30);

/// One key that nobody else uses.
struct Key {
    server: String,
    key: String,
}

impl Key {
    fn new(server: &str) -> Self {
        Self { server: server.into(), key: format!("today-{:032x}", leasehold::random::seed()) }
    }

    fn target(&self, server: &str) -> RedisTarget {
        RedisTarget::open(&format!("{server}#{}", self.key)).unwrap_or_else(|e| panic!("{e}"))
    }

    fn connect(&self) -> Connection {
        ::redis::Client::open(self.server.as_str()).unwrap().get_connection().unwrap()
    }

    fn fence_key(&self) -> String {
        format!("leasehold-fence:{{{}}}", self.key)
    }
}

impl Site for Key {
    fn name(&self) -> &'static str {
        "Redis"
    }

    fn server(&self) -> String {
        self.server.clone()
    }

    fn proxy(&self) -> Proxy {
        Proxy::tcp(&self.server)
    }

    fn open_with(&self, server: &str, each: Duration, all: Duration) -> Box<dyn Target> {
        Box::new(self.target(server).with_patience(each, all))
    }

    fn swap_mark(&self) -> &'static [u8] {
        b"'MSET'"
    }

    fn fence(&self) -> Option<Vec<u8>> {
        self.connect().get(self.fence_key()).unwrap()
    }

    fn set_fence(&self, bytes: Option<&[u8]>) {
        let mut connection = self.connect();
        match bytes {
            Some(bytes) => connection.set(self.fence_key(), bytes).unwrap(),
            None => connection.del(self.fence_key()).unwrap(),
        }
    }

    fn content(&self) -> Option<Vec<u8>> {
        self.connect().get(&self.key).unwrap()
    }
}

fn fresh() -> Box<dyn Site> {
    Box::new(Key::new(&server("REDIS")))
}

#[test]
fn redis_passes_whoever_else_seals() {
    examined::honest_servers_pass(&Key::new(&server("REDIS")));
}

#[test]
fn redis_keeps_zombies_out() {
    zombies::are_refused(&fresh);
    zombies::whose_answers_are_lost_say_so(&fresh);
    zombies::lost_answers_are_found_again(&fresh);
}

#[test]
fn redis_has_manners() {
    manners::two_writes_at_once_take_turns(&fresh);
    manners::an_unreadable_fence_lets_nobody_in(&fresh);
    manners::another_lease_is_refused_by_name(&fresh);
    manners::a_silent_server_ends_the_seal(&fresh);
    manners::watching_lets_in_and_counts(&fresh);
    manners::what_was_not_answered_is_told_unknown(&fresh);
    manners::a_watched_write_is_not_done_twice(&fresh);
}

struct Replayed {
    key: Key,
    connection: Connection,
    target: RedisTarget,
}

impl TargetBench for Replayed {
    fn install(&mut self, stored: Option<&FenceRecord>, content: &str) -> Option<Fence> {
        match stored {
            Some(record) => {
                let (key, fence) = (self.key.fence_key(), record.encode());
                let pairs = [(&self.key.key, content.as_bytes()), (&key, fence.as_slice())];
                let () = self.connection.mset(&pairs).unwrap();
            }
            None => {
                let () = self.connection.set(&self.key.key, content).unwrap();
                let () = self.connection.del(self.key.fence_key()).unwrap();
            }
        }
        stored.map(|record| record.fence.clone())
    }

    fn content(&mut self) -> String {
        self.connection.get::<_, Option<String>>(&self.key.key).unwrap().unwrap_or_else(|| OLD.into())
    }

    fn target(&mut self) -> &mut dyn Target {
        &mut self.target
    }
}

#[test]
fn redis_replays_the_table() {
    // Several at once: each waits for its answers most of the time.
    let cases = if count(0, 1) == 1 { whole() } else { some_of_each_kind(3) };
    let server = server("REDIS");
    let part = |cases: &[FenceCase]| {
        let key = Key::new(&server);
        let (connection, target) = (key.connect(), key.target(&key.server));
        replay(&mut Replayed { key, connection, target }, cases)
    };
    let replayed: usize = thread::scope(|scope| {
        let parts: Vec<_> =
            cases.chunks(cases.len().div_ceil(8)).map(|cases| scope.spawn(|| part(cases))).collect();
        parts.into_iter().map(|part| part.join().unwrap()).sum()
    });
    println!("Redis: {replayed} cases of the table");
    assert!(replayed > 1_500, "{replayed}");
}

/// The check as a GET of its own, then a SET: the variant that must leak.
#[test]
fn without_the_script_it_leaks() {
    let key = Key::new(&server("REDIS"));
    seal(key.open().as_mut(), 33);
    write(key.open().as_mut(), 33, "report").unwrap();
    let proxy = key.proxy();
    let strike = proxy.arm_on(b"stale report", Fault::Pause);
    let (url, fence, name) = (proxy.url(&key.server), key.fence_key(), key.key.clone());
    let zombie = thread::spawn(move || {
        let mut connection = ::redis::Client::open(url).unwrap().get_connection().unwrap();
        let bytes: Vec<u8> = connection.get(fence).unwrap();
        assert_eq!(FenceRecord::decode(&bytes).unwrap().fence.token.get(), 33, "it may write, it thinks");
        connection.set::<_, _, ()>(name, "stale report").is_ok()
    });
    assert!(strike.wait(LONG));
    seal(key.open().as_mut(), 34);
    strike.release();
    assert!(zombie.join().unwrap());
    assert_eq!(key.text().as_deref(), Some("stale report"), "the harness cannot see a leak");
    println!("Redis: GET, then SET: 1 zombie, 1 leaked");
}

/// A failover to a replica that had not heard of the seal: the promise ends there, and the docs say so.
#[test]
fn a_failover_that_forgets_the_seal_is_where_it_ends() {
    let (primary, replica) = (Server::start(&["--save", ""]), Server::start(&["--save", ""]));
    let key = Key::new(&primary.url());
    let mut zombie = key.open();
    seal(zombie.as_mut(), 33);
    write(zombie.as_mut(), 33, "report").unwrap();
    let dump: Vec<(String, Vec<u8>)> = [key.key.clone(), key.fence_key()]
        .map(|name| (name.clone(), key.connect().get(name).unwrap()))
        .into();
    seal(key.open().as_mut(), 34);
    assert_stale(&write(zombie.as_mut(), 33, "stale").unwrap_err());
    let mut behind = ::redis::Client::open(replica.url()).unwrap().get_connection().unwrap();
    for (name, bytes) in dump {
        let () = behind.set(name, bytes).unwrap();
    }
    let promoted = Key { server: replica.url(), key: key.key.clone() };
    assert!(write(promoted.open().as_mut(), 33, "stale").is_ok(), "then the documentation can say more");
}

/// A write that has looked at the fence, and is on its way when a failover forgets a later seal, does not look again
/// and pass: neither where the server answers that its history is another, nor where the connection broke.
#[test]
fn a_write_does_not_go_on_in_another_history() {
    let soon = ["--save", "", "--repl-diskless-sync-delay", "0"];
    for broken in [false, true] {
        let (server, other) = (Server::start(&soon), Server::start(&soon));
        let key = Key::new(&server.url());
        let proxy = key.proxy();
        let mut zombie = key.open_at(&proxy.url(&key.server));
        seal(zombie.as_mut(), 33);
        write(zombie.as_mut(), 33, "report").unwrap();
        follow(&other, &server);
        let () = other.admin(&["REPLICAOF", "NO", "ONE"]);
        let strike = proxy.arm_on(key.swap_mark(), Fault::Pause);
        let late = thread::spawn(move || (write(zombie.as_mut(), 33, "stale"), zombie));
        assert!(strike.wait(LONG), "it never wrote");
        seal(key.open().as_mut(), 34);
        // What the other one never heard of is forgotten here too.
        follow(&server, &other);
        let () = server.admin(&["REPLICAOF", "NO", "ONE"]);
        assert_eq!(at(key.open().as_mut()), (33, 1), "the seal is still known, so this shows nothing");
        if broken {
            proxy.cut_all();
        }
        strike.release();
        let (wrote, mut zombie) = late.join().unwrap();
        match wrote.expect_err("a write went on where its fence had come back") {
            TargetError::Remote { failure, .. } if !broken => {
                assert!(failure.landed == Landed::No, "{failure:?}")
            }
            TargetError::InDoubt { .. } if broken => {}
            error => panic!("{error}"),
        }
        assert_eq!(key.text().as_deref(), Some("report"));
        // Whoever asks anew is told what is there now; that is where the promise ends.
        write(zombie.as_mut(), 33, "again").unwrap();
    }
}

/// The server says that it wrote nothing: told as that, at once, and not as a doubt after ten tries.
#[test]
fn a_refusal_of_the_server_is_no_doubt() {
    let full = [["maxmemory-policy", "noeviction"], ["maxmemory", "1mb"]];
    let alone = [["min-replicas-to-write", "1"]];
    for (settings, says) in [(&full[..], "maxmemory"), (&alone[..], "min-replicas-to-write")] {
        let server = Server::start(&["--save", ""]);
        let key = Key::new(&server.url());
        let proxy = key.proxy();
        let mut target = key.open_at(&proxy.url(&key.server));
        seal(target.as_mut(), 33);
        for [name, value] in settings {
            let () = server.admin(&["CONFIG", "SET", name, value]);
        }
        let before = proxy.requests();
        let verbs = [
            write(target.as_mut(), 33, "report").map(drop),
            target.seal(&bearer(34), FenceMode::Enforce).map(drop),
            target.set_mode(FenceMode::Observe),
        ];
        for verb in verbs {
            let error = verb.expect_err("a server that takes no write took one");
            let TargetError::Remote { failure, .. } = &error else { panic!("{error}") };
            assert!(failure.landed == Landed::No && failure.message.contains(says), "{failure:?}");
        }
        assert!(proxy.requests() - before <= 6, "one look and one try for each verb");
        assert_eq!((at(key.open().as_mut()), key.text()), ((33, 0), None));
    }
}

/// One node of a cluster refuses scripts over two slots; ours has one, with a hash tag and without.
#[test]
fn fence_and_value_live_in_one_slot_of_a_cluster() {
    let node = Server::start(&["--save", "", "--cluster-enabled", "yes"]);
    let () = node.admin(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    let deadline = leasehold::clock::boot_time().plus(LONG);
    while !node.admin::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok") {
        assert!(leasehold::clock::boot_time() < deadline, "the cluster never came up");
    }
    for key in ["today", "%7Bsite%7D:today", "x%7By%7Dz", "a%7Bb"] {
        let mut target = RedisTarget::open(&format!("{}#{key}", node.url())).unwrap();
        seal(&mut target, 33);
        write(&mut target, 33, "report").unwrap_or_else(|e| panic!("{key}: {e}"));
        assert_eq!(at(&mut target), (33, 1));
        let mut seen = Vec::new();
        target.read(&mut seen).unwrap();
        assert_eq!(seen, b"report");
    }
}

/// What is there and is no string is somebody's data.
#[test]
fn other_types_are_left_alone() {
    let key = Key::new(&server("REDIS"));
    let mut connection = key.connect();
    let () = connection.lpush(&key.key, "mine").unwrap();
    let error = key.open().seal(&bearer(33), FenceMode::Enforce).unwrap_err();
    assert!(matches!(error, TargetError::Unfit { .. }), "{error}");
    assert!(error.to_string().contains("holds a value that is not a string"), "{error}");
    assert_eq!(key.fence(), None);
    let kept: Vec<String> = connection.lrange(&key.key, 0, -1).unwrap();
    assert_eq!(kept, ["mine"]);
    assert_eq!(key.target(&key.server).class().word(), "atomic");
}

/// A list is nobody's string.
#[test]
fn a_key_that_holds_no_string_is_called_that() {
    let key = Key::new(&server("REDIS"));
    let _: i64 = key.connect().rpush(&key.key, "item").unwrap();
    let words = key.target(&key.server).read(&mut Vec::new()).unwrap_err().to_string();
    assert!(words.contains("Name a key that holds a string, or nothing"), "{words}");
}
