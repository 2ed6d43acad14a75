//! The statements. Each is one round trip, and none is prepared under a name.

/// The schema of the store, for people who create it by hand.
pub(super) const SCHEMA: &str = r#"-- What leasehold keeps in PostgreSQL: one schema, one table.
CREATE SCHEMA IF NOT EXISTS leasehold;
CREATE TABLE IF NOT EXISTS leasehold.records (
    key text COLLATE "C" PRIMARY KEY,
    version text NOT NULL,
    body bytea NOT NULL,
    written timestamptz NOT NULL
) WITH (fillfactor = 70);
-- For a role that does not own it, with its name in place of ROLE:
-- GRANT USAGE ON SCHEMA leasehold TO ROLE;
-- GRANT SELECT, INSERT, UPDATE, DELETE ON leasehold.records TO ROLE;
"#;

/// Creates the schema, under a lock: with `IF NOT EXISTS` alone, two sessions at once can fail.
pub(super) fn create() -> String {
    format!("SELECT pg_catalog.pg_advisory_xact_lock({CREATING});\n{SCHEMA}")
}

/// Creates only the table, for a role that may not create a schema, in a schema that exists.
pub(super) fn create_table() -> String {
    let table = SCHEMA.split_once("CREATE TABLE").map_or("", |(_, table)| table);
    format!("SELECT pg_catalog.pg_advisory_xact_lock({CREATING});\nCREATE TABLE{table}")
}

/// The lock for creating the table.
const CREATING: i64 = 0x6c65_6173_6568_6f6c;
/// The lock that every waiter holds, shared. [`cas_many`] tests it once to see whether there is any waiter.
pub(super) const WAITING: i64 = 0x6c65_6173_6568_6f6d;

/// How much of its identity the server shows. Hosted servers do not all allow everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdentityDetail {
    /// The system identifier and the timeline.
    Full,
    /// The database's OID and the timeline.
    Timeline,
    /// The database's OID.
    Database,
}

impl IdentityDetail {
    /// The next one to try if this is refused.
    pub fn less(self) -> Option<Self> {
        match self {
            Self::Full => Some(Self::Timeline),
            Self::Timeline => Some(Self::Database),
            Self::Database => None,
        }
    }

    /// One row: the instance, whether it is a replica, and the server process.
    fn me(self) -> String {
        let number = match self {
            Self::Full => "(SELECT system_identifier FROM pg_catalog.pg_control_system())",
            _ => "(SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())",
        };
        // The timeline is in the name of the current WAL file. A replica has none.
        let timeline = match self {
            Self::Database => "",
            _ => {
                " || '/' || CASE WHEN pg_catalog.pg_is_in_recovery() THEN '' ELSE pg_catalog.substr(\
                 pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8) END"
            }
        };
        format!(
            "me AS MATERIALIZED (SELECT {number}::text{timeline} AS instance, \
             pg_catalog.pg_is_in_recovery() AS replica, pg_catalog.pg_backend_pid() AS pid)"
        )
    }
}

/// A statement whose answer begins with the server's identity.
pub(super) type Statement = fn(IdentityDetail) -> String;

/// Microseconds since a record was written, by the server's clock.
const AGE: &str = "(EXTRACT(epoch FROM pg_catalog.clock_timestamp() - r.written) * 1000000)::bigint";
/// The time of the write, in microseconds.
const AT: &str = "(EXTRACT(epoch FROM w.written) * 1000000)::bigint";
/// Makes the commit wait for the disk, independent of the server's default. It is for this transaction only, so it works
/// behind a pooler too.
const SURE: &str = "CASE WHEN pg_catalog.current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') \
                    THEN pg_catalog.set_config('synchronous_commit', 'on', true) END";

/// $1 key.
pub(super) fn read(id: IdentityDetail) -> String {
    let me = id.me();
    format!(
        "WITH {me} SELECT me.*, r.version, r.body, {AGE} FROM me LEFT JOIN leasehold.records r ON r.key = $1"
    )
}

/// A condition that the server is the instance that was read last, which this parameter names (null: none yet). Another
/// server may answer at the same URL now. It may have lost writes, and have the expected version again.
fn met(parameter: &str) -> String {
    format!("({parameter}::text IS NULL OR {parameter} = (SELECT instance FROM me))")
}

/// One row: the time of the write, or null. Waiters are notified in the same transaction, if there are any: each holds a
/// shared lock, so a try of an exclusive lock fails. Without waiters there is no notification, because commits with
/// notifications wait for each other. `also`: more of the WITH clause.
fn one_write(
    id: IdentityDetail,
    (write, also): &(String, &str),
    lock: &str,
    channel: &str,
    version: &str,
) -> String {
    let me = id.me();
    format!(
        "WITH {me}, w AS ({write}){also} SELECT me.*, {AT}, CASE WHEN w.written IS NOT NULL THEN {SURE} END, \
         CASE WHEN w.written IS NOT NULL AND NOT pg_catalog.pg_try_advisory_xact_lock({lock}) \
         THEN pg_catalog.pg_notify({channel}, {version})::text END FROM me LEFT JOIN w ON true"
    )
}

/// $1 key, $2 version, $3 body, $4 lock, $5 channel, $6 instance.
///
/// The stamp is taken when the statement is executed: after the request was sent, which is when the holder starts to
/// count, and before the answer. It may be earlier than the end of a wait for a row lock. Then the lease ends earlier by
/// the store's clock, and still not before the holder expects it.
pub(super) fn create_one(id: IdentityDetail) -> String {
    let write = format!(
        "INSERT INTO leasehold.records (key, version, body, written) \
         SELECT $1, $2, $3, pg_catalog.clock_timestamp() WHERE {} ON CONFLICT (key) DO NOTHING \
         RETURNING written",
        met("$6")
    );
    one_write(id, &(write, ""), "$4", "$5", "$2")
}

/// $1 key, $2 expected version, $3 version, $4 body, $5 lock, $6 channel, $7 instance.
pub(super) fn update_one(id: IdentityDetail) -> String {
    update(id, "")
}

fn update(id: IdentityDetail, also: &str) -> String {
    let write = format!(
        "UPDATE leasehold.records SET version = $3, body = $4, written = pg_catalog.clock_timestamp() \
         WHERE key = $1 AND version = $2 AND {} RETURNING written",
        met("$7")
    );
    one_write(id, &(write, also), "$5", "$6", "$3")
}

/// As [`update_one`], with $8 the key, $9 the version and $10 the body of a record that is created if the update is made.
pub(super) fn update_with(id: IdentityDetail) -> String {
    update(
        id,
        ", l AS (INSERT INTO leasehold.records (key, version, body, written) \
         SELECT $8, $9, $10, w.written FROM w ON CONFLICT (key) DO NOTHING)",
    )
}

/// $1 key, $2 version, $3 lock, $4 channel, $5 instance.
pub(super) fn remove(id: IdentityDetail) -> String {
    let write = format!(
        "DELETE FROM leasehold.records WHERE key = $1 AND version = $2 AND {} \
         RETURNING pg_catalog.clock_timestamp() AS written",
        met("$5")
    );
    one_write(id, &(write, ""), "$3", "$4", "''")
}

/// $1 keys, $2 expected versions, $3 versions, $4 bodies, $5 the lock of all waiters, $6 instance.
///
/// The arrays come from sub-selects, so that the planner does not see their lengths. For long ones it would read the whole
/// table instead of looking up each key.
pub(super) fn cas_many(id: IdentityDetail) -> String {
    let (me, met) = (id.me(), met("$6"));
    format!(
        "WITH {me}, i AS MATERIALIZED (SELECT * FROM unnest((SELECT $1::text[]), (SELECT $2::text[]), \
         (SELECT $3::text[]), (SELECT $4::bytea[])) AS t (key, expected, version, body)), \
         c AS (INSERT INTO leasehold.records (key, version, body, written) \
         SELECT key, version, body, pg_catalog.clock_timestamp() FROM i WHERE expected IS NULL AND {met} \
         ON CONFLICT (key) DO NOTHING RETURNING key, version, written), \
         u AS (UPDATE leasehold.records r SET version = i.version, body = i.body, \
         written = pg_catalog.clock_timestamp() FROM i WHERE r.key = i.key AND r.version = i.expected AND {met} \
         RETURNING r.key, r.version, r.written), \
         w AS (SELECT * FROM c UNION ALL SELECT * FROM u), \
         quiet AS MATERIALIZED (SELECT pg_catalog.pg_try_advisory_xact_lock($5) AS so) \
         SELECT me.*, w.key, {AT}, CASE WHEN w.key IS NOT NULL THEN {SURE} END, \
         CASE WHEN w.key IS NOT NULL AND NOT (SELECT so FROM quiet) THEN pg_catalog.pg_notify('{CHANNEL}' || \
         pg_catalog.substr(pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(w.key, 'UTF8')), 'hex'), \
         1, 32), w.version)::text END FROM me LEFT JOIN w ON true"
    )
}

/// $1 prefix, $2 after, $3 the first text after all with the prefix, or null, $4 limit.
pub(super) fn list(id: IdentityDetail) -> String {
    let me = id.me();
    format!(
        "WITH {me}, r AS (SELECT * FROM leasehold.records WHERE key >= $1 AND key > $2 \
         AND ($3 IS NULL OR key < $3) AND pg_catalog.starts_with(key, $1) ORDER BY key LIMIT $4) \
         SELECT me.*, r.key, r.version, r.body, {AGE} FROM me LEFT JOIN r ON true ORDER BY r.key"
    )
}

/// The prefix of every channel's name; 32 hexadecimal digits of the key's SHA-256 follow.
pub(super) const CHANNEL: &str = "leasehold_";

/// The statement of `leasehold doctor`.
pub(super) fn examine(id: IdentityDetail) -> String {
    let me = id.me();
    let setting = |name: &str| format!("pg_catalog.current_setting('{name}')");
    format!(
        "WITH {me} SELECT me.*, {}, {}, {}, {}, {}, (SELECT count(*) FROM pg_catalog.pg_stat_replication), \
         EXISTS (SELECT FROM pg_catalog.pg_stat_ssl s WHERE s.pid = me.pid AND s.ssl) FROM me",
        setting("server_version"),
        setting("fsync"),
        setting("full_page_writes"),
        setting("synchronous_commit"),
        setting("synchronous_standby_names"),
    )
}
