//! Fences from Rust: sealed before the lease is handed over, checked where it is written.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use leasehold::backends::file::FileTarget;
use leasehold::backends::gate::Gates;
use leasehold::backends::memory::MemoryStore;
use leasehold::core::fence::Bearer;
use leasehold::core::name::Name;
use leasehold::core::session::NotStarted;
use leasehold::targets::{Content, Target, TargetError};
use leasehold::{Error, Lease, Leases};
use pollster::block_on;

fn place(name: &str) -> PathBuf {
    let dir =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("fences-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

fn leases() -> Leases {
    let store = MemoryStore::new().unwrap();
    Leases::on(move || Ok(Box::new(store.clone())))
}

fn acquire(leases: &Leases, name: &str, target: &str) -> Result<Lease, Error> {
    let ask = leases.lease(name).ttl(Duration::from_secs(4)).fence(target);
    block_on(ask.acquire()).map(|acquired| acquired.lease().expect("free"))
}

#[test]
fn the_next_holder_shuts_the_last_one_out_before_it_writes() {
    let (dir, leases) = (place("next"), leases());
    let path = dir.join("page");
    let url = format!("file:{}", path.display());
    let first = acquire(&leases, "site", &url).unwrap();
    let old = Bearer::from(first.granted());
    let mut page = FileTarget::open(&path).unwrap();
    page.write(&old, None, Content::Bytes(b"first")).unwrap();
    block_on(first.release());
    let second = acquire(&leases, "site", &url).unwrap();
    let late = page.write(&old, None, Content::Bytes(b"late")).unwrap_err();
    assert!(matches!(&late, TargetError::Refused(refused) if refused.sealed().is_some()), "{late}");
    assert_eq!(fs::read(&path).unwrap(), b"first");
    page.write(&Bearer::from(second.granted()), None, Content::Bytes(b"second")).unwrap();
    let _ = fs::remove_dir_all(dir);
}

#[test]
fn a_lease_whose_target_cannot_be_sealed_is_not_handed_over() {
    let (dir, leases) = (place("other"), leases());
    let url = format!("file:{}", dir.join("page").display());
    drop(acquire(&leases, "site", &url).unwrap());
    match acquire(&leases, "other", &url) {
        Err(Error::NotAcquired(NotStarted::Seal { why, .. })) => {
            assert!(why.contains("the lease site"), "{why}")
        }
        other => panic!("{other:?}"),
    }
    // It was given back: nothing is left to wait for.
    let free = format!("file:{}", dir.join("another").display());
    assert_eq!(acquire(&leases, "other", &free).unwrap().token().unwrap().get(), 2);
    assert!(matches!(acquire(&leases, "site", "fiel:page"), Err(Error::Target(_))));
    let _ = fs::remove_dir_all(dir);
}

/// A gate by its name is in the store of the lease, not in a file of that name.
#[test]
fn a_gate_is_sealed_in_the_leases_own_store() {
    let store = MemoryStore::new().unwrap();
    let handle = store.clone();
    let leases = Leases::on(move || Ok(Box::new(handle.clone())));
    let gates = Gates::new(Arc::new(move || Ok(Box::new(store.clone()))));
    let mut mail = gates.gate(&Name::new("mail").unwrap());
    let first = acquire(&leases, "site", "gate:mail").unwrap();
    let old = Bearer::from(first.granted());
    mail.enter(&old, Duration::from_secs(20)).unwrap();
    block_on(first.release());
    let _second = acquire(&leases, "site", "gate:mail").unwrap();
    let late = mail.enter(&old, Duration::from_secs(20)).unwrap_err();
    assert!(matches!(&late, TargetError::Refused(refused) if refused.sealed().is_some()), "{late}");
    assert!(matches!(acquire(&leases, "other", "gate:Mail"), Err(Error::Invalid(_))));
}
