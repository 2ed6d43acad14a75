//! A yard with a server, a clone, and pushes on behalf of runs.

use std::path::{Path, PathBuf};
use std::process::Command;

use leasehold::backends::git::GitTarget;
use leasehold::core::fence::{Bearer, FenceMode};
use leasehold::core::fence_record::FenceRecord;
use leasehold::core::ids::{Epoch, Grant, Token};
use leasehold::core::name::Name;
use leasehold::host::grant_text;
use leasehold::state::StateDir;
use leasehold::targets::Target;
use leasehold_testkit::git::{RepoAccess, SETTINGS, Server, Yard};
use leasehold_testkit::proxy::Proxy;

use crate::world::{Ended, World};

pub const MAIN: &str = "refs/heads/main";

/// Everything that belongs to one test. Dropped in this order.
pub struct Scene {
    pub server: Server,
    /// What the clone goes through.
    pub proxy: Option<Proxy>,
    pub yard: Yard,
    pub clone: PathBuf,
    pub world: World,
}

pub fn bearer(token: u64) -> Bearer {
    Bearer {
        lease: Name::new("site").unwrap(),
        epoch: Epoch { generation: 1, id: 7 },
        token: Token::new(token).unwrap(),
        grant: Grant(1000 + u128::from(token)),
    }
}

/// What a job of the run with this token finds in its environment.
pub fn run_variables(token: u64) -> [(&'static str, String); 3] {
    let bearer = bearer(token);
    let text = grant_text(&bearer);
    let (lease, token) = (bearer.lease, bearer.token);
    [
        ("LEASEHOLD_LEASE", lease.to_string()),
        ("LEASEHOLD_TOKEN", token.to_string()),
        ("LEASEHOLD_GRANT", text),
    ]
}

impl Scene {
    pub fn new(way: RepoAccess) -> Self {
        let (world, yard) = Self::place();
        let server = Server::start(way, yard.dir());
        let clone = yard.clone("clone", &server.url());
        Self { server, proxy: None, yard, clone, world }
    }

    /// With a server that does not compare, and a proxy before it.
    pub fn lying(how: &str) -> Self {
        let (world, yard) = Self::place();
        let server = Server::lying(how, yard.dir());
        let proxy = Proxy::tcp(&server.url());
        let clone = yard.clone("clone", &proxy.url(&server.url()));
        Self { server, proxy: Some(proxy), yard, clone, world }
    }

    fn place() -> (World, Yard) {
        let mut world = World::new();
        world.variables = SETTINGS.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let yard = Yard::new(&world.path(""));
        (world, yard)
    }

    pub fn target(&self) -> GitTarget {
        GitTarget::open(&self.server.url()).unwrap().keeping_in(StateDir::at(self.world.state()))
    }

    pub fn seal(&self, token: u64) {
        self.target().seal(&bearer(token), FenceMode::Enforce).unwrap();
    }

    pub fn fence(&self) -> FenceRecord {
        self.target().show().unwrap().unwrap()
    }

    /// `leasehold push` by a job of the run with this token, in this clone.
    pub fn push_in(&self, clone: &Path, token: u64, args: &[&str]) -> Command {
        let mut command = self.world.command(&["push"]);
        command.args(args).envs(run_variables(token)).current_dir(clone);
        command
    }

    pub fn push(&self, token: u64, args: &[&str]) -> Ended {
        self.push_in(&self.clone, token, args).output().unwrap().into()
    }

    /// A job in the clone, under a real lease with a real fence.
    pub fn job(&self, flags: &[&str], script: &str) -> Ended {
        let mut command = self.world.command(&["run", "site"]);
        command.args(flags).args(["--fence", "git:origin", "--", "sh", "-ec", script]);
        command.current_dir(&self.clone).output().unwrap().into()
    }
}
