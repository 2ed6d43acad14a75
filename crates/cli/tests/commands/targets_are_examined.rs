//! The server of a target has to show that it compares when it is first sealed: a liar is refused before anything is
//! run, and whoever did well is remembered in the lease's own store.

use leasehold_testkit::git::{RepoAccess, SETTINGS, Server, Yard};
use leasehold_testkit::server;
use serde_json::Value;

use crate::world::World;

/// A target, and what its clients need.
struct There {
    target: String,
    variables: Vec<(String, String)>,
}

impl There {
    fn bucket(variable: &str, key: &str) -> Self {
        let name = format!("{:032x}", leasehold::random::seed());
        let target = format!("s3://leases/{name}/today.json?endpoint={}&region=us-east-1", server(variable));
        let variables = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"].map(|name| (name.into(), key.into()));
        Self { target, variables: variables.into() }
    }

    fn repository(server: &Server) -> Self {
        let variables = SETTINGS.map(|(name, value)| (name.into(), value.into()));
        Self { target: format!("git:{}", server.url()), variables: variables.into() }
    }

    fn world(&self) -> World {
        let mut world = World::new();
        world.variables.clone_from(&self.variables);
        world
    }
}

/// What is kept of targets there: keys and versions.
fn kept(store: &str) -> Vec<(String, String)> {
    let mut store = leasehold::stores::open(store).unwrap_or_else(|e| panic!("{e}"));
    let found = pollster::block_on(store.list("examined/", "", 99)).unwrap();
    let read = |key: String| {
        let stored = pollster::block_on(store.read(&key)).unwrap().expect("it was listed");
        (key, stored.version.0)
    };
    found.into_iter().map(|listed| listed.key).map(read).collect()
}

fn examined(world: &World, target: &str) -> (i32, Value) {
    let ended = world.run(&["--json", "doctor", "--target", target]);
    let last = ended.out.lines().last().unwrap_or_else(|| panic!("{ended:#?}"));
    (ended.code, serde_json::from_str(last).unwrap())
}

/// Twice, for the lease is given back; and nothing is kept of it.
fn refused(there: &There) {
    let world = there.world();
    let (store, target) = (world.store("dir"), there.target.as_str());
    for _ in 0..2 {
        world.run(&["--store", &store, "run", "site", "--fence", target, "touch", "ran"]).is(78, "");
    }
    assert!(!world.path("ran").exists() && kept(&store).is_empty());
    let (code, said) = examined(&world, target);
    assert_eq!((code, &said["usable"], &said["exit"]), (78, &false.into(), &78.into()), "{said}");
}

#[test]
fn a_bucket_that_heeds_no_conditions_is_refused() {
    (0..20).for_each(|_| refused(&There::bucket("S3RVER", "S3RVER")));
}

#[test]
fn a_git_server_that_does_not_compare_is_refused() {
    for how in ["all", "each"] {
        for _ in 0..10 {
            let yard = Yard::new(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")));
            refused(&There::repository(&Server::lying(how, yard.dir())));
        }
    }
}

/// By the second machine it is only looked up; on this machine there is nobody to ask.
#[test]
fn who_did_well_is_remembered_with_the_lease() {
    let yard = Yard::new(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")));
    let (daemon, web) =
        (Server::start(RepoAccess::Daemon, yard.dir()), Server::start(RepoAccess::Http, yard.dir()));
    let key = format!("{:032x}", leasehold::random::seed());
    let redis = There { target: format!("{}/#today-{key}", server("REDIS_AUTH")), variables: vec![] };
    // One repository has one fence: each by a store of its own.
    let repositories = [There::repository(&daemon), There::repository(&web)];
    for there in [There::bucket("S3", "test"), redis].into_iter().chain(repositories) {
        let (world, second) = (there.world(), there.world());
        let (store, target) = (world.store("dir"), there.target.as_str());
        let run = |world: &World, target: &str| {
            world.run(&["--store", &store, "run", "site", "--fence", target, "true"]).is(0, "");
        };
        run(&world, "file:page");
        assert_eq!(kept(&store), []);
        run(&world, target);
        let first = kept(&store);
        assert!(first.len() == 1 && first[0].0.starts_with("examined/site/"), "{first:?}");
        run(&second, target);
        assert_eq!(kept(&store), first, "it was asked again");
        // The same server, by another name of what lies there.
        if target.starts_with("s3:") {
            run(&second, &target.replace("today.json", "{date}.json"));
            assert_eq!(kept(&store), first, "it was asked about each object");
        }
        let (code, said) = examined(&second, target);
        assert_eq!((code, &said["usable"], &said["class"]), (0, &true.into(), &"atomic".into()), "{said}");
        if target.starts_with("git:") {
            let fence = leasehold::backends::git::FENCE_REF;
            leasehold_testkit::git::must(&yard.bare(), &["update-ref", "-d", fence]);
        }
        // Where there is no fence there is nothing to examine, and nothing is made.
        let other = There::bucket("S3", "test");
        let (code, said) = examined(&other.world(), &other.target);
        assert_eq!((code, &said["usable"]), (0, &Value::Null), "{said}");
        let said = other.world().run(&["doctor", "--target", &other.target]).out;
        assert!(said.contains("not examined") && said.contains("leasehold run NAME --fence s3:"), "{said}");
        assert_eq!(other.world().run(&["--json", "fence", "ls", &other.target]).json()["token"], Value::Null);
    }
}
