//! Notifications of changes: every script that writes also publishes, and a waiter subscribes.

use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::PubSub;

use super::RedisStore;
use crate::stores::{Store, Version};

/// After this many connections in a row broke while listening, waiters poll.
const ENOUGH: u32 = 3;

/// A second connection, which a waiter opens to subscribe to one key.
#[derive(Default)]
pub(super) struct KeyListener {
    listening: Option<(String, PubSub)>,
    /// The server does not allow us to subscribe.
    refused: bool,
    broken: u32,
}

impl KeyListener {
    /// Whether notifications do not work, so that waiters must poll.
    pub fn must_poll(&self) -> bool {
        self.refused || self.broken >= ENOUGH
    }

    /// Closes its connection until the next wait.
    pub fn close(&mut self) {
        self.listening = None;
    }
}

impl RedisStore {
    pub(super) async fn wait(&mut self, key: &str, version: Option<&Version>, at_most: Duration) -> bool {
        // Dropping the receive loses no message, so the subscription stays for the next wait.
        tokio::time::timeout(at_most, self.hear(key, version)).await.unwrap_or(false)
    }

    async fn hear(&mut self, key: &str, version: Option<&Version>) -> bool {
        if self.subscriber.must_poll() {
            return false;
        }
        let channel = self.connection.config.record(key);
        if self.subscriber.listening.as_ref().is_none_or(|(heard, _)| *heard != channel) {
            self.subscriber.listening = None;
            match self.subscribe(&channel).await {
                Ok(subscribed) => self.subscriber.listening = Some((channel, subscribed)),
                Err(e) => {
                    // If the server cannot be reached, the next read reports that.
                    self.subscriber.refused = !e.is_io_error();
                    return false;
                }
            }
            // Read again: a change before the subscription was not notified.
            match self.read(key).await {
                Ok(now) if now.as_ref().map(|stored| &stored.version) == version => {}
                // It changed, or it cannot be read; in both cases the caller must read it.
                Ok(_) | Err(_) => return true,
            }
        }
        let Some((_, listening)) = &mut self.subscriber.listening else { return false };
        let mut messages = listening.on_message();
        while let Some(message) = messages.next().await {
            self.subscriber.broken = 0;
            // This may be the notification of the known version.
            if Some(message.get_payload_bytes()) != version.map(|version| version.0.as_bytes()) {
                return true;
            }
        }
        drop(messages);
        self.subscriber.listening = None;
        self.subscriber.broken += 1;
        true
    }

    async fn subscribe(&self, channel: &str) -> redis::RedisResult<PubSub> {
        let mut listening = self.connection.config.client.get_async_pubsub().await?;
        listening.subscribe(channel).await?;
        Ok(listening)
    }
}
