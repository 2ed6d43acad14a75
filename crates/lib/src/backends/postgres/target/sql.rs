//! The statements that install a guard, and those that read and change its fence.

use super::guard::PgTable;
use crate::targets::guard::{Others, ShownBy};
use crate::targets::sql::PREFIX;

/// The lock for installing and removing guards.
pub(super) const INSTALLING: i64 = 0x6c65_6173_6775_6172;

/// The schema that all guards of a database share.
///
/// `check` has the rule of a write. It agrees with `leasehold_core::fence::verdict`, whose table the tests replay
/// against it. A session that shows a run first takes the advisory lock, shared. A seal takes it exclusively, and
/// later sessions wait behind the seal, so a seal is never starved. Then the session locks the fence's row, shared.
/// In a transaction with an older snapshot this fails with 40001, while a plain read would see the old fence. Both
/// locks are kept until the transaction ends.
pub(super) fn common() -> String {
    format!(
        r"CREATE SCHEMA leasehold_guard;
COMMENT ON SCHEMA leasehold_guard IS 'leasehold guard, layout 1';
CREATE TABLE leasehold_guard.fences (
    id bigint PRIMARY KEY,
    guarded regclass NOT NULL UNIQUE,
    others text NOT NULL CHECK (others IN ('allow', 'refuse')),
    mode text NOT NULL DEFAULT 'enforce' CHECK (mode IN ('enforce', 'observe')),
    lease text,
    token bigint CHECK (token BETWEEN 1 AND 9007199254740991),
    generation bigint,
    epoch text,
    grant_id text,
    carrier text,
    let_in bigint NOT NULL DEFAULT 0,
    CHECK (num_nulls(lease, token, generation, epoch, grant_id, carrier) IN (0, 6))
) WITH (fillfactor = 50);
CREATE TABLE leasehold_guard.let_in (
    fence bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    pid integer NOT NULL DEFAULT pg_backend_pid(),
    role text NOT NULL DEFAULT session_user,
    reason text NOT NULL,
    token bigint
);
CREATE INDEX ON leasehold_guard.let_in (fence);
{refuse}{check}{admit}REVOKE ALL ON FUNCTION leasehold_guard.refuse(leasehold_guard.fences, text, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION leasehold_guard.check() FROM PUBLIC;
GRANT USAGE ON SCHEMA leasehold_guard TO PUBLIC;
",
        refuse = refuse(),
        check = check(),
        admit = admit(),
    )
}

const DEFINER: &str = "LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp";

/// The trigger. Both locks are needed: without any, a transaction that passed the check may commit after the seal; with
/// the advisory lock alone, one with an old snapshot still sees the old fence.
pub fn check() -> String {
    // A plain expression is evaluated directly, while PERFORM would plan and run a query. That of the lock is never null.
    format!(
        r"CREATE OR REPLACE FUNCTION leasehold_guard.check() RETURNS trigger
{DEFINER} AS $guard$
DECLARE
    shown text := nullif(current_setting('leasehold.run', true), '');
    sealed text;
    fence leasehold_guard.fences;
BEGIN
    -- A second argument: names are not taken, for a pooler may leave one client's to the next.
    IF shown IS NULL AND TG_NARGS = 1 THEN
        -- A pooler may add where the session comes from, after a space.
        shown := split_part(current_setting('application_name'), ' ', 1);
        IF left(shown, {length}) <> '{PREFIX}' THEN
            shown := NULL;
        END IF;
    END IF;
    IF shown IS NOT NULL THEN
        IF pg_advisory_xact_lock_shared(TG_ARGV[0]::bigint) IS NOT NULL THEN
            SELECT carrier INTO sealed FROM leasehold_guard.fences WHERE id = TG_ARGV[0]::bigint FOR SHARE;
        END IF;
        IF sealed = shown THEN
            RETURN NULL;
        END IF;
    END IF;
    SELECT * INTO fence FROM leasehold_guard.fences WHERE id = TG_ARGV[0]::bigint;
    IF shown IS NULL THEN
        IF fence.others = 'allow' THEN
            RETURN NULL;
        END IF;
    END IF;
    PERFORM leasehold_guard.refuse(fence, shown, format('%I.%I', TG_TABLE_SCHEMA, TG_TABLE_NAME));
    RETURN NULL;
END
$guard$;
",
        length = PREFIX.len(),
    )
}

/// The same check inside the caller's own transaction, before the first write.
fn admit() -> String {
    format!(
        r"CREATE FUNCTION leasehold_guard.admit(target regclass, shown text) RETURNS void
{DEFINER} AS $guard$
DECLARE
    fence leasehold_guard.fences;
BEGIN
    SELECT * INTO fence FROM leasehold_guard.fences WHERE guarded = target;
    PERFORM pg_advisory_xact_lock_shared(fence.id);
    SELECT * INTO fence FROM leasehold_guard.fences WHERE guarded = target FOR SHARE;
    PERFORM set_config('leasehold.run', shown, true);
    IF fence.carrier = shown THEN
        RETURN;
    END IF;
    PERFORM leasehold_guard.refuse(fence, shown, target::text);
END
$guard$;
"
    )
}

/// Raises the refusal; in observe mode, counts it. The counts have their own table: every writer locks the fence's row,
/// so two writers that counted there would deadlock.
pub(super) fn refuse() -> String {
    format!(
        r"CREATE OR REPLACE FUNCTION leasehold_guard.refuse(fence leasehold_guard.fences, shown text, target text) RETURNS void
{DEFINER} AS $guard$
DECLARE
    parts text[] := string_to_array(shown, ':');
    sealed text[] := string_to_array(fence.carrier, ':');
    mine bigint := CASE WHEN parts[1] || ':' = '{PREFIX}' AND parts[2] ~ '^[0-9]{{1,16}}$' THEN parts[2]::bigint END;
    state text;
    reason text;
    message text;
    hint text;
BEGIN
    IF fence.id IS NULL THEN
        state := 'LH007';
        message := format('leasehold: write to %s refused: its guard has no fence, so nobody can tell who may write', target);
        hint := 'Nothing was written. Restore the row of this table in leasehold_guard.fences from a backup, or remove the guard: leasehold guard remove.';
    ELSIF shown IS NULL THEN
        state := 'LH002';
        reason := 'no-grant';
        message := format('leasehold: write to %s refused: this session belongs to no run', target);
        hint := 'Nothing was written. Write it in a job: leasehold run NAME --fence TARGET -- COMMAND. If this is one, its program sets the application name itself; then SET LOCAL leasehold.run to the value of LEASEHOLD_SQL_GRANT.';
    ELSIF mine IS NULL OR cardinality(parts) <> 5 THEN
        state := 'LH008';
        reason := 'garbled';
        message := format('leasehold: write to %s refused: the text that this session shows names no run', target);
        hint := 'Nothing was written. Show the value of LEASEHOLD_SQL_GRANT, unchanged.';
    ELSIF fence.token IS NULL THEN
        state := 'LH003';
        reason := 'not-sealed';
        message := format('leasehold: write to %s refused: no run has fenced it, so there is no token to compare with your token %s', target, mine);
        hint := 'Nothing was written. Name the target when you start the run: leasehold run NAME --fence TARGET.';
    ELSIF parts[4] <> sealed[4] THEN
        state := 'LH006';
        reason := 'other-lease';
        message := format('leasehold: write to %s refused: it belongs to the lease %s (token %s), and this run holds another lease (token %s)', target, fence.lease, fence.token, mine);
        hint := 'Nothing was written. Jobs that write the same thing share its lease.';
    ELSIF parts[5] <> sealed[5] THEN
        state := 'LH005';
        reason := 'epoch';
        message := format('leasehold: write to %s refused: your token %s and token %s, which it has seen, are from different stores, or the record of %s was deleted', target, mine, fence.token, fence.lease);
        hint := 'Nothing was written. If you moved to another store on purpose, and nothing runs there any more: leasehold fence reset TARGET.';
    ELSIF mine < fence.token THEN
        state := 'LH001';
        reason := 'stale';
        message := format('leasehold: write to %s refused: your token %s is older than %s, which it has seen', target, mine, fence.token);
        hint := 'This run lost its lease while it was paused; its transaction is stale and was not written. Nothing to repair: run it again.';
    ELSIF mine > fence.token THEN
        state := 'LH003';
        reason := 'not-sealed';
        message := format('leasehold: write to %s refused: this run (token %s) did not name it, and it was last fenced with token %s', target, mine, fence.token);
        hint := 'Nothing was written. Name the target when you start the run: leasehold run NAME --fence TARGET.';
    ELSE
        state := 'LH004';
        reason := 'fork';
        message := format('leasehold: write to %s refused: another run of %s used token %s there', target, fence.lease, mine);
        hint := 'Nothing was written. Two runs were given one token: the lease store lost a write; look at it before you run again.';
    END IF;
    IF fence.mode = 'observe' THEN
        INSERT INTO leasehold_guard.let_in (fence, reason, token) VALUES (fence.id, reason, mine);
        RETURN;
    END IF;
    RAISE EXCEPTION USING ERRCODE = state, MESSAGE = message, HINT = hint,
        DETAIL = CASE WHEN fence.token IS NULL THEN '' ELSE json_build_object('lease', fence.lease, 'token', fence.token)::text END;
END
$guard$;
"
    )
}

/// The body of [`refuse`], as PostgreSQL stores it.
pub(super) fn refuse_body() -> String {
    refuse().split("$guard$").nth(1).unwrap_or_default().into()
}

/// One table's fence.
pub(super) fn fence(id: i64, root: &PgTable, others: Others) -> String {
    format!(
        "INSERT INTO leasehold_guard.fences (id, guarded, others) VALUES ({id}, {}::regclass, '{}');\n",
        literal(&root.name),
        others.word()
    )
}

/// Sets whether sessions that belong to no run may write.
pub(super) fn others(id: i64, others: Others) -> String {
    format!("UPDATE leasehold_guard.fences SET others = '{}' WHERE id = {id};\n", others.word())
}

/// Puts the trigger on one table of the tree, as far as it is missing.
pub(super) fn cover(id: i64, table: &PgTable, by: ShownBy) -> String {
    let name = &table.name;
    let only = if by == ShownBy::Setting { ", 'setting'" } else { "" };
    let create = format!(
        "CREATE TRIGGER leasehold_guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {name}\n    \
         FOR EACH STATEMENT EXECUTE FUNCTION leasehold_guard.check('{id}'{only});\n"
    );
    let create = match table.shown_by(id) {
        Some(before) if before == by => String::new(),
        Some(_) => format!("{}{create}", uncover(name)),
        None => create,
    };
    format!("{create}ALTER TABLE {name} ENABLE ALWAYS TRIGGER leasehold_guard;\n")
}

/// Removes the trigger.
pub(super) fn uncover(name: &str) -> String {
    format!("DROP TRIGGER leasehold_guard ON {name};\n")
}

/// Removes one table's fence.
pub(super) fn forget(id: i64) -> String {
    format!(
        "DELETE FROM leasehold_guard.let_in WHERE fence = {id};\nDELETE FROM leasehold_guard.fences WHERE id = {id};\n"
    )
}

/// Undoes [`common`], without CASCADE, so that objects of other users are not removed.
pub(super) const NOTHING_LEFT: &str = "\
DROP FUNCTION leasehold_guard.admit(regclass, text);
DROP FUNCTION leasehold_guard.check();
DROP FUNCTION leasehold_guard.refuse(leasehold_guard.fences, text, text);
DROP TABLE leasehold_guard.let_in;
DROP TABLE leasehold_guard.fences;
DROP SCHEMA leasehold_guard;
";

/// A script as a function body in the open transaction. There the server itself refuses statements that begin or end a
/// transaction. The quotes are random, so the script cannot contain them.
pub(super) fn as_one(script: &str) -> String {
    let quote = |what: &str| format!("$leasehold_{what}_{:032x}$", crate::random::seed());
    let (outer, inner) = (quote("do"), quote("script"));
    format!("DO {outer}BEGIN EXECUTE {inner}{script}{inner}; END{outer}")
}

/// A text as an SQL literal.
fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// The table that `$1` names, with its partitions and children.
pub(super) const TREE: &str = "\
WITH RECURSIVE tree (relid) AS (
    SELECT $1::oid UNION SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN tree t ON i.inhparent = t.relid)
SELECT c.oid, pg_catalog.format('%I.%I', n.nspname, c.relname), c.relkind::text, pg_catalog.pg_get_userbyid(c.relowner)::text,
    pg_catalog.pg_has_role(c.relowner, 'USAGE'), t.tgenabled::text, t.tgargs, f.nspname = 'leasehold_guard',
    (SELECT pg_catalog.format('%I.%I', pn.nspname, p.relname) FROM pg_catalog.pg_inherits i
        JOIN pg_catalog.pg_class p ON p.oid = i.inhparent JOIN pg_catalog.pg_namespace pn ON pn.oid = p.relnamespace
        WHERE i.inhrelid = c.oid AND i.inhparent NOT IN (SELECT relid FROM tree) LIMIT 1)
FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.relid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN pg_catalog.pg_trigger t ON t.tgrelid = c.oid AND t.tgname = 'leasehold_guard' AND NOT t.tgisinternal
    LEFT JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid LEFT JOIN pg_catalog.pg_namespace f ON f.oid = p.pronamespace
ORDER BY c.oid <> $1::oid, 2";

/// Every table with the trigger of this fence, also those that were detached.
pub(super) const COVERED: &str = "\
SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) FROM pg_catalog.pg_trigger t
    JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid JOIN pg_catalog.pg_namespace f ON f.oid = p.pronamespace
WHERE t.tgname = 'leasehold_guard' AND f.nspname = 'leasehold_guard' AND t.tgargs IN ($1, $2) ORDER BY 1";

/// The table's OID, whether the guard's schema exists, and the role's permissions.
pub(super) const HERE: &str = "\
SELECT pg_catalog.to_regclass($1)::oid, pg_catalog.to_regnamespace('leasehold_guard') IS NOT NULL,
    pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE'), pg_catalog.current_database()::text,
    current_user::text, pg_catalog.pg_is_in_recovery(),
    coalesce(pg_catalog.has_table_privilege(pg_catalog.to_regclass('leasehold_guard.fences'), 'INSERT, UPDATE, DELETE'), true)";

/// The body of the installed [`refuse`], and whether this role may replace it.
pub(super) const REFUSE: &str = "\
SELECT p.prosrc, pg_catalog.pg_has_role(p.proowner, 'USAGE') AND pg_catalog.has_schema_privilege(n.oid, 'CREATE')
FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname = 'leasehold_guard' AND p.proname = 'refuse'";

/// The fence of the table with this OID.
pub(super) const FENCE: &str = "\
SELECT id, others, mode, lease, token, generation, epoch, grant_id, carrier,
    let_in + (SELECT count(*) FROM leasehold_guard.let_in l WHERE l.fence = f.id)
FROM leasehold_guard.fences f WHERE guarded = $1::oid::regclass";

/// The same for a change, under the lock, so that the count cannot grow.
pub(super) const FENCE_LOCKED: &str = "\
SELECT id, others, mode, lease, token, generation, epoch, grant_id, carrier, let_in
FROM leasehold_guard.fences f WHERE guarded = $1::oid::regclass FOR UPDATE";

/// Takes the counted refusals, to add them to the fence.
pub(super) const FOLD: &str = "\
WITH gone AS (DELETE FROM leasehold_guard.let_in WHERE fence = $1 RETURNING 1) SELECT count(*) FROM gone";

pub(super) const RAISE: &str = "\
UPDATE leasehold_guard.fences SET lease = $2, token = $3, generation = $4, epoch = $5, grant_id = $6, carrier = $7,
    mode = $8, let_in = $9 WHERE id = $1";

pub(super) const COUNT: &str = "UPDATE leasehold_guard.fences SET mode = $2, let_in = $3 WHERE id = $1";

/// The transactions for which a seal waits.
pub(super) const HOLDERS: &str = "\
SELECT l.pid, a.usename::text, a.state, pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() - a.xact_start)::bigint
FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
    AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
    AND l.classid::bigint = $1 AND l.objid::bigint = $2 AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid()
ORDER BY l.pid";
