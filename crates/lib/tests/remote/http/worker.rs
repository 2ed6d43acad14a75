//! The worker, on workerd.

#[test]
fn conformance() {
    super::conforms(&std::env::var("LEASEHOLD_TEST_WORKERD").unwrap(), None);
}
