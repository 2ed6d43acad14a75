//! Installing a guard, removing it, and reading its state.

use std::fmt::Write as _;

use leasehold_core::fence::Fence;
use tokio_postgres::types::{ToSql, Type};

use super::{PgCall, PgConnection, PgTarget, TargetAction, TargetError, errors, sql};
use crate::targets::guard::{Covered, GuardChange, GuardReport, Others, ShownBy};
use crate::targets::sql::own_store;
use sha2::{Digest, Sha256};

/// The database, and the role's permissions.
pub(super) struct Here {
    pub table: Option<u32>,
    pub schema: bool,
    may_create: bool,
    database: String,
    role: String,
    replica: bool,
    may_change: bool,
}

impl Here {
    pub(super) async fn ask(
        target: &PgTarget,
        link: &PgConnection,
        doing: &'static str,
    ) -> Result<Self, TargetError> {
        let said = target.said(doing);
        let row = link.client.query_typed(sql::HERE, &[(&target.table, Type::TEXT)]).await.map_err(&said)?;
        let row = row.first().ok_or_else(|| errors::no_table(&target.shown, &target.table))?;
        let read = || -> Result<Self, tokio_postgres::Error> {
            Ok(Self {
                table: row.try_get(0)?,
                schema: row.try_get(1)?,
                may_create: row.try_get(2)?,
                database: row.try_get(3)?,
                role: row.try_get(4)?,
                replica: row.try_get(5)?,
                may_change: row.try_get(6)?,
            })
        };
        read().map_err(said)
    }
}

/// One table of the tree.
pub(super) struct PgTable {
    oid: u32,
    /// With its schema, quoted if needed.
    pub name: String,
    kind: String,
    owner: String,
    ours: bool,
    pub trigger: Option<Trigger>,
    /// A table outside the tree through which it can be written too.
    parent: Option<String>,
}

pub(super) struct Trigger {
    /// `A`: always.
    enabled: String,
    args: Vec<u8>,
    guard: bool,
}

impl PgTable {
    /// Whether the guard's trigger is as it was installed.
    pub(super) fn stands(&self, id: i64) -> bool {
        self.shown_by(id).is_some() && self.trigger.as_ref().is_some_and(|t| t.enabled == "A")
    }

    /// How sessions must show their run to its trigger; None if it has no trigger of this guard.
    pub(super) fn shown_by(&self, id: i64) -> Option<ShownBy> {
        let trigger = self.trigger.as_ref().filter(|t| t.guard)?;
        [ShownBy::Name, ShownBy::Setting].into_iter().find(|by| trigger.args == arguments(id, *by))
    }

    fn foreign(&self, id: i64) -> bool {
        self.trigger.is_some() && self.shown_by(id).is_none()
    }

    /// Its state in a few words.
    fn state(&self, id: i64) -> &'static str {
        match &self.trigger {
            None => "not guarded",
            Some(_) if self.foreign(id) => "has another trigger of this name",
            Some(t) if t.enabled == "A" => "guarded",
            Some(t) if t.enabled == "D" => "its trigger is disabled",
            Some(_) => "its trigger does not fire everywhere (not ENABLE ALWAYS)",
        }
    }
}

/// A trigger's arguments, as the catalogue stores them.
fn arguments(id: i64, by: ShownBy) -> Vec<u8> {
    match by {
        ShownBy::Name => format!("{id}\0"),
        ShownBy::Setting => format!("{id}\0setting\0"),
    }
    .into_bytes()
}

/// A table of the tree, and a table outside through which it can be written too.
pub(super) fn way_round(tree: &[PgTable]) -> Option<(&str, &str)> {
    tree.iter().find_map(|table| Some((table.name.as_str(), table.parent.as_deref()?)))
}

/// Whether a pooler is in between: then the server process is not the one that was announced at the start.
async fn pooled(target: &PgTarget, link: &PgConnection, doing: &'static str) -> Result<bool, TargetError> {
    let sql = "SELECT pg_catalog.pg_backend_pid()";
    let rows = link.client.query_typed(sql, &[]).await.map_err(target.said(doing))?;
    Ok(link.announced.is_some_and(|announced| super::first::<i32>(&rows) != Some(announced)))
}

/// The table, then its partitions and children.
pub(super) async fn tree(
    target: &PgTarget,
    link: &PgConnection,
    oid: u32,
    doing: &'static str,
) -> Result<Vec<PgTable>, TargetError> {
    let rows = link.client.query_typed(sql::TREE, &[(&oid, Type::OID)]).await.map_err(target.said(doing))?;
    let read = |row: &tokio_postgres::Row| -> Result<PgTable, tokio_postgres::Error> {
        let enabled: Option<String> = row.try_get(5)?;
        let trigger = match enabled {
            Some(enabled) => Some(Trigger {
                enabled,
                args: row.try_get::<_, Option<Vec<u8>>>(6)?.unwrap_or_default(),
                guard: row.try_get::<_, Option<bool>>(7)?.unwrap_or(false),
            }),
            None => None,
        };
        Ok(PgTable {
            oid: row.try_get(0)?,
            name: row.try_get(1)?,
            kind: row.try_get(2)?,
            owner: row.try_get(3)?,
            ours: row.try_get(4)?,
            trigger,
            parent: row.try_get(8)?,
        })
    };
    rows.iter().map(read).collect::<Result<_, _>>().map_err(target.said(doing))
}

/// The statements to run, and remarks.
struct GuardPlan {
    sql: String,
    notes: Vec<String>,
}

/// The warning for a guard by name behind a pooler.
pub(super) const POOLED: &str = "a pooler is in between: in transaction mode it gives a session without an \
    application name the name of the last client, so the session passes for that run. Run leasehold guard install \
    with --grant setting, and use SET LOCAL leasehold.run in the jobs";

const INSTALL: &str = "install the guard of";
const REMOVE: &str = "remove the guard of";

/// Checks that all tables can be guarded: users' tables, with no parent outside the tree.
fn can_be_guarded(shown: &str, root: &PgTable, tree: &[PgTable]) -> Result<(), TargetError> {
    if root.name.starts_with("leasehold.") {
        return Err(own_store(shown));
    }
    if let Some(table) = tree.iter().find(|table| !matches!(table.kind.as_str(), "r" | "p")) {
        return Err(errors::not_a_table(shown, &table.name, &table.kind));
    }
    match way_round(tree) {
        Some((name, parent)) => Err(errors::has_parent(shown, name, parent)),
        None => Ok(()),
    }
}

async fn plan_install(
    target: &PgTarget,
    link: &PgConnection,
    others: Others,
    run: bool,
) -> Result<GuardPlan, TargetError> {
    let here = Here::ask(target, link, INSTALL).await?;
    let oid = here.table.ok_or_else(|| errors::no_table(&target.shown, &target.table))?;
    let tree = tree(target, link, oid, INSTALL).await?;
    let Some(root) = tree.first() else { return Err(errors::no_table(&target.shown, &target.table)) };
    can_be_guarded(&target.shown, root, &tree)?;
    let found = match here.schema {
        true => target.fence_of(link, sql::FENCE, oid, INSTALL).await?,
        false => None,
    };
    let id = found.as_ref().map_or_else(|| fresh_id(root), |found| found.id);
    if let Some(table) = tree.iter().find(|t| t.foreign(id)) {
        return Err(errors::foreign_trigger(&target.shown, &table.name));
    }
    if run {
        rights(target, INSTALL, &here, &tree, !here.schema)?;
    }
    let (mut sql, mut notes) = (String::new(), Vec::new());
    if !here.schema {
        sql.push_str(&sql::common());
        let _ = write!(
            sql,
            "-- For a role that runs jobs and does not own this, with its name in place of ROLE:\n\
            -- GRANT SELECT, UPDATE ON leasehold_guard.fences TO ROLE;\n\
            -- GRANT SELECT, DELETE ON leasehold_guard.let_in TO ROLE;\n"
        );
    }
    if here.schema && has_other_words(target, link).await? {
        sql.push_str(&sql::refuse());
    }
    if found.is_none() {
        sql.push_str(&sql::fence(id, root, others));
    }
    let by = target.shown_by.or(root.shown_by(id)).unwrap_or(ShownBy::Name);
    let open: Vec<&PgTable> = tree.iter().filter(|t| !t.stands(id) || t.shown_by(id) != Some(by)).collect();
    // The trigger function of an older guard does not know the second argument.
    if by == ShownBy::Setting && here.schema && !open.is_empty() {
        sql.push_str(&sql::check());
    }
    for table in &open {
        sql.push_str(&sql::cover(id, table, by));
    }
    if by == ShownBy::Name && pooled(target, link, INSTALL).await? {
        notes.push(POOLED.into());
    }
    // Last, so that locks are taken in the order of a session that writes: the table, then the fence. Otherwise the
    // two could deadlock.
    if let Some(found) = found.as_ref().filter(|found| found.others != others) {
        sql.push_str(&sql::others(id, others));
        notes.push(format!("sessions that belong to no run: {} before", found.others.word()));
    }
    if found.is_some() {
        let what = match open.len() {
            0 => "all of its tables were already guarded".to_owned(),
            n => format!("it was already guarded; {n} more of its tables are guarded now"),
        };
        notes.push(what);
    }
    Ok(GuardPlan { sql, notes })
}

/// Whether the refusals of the installed guards have the words of another version, and this role may replace them.
async fn has_other_words(target: &PgTarget, link: &PgConnection) -> Result<bool, TargetError> {
    let said = target.said(INSTALL);
    let rows = link.client.query_typed(sql::REFUSE, &[]).await.map_err(&said)?;
    let Some(row) = rows.first() else { return Ok(false) };
    let (body, may): (String, bool) = (row.try_get(0).map_err(&said)?, row.try_get(1).map_err(&said)?);
    Ok(may && body != sql::refuse_body())
}

async fn plan_remove(target: &PgTarget, link: &PgConnection, run: bool) -> Result<GuardPlan, TargetError> {
    let here = Here::ask(target, link, REMOVE).await?;
    let oid = here.table.ok_or_else(|| errors::no_table(&target.shown, &target.table))?;
    if !here.schema {
        return Err(errors::no_guard(&target.shown));
    }
    let found = target.fence_of(link, sql::FENCE, oid, REMOVE).await?;
    let found = found.ok_or_else(|| errors::no_guard(&target.shown))?;
    let tree = tree(target, link, oid, REMOVE).await?;
    if run {
        rights(target, REMOVE, &here, &tree, false)?;
    }
    let said = target.said(REMOVE);
    let args = [ShownBy::Name, ShownBy::Setting].map(|by| arguments(found.id, by));
    let args = args.each_ref().map(|args| (args as &(dyn ToSql + Sync), Type::BYTEA));
    let covered = link.client.query_typed(sql::COVERED, &args).await.map_err(&said)?;
    let mut sql = String::new();
    for row in &covered {
        sql.push_str(&sql::uncover(&row.try_get::<_, String>(0).map_err(&said)?));
    }
    sql.push_str(&sql::forget(found.id));
    let rest = "SELECT count(*) FROM leasehold_guard.fences WHERE id <> $1";
    let rest = link.client.query_typed(rest, &[(&found.id, Type::INT8)]).await.map_err(&said)?;
    if super::first::<i64>(&rest) == Some(0) {
        sql.push_str(sql::NOTHING_LEFT);
    }
    let forgotten = target
        .fence(&found)
        .ok()
        .flatten()
        .map(|fence| format!("its fence is forgotten: lease {}, token {}", fence.lease, fence.token));
    Ok(GuardPlan { sql, notes: forgotten.into_iter().collect() })
}

/// Names all missing permissions at once, before anything is tried.
fn rights(
    target: &PgTarget,
    doing: &'static str,
    here: &Here,
    tree: &[PgTable],
    schema: bool,
) -> Result<(), TargetError> {
    let mut missing = Vec::new();
    if here.replica {
        missing.push("is on a replica, which cannot be changed".into());
    }
    if schema && !here.may_create {
        missing.push(format!("may not create a schema in the database {}", here.database));
    }
    if !here.may_change {
        missing.push("may not change leasehold_guard.fences".into());
    }
    let strange: Vec<&PgTable> = tree.iter().filter(|t| !t.ours).collect();
    if let Some(first) = strange.first() {
        let more = if strange.len() > 1 { format!(" and {} more", strange.len() - 1) } else { String::new() };
        missing.push(format!("does not own {}{more} (owner: {})", first.name, first.owner));
    }
    match missing.is_empty() {
        true => Ok(()),
        false => Err(errors::may_not(&target.shown, doing, &here.role, &missing)),
    }
}

/// A new fence id for a table; also the key of its lock.
fn fresh_id(root: &PgTable) -> i64 {
    let hash = Sha256::digest(format!("leasehold guard {} {}", root.oid, root.name).as_bytes());
    let bytes: [u8; 8] = hash[..8].try_into().unwrap_or_default();
    i64::from_be_bytes(bytes) & i64::MAX
}

/// Begins a transaction with the lock for changes of guards.
async fn begin(target: &PgTarget, link: &PgConnection, doing: &'static str) -> Result<(), TargetError> {
    let limit = target.patience.as_millis().max(1);
    let begin = format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = {limit}; \
         SELECT pg_catalog.pg_advisory_xact_lock({})",
        sql::INSTALLING
    );
    link.client.batch_execute(&begin).await.map_err(target.said(doing))
}

async fn carry_out(
    target: &PgTarget,
    call: &PgCall,
    plan: GuardPlan,
    doing: &'static str,
    run: bool,
) -> Result<GuardChange, TargetError> {
    let text = if plan.sql.is_empty() {
        "-- nothing to do\n".into()
    } else {
        format!("BEGIN;\n{}COMMIT;\n", plan.sql)
    };
    let changed = !plan.sql.is_empty();
    if run {
        call.client.batch_execute(&plan.sql).await.map_err(target.said(doing))?;
        target.commit(call, doing, TargetAction::Guard).await?;
    }
    Ok(GuardChange { sql: text, notes: plan.notes, changed })
}

pub(super) fn install(target: &PgTarget, others: Others, run: bool) -> Result<GuardChange, TargetError> {
    target.drive(INSTALL, TargetAction::Guard, async |call: &PgCall| {
        begin(target, call, INSTALL).await?;
        let plan = plan_install(target, call, others, run).await?;
        carry_out(target, call, plan, INSTALL, run).await
    })
}

pub(super) fn remove(target: &PgTarget, run: bool) -> Result<GuardChange, TargetError> {
    target.drive(REMOVE, TargetAction::Guard, async |call: &PgCall| {
        begin(target, call, REMOVE).await?;
        let plan = plan_remove(target, call, run).await?;
        carry_out(target, call, plan, REMOVE, run).await
    })
}

pub(super) fn inspect(target: &PgTarget) -> Result<GuardReport, TargetError> {
    const LOOK: &str = "look at the guard of";
    target.drive(LOOK, TargetAction::Guard, async |call: &PgCall| {
        let here = Here::ask(target, call, LOOK).await?;
        let oid = here.table.ok_or_else(|| errors::no_table(&target.shown, &target.table))?;
        let found = match here.schema {
            true => target.fence_of(call, sql::FENCE, oid, LOOK).await?,
            false => None,
        };
        let found = found.ok_or_else(|| errors::no_guard(&target.shown))?;
        let tables = tree(target, call, oid, LOOK).await?;
        let fence: Result<Option<Fence>, String> = found.row.fence();
        let by = tables.first().and_then(|root| root.shown_by(found.id));
        let covered = |t: &PgTable| {
            let another = t.stands(found.id) && t.shown_by(found.id) != by;
            let state = if another {
                "expects the run's token in another way than the other tables"
            } else {
                t.state(found.id)
            };
            Covered { name: t.name.clone(), guarded: t.stands(found.id) && !another, state: state.into() }
        };
        let mut all: Vec<Covered> = tables.iter().map(covered).collect();
        if let Some((name, parent)) = way_round(&tables) {
            let state = format!("not guarded, and its writes go to {name} too");
            all.push(Covered { name: parent.into(), guarded: false, state });
        }
        let pooled = by == Some(ShownBy::Name) && pooled(target, call, LOOK).await?;
        let owner = tables.first().map_or(String::new(), |t| t.owner.clone());
        Ok(GuardReport {
            others: found.others,
            fence,
            shown_by: by,
            tables: all,
            not_fenced: not_fenced(&owner, found.others, pooled),
            pooled,
        })
    })
}

/// The writes that a guard does not check.
fn not_fenced(owner: &str, others: Others, pooled: bool) -> Vec<String> {
    let mut known: Vec<String> = pooled.then(|| POOLED.into()).into_iter().collect();
    known.extend([
        format!("superusers and the owner ({owner}): their writes are checked, but they can drop or disable the trigger"),
        "changes of the table itself: ALTER TABLE (also with USING), DROP, partitions attached, detached or created later".into(),
        "rows that arrive by logical replication".into(),
        "forgery: a role that may write the table, and read the application names of other sessions, can pass for another run".into(),
    ]);
    if others == Others::Allow {
        known.push(
            "sessions that belong to no run (--others allow), even one of a stale job whose program sets the \
             application name itself".into(),
        );
    }
    known
}
