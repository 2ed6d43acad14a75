use leasehold::stores::{Store, open};
use leasehold_testkit::{faults::Bench, proxy::Proxy, server};
fn store(url: &str) -> Box<dyn Store> {
    open(url).unwrap_or_else(|e| panic!("{url}: {e}"))
}
fn all(name: &str, http: bool, variable: &str, url: fn(&str) -> String) {
    let base = server(variable);
    let proxy = if http { Proxy::http(&base) } else { Proxy::tcp(&base) };
    let (through, direct) = (url(&proxy.url(&base)), url(&base));
    let bench = Bench::new(name, &proxy, || store(&through), || store(&direct));
    let (a, b) = (bench.dropped(500), bench.late(200));
    println!("{name}: {a}\n{name}: {b}");
    println!("{name}: {:?}", bench.round_trips());
    a.assert_clean(500);
    b.assert_clean(200);
    bench.round_trips().assert_fewest();
}
#[test]
fn postgres() {
    all("pg", false, "POSTGRES", |u| u.into())
}
#[test]
fn pgbouncer() {
    all("pgb", false, "PGBOUNCER", |u| u.into())
}
#[test]
fn redis() {
    all("redis", false, "REDIS", |u| u.into())
}
#[test]
fn s3() {
    all("s3", true, "S3", |u| format!("s3://leases/cli?endpoint={u}&region=us-east-1"))
}
#[test]
fn azure() {
    all("azure", true, "AZURE", |u| format!("az://leases/cli?endpoint={u}&account=devstoreaccount1"))
}
#[test]
fn firestore() {
    all("fs", true, "FIRESTORE", |u| format!("firestore://demo/cli?endpoint=http://{u}"))
}
#[test]
fn http() {
    all("http", true, "WORKERD", |u| u.into())
}
