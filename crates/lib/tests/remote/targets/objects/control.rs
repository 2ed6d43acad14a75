//! The variants that must leak: if they did not, the tests of the real one would prove nothing.

use std::thread;
use std::time::Duration;

use leasehold::backends::file::digest;
use leasehold::core::fence::Fence;
use leasehold::core::fence_record::FenceRecord;
use leasehold_testkit::proxy::Fault;
use object_store::path::Path;
use object_store::{Attribute, ObjectStoreExt, PutMode, PutOptions, UpdateVersion};
use tokio::runtime::Builder;

use super::{Bucket, after_line, azure_bucket, raw, s3_bucket};
use crate::object::Spot;
use crate::targets::kit::{Site, at, seal, write};

const LONG: Duration = Duration::from_secs(30);

fn fenced(token: u32, mode: PutMode) -> PutOptions {
    let mut options = PutOptions { mode, ..PutOptions::default() };
    options.attributes.insert(Attribute::Metadata("fence".into()), token.to_string().into());
    options
}

/// The fence in the metadata, the condition on the ETag: a successor that puts the same bytes again with
/// its own token leaves the ETag as it was, and the zombie's condition holds.
#[test]
fn a_fence_in_the_metadata_leaks_on_equal_bytes() {
    let bucket = s3_bucket();
    let path = Path::parse(&bucket.name).unwrap();
    let first = bucket.raw.put_opts(&path, "report".into(), fenced(33, PutMode::Create));
    let e_tag = bucket.runtime.block_on(first).unwrap().e_tag;
    let proxy = bucket.proxy();
    let strike = proxy.arm_on(b"stale report", Fault::Pause);
    let through = raw(&Spot::s3(&proxy.url(&bucket.server())), &proxy.url(&bucket.server()));
    let (at, version) = (path.clone(), UpdateVersion { e_tag: e_tag.clone(), version: None });
    let zombie = thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let put = through.put_opts(&at, "stale report".into(), fenced(33, PutMode::Update(version)));
        runtime.block_on(put).is_ok()
    });
    assert!(strike.wait(LONG));
    let sealed = UpdateVersion { e_tag: e_tag.clone(), version: None };
    let seal = bucket.raw.put_opts(&path, "report".into(), fenced(34, PutMode::Update(sealed)));
    let resealed = bucket.runtime.block_on(seal).unwrap().e_tag;
    assert_eq!(resealed, e_tag, "equal bytes have equal ETags here");
    strike.release();
    assert!(zombie.join().unwrap(), "the harness cannot see a leak");
    assert_eq!(bucket.get(&bucket.name).as_deref(), Some(&b"stale report"[..]));
    println!("fence in the metadata: 1 zombie, 1 leaked");
}

/// Everything as it should be, but for the condition on the pointer.
fn leaks_without_a_condition(bucket: Bucket, make: fn(&str) -> Spot) {
    seal(bucket.open().as_mut(), 33);
    write(bucket.open().as_mut(), 33, "report").unwrap();
    let proxy = bucket.proxy();
    let record = FenceRecord::decode(after_line(&bucket.get(&bucket.name).unwrap())).unwrap();
    let stale = b"stale report";
    let name = format!("00000002.33.2.{}", &digest(stale)["sha256:".len()..]);
    bucket.put(&format!("{}.leasehold/{name}", bucket.name), stale);
    let fence = Fence { seq: 2, digest: digest(stale), ..record.fence };
    let record = FenceRecord::done(fence).with_payload(Some(name)).encode();
    let pointer = [format!("leasehold record {:032x}\n", 1).as_bytes(), &record].concat();
    let strike = proxy.arm_on(bucket.swap_mark(), Fault::Pause);
    let server = proxy.url(&bucket.server());
    let (through, path) = (raw(&make(&server), &server), Path::parse(&bucket.name).unwrap());
    let zombie = thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(through.put(&path, pointer.into())).is_ok()
    });
    assert!(strike.wait(LONG));
    seal(bucket.open().as_mut(), 34);
    strike.release();
    assert!(zombie.join().unwrap());
    assert_eq!(bucket.text().as_deref(), Some("stale report"), "the harness cannot see a leak");
    assert_eq!(at(bucket.open().as_mut()), (33, 2), "and the fence went back");
    println!("{}: pointer put without a condition: 1 zombie, 1 leaked", bucket.name());
}

#[test]
fn a_pointer_without_a_condition_leaks() {
    leaks_without_a_condition(s3_bucket(), Spot::s3);
    leaks_without_a_condition(azure_bucket(), Spot::azure);
}
