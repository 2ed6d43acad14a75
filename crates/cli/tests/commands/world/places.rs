//! The stores behind a network, as a command line names them: servers started by `scripts/servers`.
#![allow(dead_code)] // each test file uses its own part of it

use std::time::Duration;

use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::server;

use super::World;

/// In every URL that can hold a password. No byte of output may contain it.
pub const CANARY: &str = "correct-horse";

/// Public: every copy of Azurite has it.
const AZURITE_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// One server, and how to name a store there.
#[derive(Clone)]
pub struct Place {
    pub name: &'static str,
    server: String,
    http: bool,
    /// The store's URL, given the server's.
    url: fn(&str) -> String,
    variables: Vec<(&'static str, String)>,
    /// A TTL that is short there.
    pub short: Duration,
}

impl Place {
    /// A world in which the store can be reached.
    pub fn world(&self) -> World {
        let mut world = World::new();
        world.variables = self.variables.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect();
        world
    }

    /// Straight to the server.
    pub fn url(&self) -> String {
        (self.url)(&self.server)
    }

    pub fn proxy(&self) -> Proxy {
        if self.http { Proxy::http(&self.server) } else { Proxy::tcp(&self.server) }
    }

    /// The same store, by way of the proxy.
    pub fn through(&self, proxy: &Proxy) -> String {
        (self.url)(&proxy.url(&self.server))
    }
}

/// All that run here. Google's Firestore emulator is not on every machine; a bucket of Google's is on none.
pub fn places() -> Vec<Place> {
    let near = Duration::from_secs(6);
    let far = Duration::from_secs(16);
    let place = |name, variable: &str, http, url, short| Place {
        name,
        server: server(variable),
        http,
        url,
        variables: Vec::new(),
        short,
    };
    let with_password = |url: &str| url.replacen("lease@", &format!("lease:{CANARY}@"), 1);
    let mut all = vec![
        place("postgres", "POSTGRES", false, with_password, near),
        place("pgbouncer", "PGBOUNCER", false, with_password, near),
        place("redis", "REDIS_AUTH", false, |url| url.into(), near),
        place("durable object", "WORKERD", true, |url| url.into(), near),
        Place {
            variables: vec![("AWS_ACCESS_KEY_ID", "test".into()), ("AWS_SECRET_ACCESS_KEY", CANARY.into())],
            ..place("s3", "S3", true, |url| format!("s3://leases/cli?endpoint={url}&region=us-east-1"), far)
        },
        Place {
            variables: vec![("AZURE_STORAGE_ACCOUNT_KEY", AZURITE_KEY.into())],
            ..place(
                "azure",
                "AZURE",
                true,
                |url| format!("az://leases/cli?endpoint={url}&account=devstoreaccount1"),
                far,
            )
        },
    ];
    match std::env::var("LEASEHOLD_TEST_FIRESTORE") {
        Ok(_) => all.push(place(
            "firestore",
            "FIRESTORE",
            true,
            |host| format!("firestore://demo/cli?endpoint=http://{host}"),
            far,
        )),
        Err(_) => println!("no Firestore emulator here: its double is tested with the library"),
    }
    all
}

/// Two that take every write, or check first and write then.
pub fn liars() -> Vec<Place> {
    let short = Duration::from_secs(16);
    let keys = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"].map(|name| (name, "S3RVER".to_owned()));
    vec![
        Place {
            name: "s3rver",
            server: server("S3RVER"),
            http: true,
            url: |url| format!("s3://leases/cli?endpoint={url}&region=us-east-1"),
            variables: keys.into(),
            short,
        },
        Place {
            name: "workers kv",
            server: server("KV"),
            http: true,
            url: |url| url.into(),
            variables: Vec::new(),
            short,
        },
    ]
}

/// A lease name nobody else uses: the servers are shared by all tests.
pub fn fresh(what: &str) -> String {
    format!("{what}-{:x}", leasehold::random::seed() as u64)
}

/// Does it in every place at once, and says where it went wrong.
pub fn everywhere(act: impl Fn(&Place) + Sync) {
    let act = &act;
    let wrong: Vec<&str> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            places().into_iter().map(|place| (place.name, scope.spawn(move || act(&place)))).collect();
        threads.into_iter().filter_map(|(name, thread)| thread.join().err().map(|_| name)).collect()
    });
    assert!(wrong.is_empty(), "not on {wrong:?}: see above");
}
