//! `sslmode`, against a server with a certificate of an authority of our own.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use leasehold::stores::FailureKind;

use super::own::{Server, done};
use super::{Raw, opened, read};

/// Makes an authority, another one, and a certificate of the first for the name `localhost`.
fn certificates(dir: &Path) {
    let openssl = |args: &str| {
        let mut command = Command::new("openssl");
        done(command.args(args.split(' ')).current_dir(dir));
    };
    for name in ["ca", "other"] {
        openssl(&format!(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN={name} -keyout {name}.key -out {name}.crt"
        ));
    }
    openssl(
        "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=localhost -keyout server.key -out server.csr",
    );
    fs::write(dir.join("ext"), "subjectAltName=DNS:localhost\nbasicConstraints=CA:FALSE\n").unwrap();
    openssl(
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out server.crt",
    );
}

/// The same server, with TLS from now on.
fn with_tls(server: &mut Server, hba: &str) {
    server.kill();
    let data = server.data();
    let about = fs::metadata(&data).unwrap();
    use std::os::unix::fs::MetadataExt;
    for file in ["server.crt", "server.key"] {
        let to = data.join(file);
        fs::copy(server.dir.join(file), &to).unwrap();
        fs::set_permissions(&to, fs::Permissions::from_mode(0o600)).unwrap();
        chown(&to, Some(about.uid()), Some(about.gid())).unwrap();
    }
    fs::write(data.join("postgresql.auto.conf"), "ssl = on\n").unwrap();
    fs::write(data.join("pg_hba.conf"), hba).unwrap();
    server.run();
}

#[test]
fn modes_mean_what_they_mean_to_libpq() {
    let mut server = Server::start(&[]);
    certificates(&server.dir);
    let (dir, port) = (server.dir.display().to_string(), server.port);
    let there = |host: &str, query: &str| {
        let query = query
            .replace("CA", &format!("sslrootcert={dir}/ca.crt"))
            .replace("OTHER", &format!("sslrootcert={dir}/other.crt"));
        let mut store = opened(&format!("postgres://lease@{host}:{port}/postgres?{query}"));
        read(&mut store, "x").map(|_| ())
    };
    // Without TLS: what insists on it is refused, the rest goes on.
    for (mode, good) in
        [("disable", true), ("allow", true), ("prefer", true), ("require", false), ("verify-full&CA", false)]
    {
        assert_eq!(there("localhost", &format!("sslmode={mode}")).is_ok(), good, "without TLS: {mode}");
    }
    // Only TLS is let in.
    with_tls(&mut server, "hostssl all all 127.0.0.1/32 trust\nlocal all all trust\n");
    for (host, query, good) in [
        ("127.0.0.1", "sslmode=disable", false),
        ("127.0.0.1", "sslmode=allow", true),
        ("127.0.0.1", "", true),
        ("127.0.0.1", "sslmode=require", true),
        ("127.0.0.1", "sslmode=require&CA", true),
        ("127.0.0.1", "sslmode=require&OTHER", false),
        ("127.0.0.1", "sslmode=verify-ca&CA", true),
        ("127.0.0.1", "sslmode=verify-ca&OTHER", false),
        ("127.0.0.1", "sslmode=verify-full&CA", false),
        ("localhost", "hostaddr=127.0.0.1&sslmode=verify-full&CA", true),
        ("localhost", "hostaddr=127.0.0.1&sslmode=verify-full&OTHER", false),
        ("localhost", "hostaddr=127.0.0.1&sslmode=verify-full&sslrootcert=system", false),
        ("wrong.example", "hostaddr=127.0.0.1&sslmode=verify-full&CA", false),
        ("wrong.example", "hostaddr=127.0.0.1&sslmode=verify-ca&CA", true),
    ] {
        let got = there(host, query);
        assert_eq!(got.is_ok(), good, "{host} {query}: {got:?}");
        if let (Err(failure), true) = (got, query.contains("verify")) {
            assert_eq!(failure.kind, FailureKind::Unusable, "{}", failure.message);
            assert!(failure.message.contains("TLS handshake"), "{}", failure.message);
        }
    }
    // It is really encrypted, and what asks for less gets less.
    with_tls(&mut server, "host all all 127.0.0.1/32 trust\nlocal all all trust\n");
    let raw = Raw::connect(&server.url_as("lease", "?sslmode=disable"));
    for (mode, encrypted) in [("disable", "0"), ("allow", "0"), ("prefer", "1"), ("require", "1")] {
        let mut store = opened(&server.url_as("lease", &format!("?sslmode={mode}&application_name={mode}")));
        read(&mut store, "x").unwrap();
        let sql = format!(
            "SELECT count(*) FROM pg_stat_activity JOIN pg_stat_ssl USING (pid) WHERE ssl AND application_name = '{mode}'"
        );
        assert_eq!(raw.sql(&sql), [encrypted], "{mode}");
    }
    // A server that refuses TLS sessions is reached without by prefer, as with libpq.
    with_tls(&mut server, "hostnossl all all 127.0.0.1/32 trust\nlocal all all trust\n");
    assert!(there("127.0.0.1", "").is_ok());
    assert!(there("127.0.0.1", "sslmode=require").is_err());
}
