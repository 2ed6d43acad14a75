//! Waiting for a change: `LISTEN`, on the store's one connection.

use std::future::Future;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::time::{sleep, timeout};
use tokio_postgres::types::Type;

use super::{PostgresStore, sql};
use crate::backends::postgres::connection::PgConnection;
use crate::stores::Version;
use crate::text::short_digest;

/// How long our own test notification may take to arrive.
const PROBE: Duration = Duration::from_secs(2);
/// Time left for the end of a call, so that the call is not dropped with its connection.
const MARGIN: Duration = Duration::from_millis(10);

/// The channel of a key, and the lock that its waiters share.
pub(super) fn names(key: &str) -> (String, i64) {
    let digest = Sha256::digest(key.as_bytes());
    let mut lock = [0; 8];
    lock.copy_from_slice(&digest[16..24]);
    (format!("{}{}", sql::CHANNEL, short_digest(key)), i64::from_be_bytes(lock))
}

/// See [`crate::stores::Store::wait_change`].
pub(super) async fn wait(
    store: &mut PostgresStore,
    key: &str,
    version: Option<&Version>,
    at_most: Duration,
) -> bool {
    let over = sleep(at_most.saturating_sub(MARGIN));
    tokio::pin!(over);
    let (channel, _) = names(key);
    // Subscribe, read again, then wait, so that no change is missed.
    match unless(over.as_mut(), subscribe(store, key)).await {
        None => return false,
        // The caller reads itself, and must poll.
        Some(false) => return true,
        Some(true) => {}
    }
    match unless(over.as_mut(), changed(store, key, version)).await {
        None => return false,
        Some(true) => return true,
        Some(false) => {}
    }
    // From here on no answer is outstanding, so the connection can stay in its place.
    let Some(link) = store.link.as_mut() else { return true };
    let known = version.map_or("", |v| v.0.as_str());
    let news = async {
        loop {
            match link.notifications.recv().await {
                Ok(notification) if notification.channel == channel && notification.payload != known => {
                    return;
                }
                Ok(_) => {}
                // The connection is gone: the caller must read what happened meanwhile.
                Err(_) => return,
            }
        }
    };
    unless(over, news).await.is_some()
}

/// The result of `work`, unless the time is over first.
async fn unless<T>(over: impl Future<Output = ()>, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        answer = work => Some(answer),
        () = over => None,
    }
}

/// Listens for `key` on the connection; false if that does not work here.
pub(super) async fn subscribe(store: &mut PostgresStore, key: &str) -> bool {
    if !store.pushes() {
        return false;
    }
    let Ok((mut link, _)) = store.link().await else { return false };
    let (channel, lock) = names(key);
    if link.listening.contains(&channel) {
        store.link = Some(link);
        return true;
    }
    if !hears(&mut link, &channel).await {
        store.could_not_listen(&link);
        return false;
    }
    // Writers notify only while a waiter holds these locks. A writer that has them exclusively keeps them until its commit,
    // and the read that follows finds its write.
    let sql =
        "SELECT pg_catalog.pg_advisory_lock_shared($1)::text, pg_catalog.pg_advisory_lock_shared($2)::text";
    if link.client.query_typed(sql, &[(&lock, Type::INT8), (&sql::WAITING, Type::INT8)]).await.is_err() {
        store.could_not_listen(&link);
        return false;
    }
    link.listening.insert(channel);
    store.link = Some(link);
    true
}

/// Subscribes, and tests that our own notification arrives, because a pooler may drop it.
async fn hears(link: &mut PgConnection, channel: &str) -> bool {
    let nonce = format!("{:032x}", crate::random::seed());
    let listen = format!("LISTEN {channel}; SELECT pg_catalog.pg_notify('{channel}', '{nonce}')");
    if link.client.batch_execute(&listen).await.is_err() {
        return false;
    }
    let own = async {
        while let Ok(notification) = link.notifications.recv().await {
            if notification.payload == nonce {
                // A pooler passes notifications on only while it has a server process for us. That process is not the
                // one announced at the start.
                return link.announced.is_none_or(|announced| announced == notification.from);
            }
        }
        false
    };
    let heard = timeout(PROBE, own).await.unwrap_or(false);
    if !heard {
        // The next user of this server connection must not listen.
        let _ = link.client.batch_execute("UNLISTEN *").await;
    }
    heard
}

/// Whether the version has changed, or cannot be read.
async fn changed(store: &mut PostgresStore, key: &str, version: Option<&Version>) -> bool {
    let Some(mut link) = store.link.take() else { return true };
    while link.notifications.try_recv().is_ok() {}
    let sql = "SELECT version FROM leasehold.records WHERE key = $1";
    let found = link.client.query_typed_opt(sql, &[(&key, Type::TEXT)]).await;
    let Ok(now) = found.and_then(|row| row.map(|row| row.try_get::<_, String>(0)).transpose()) else {
        return true;
    };
    store.link = Some(link);
    now.as_deref() != version.map(|v| v.0.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_as_the_statement_makes_them() {
        // encode(sha256('leases/x'), 'hex')
        let digest: String = Sha256::digest(b"leases/x").iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(names("leases/x").0, format!("leasehold_{}", &digest[..32]));
        assert_ne!(names("a").1, names("b").1);
    }
}
