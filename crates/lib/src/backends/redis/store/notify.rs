//! Hearing of changes: every script that writes also publishes, and a waiter subscribes.

use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::PubSub;

use super::RedisStore;
use crate::stores::{Store, Version};

/// Connections in a row that broke while listening, after which polling is better.
const ENOUGH: u32 = 3;

/// A second connection, opened by whoever waits, that hears of one key.
#[derive(Default)]
pub(super) struct KeyListener {
    listening: Option<(String, PubSub)>,
    /// The server does not let us subscribe.
    refused: bool,
    broken: u32,
}

impl KeyListener {
    /// Nothing will be heard, so it must be asked for.
    pub fn deaf(&self) -> bool {
        self.refused || self.broken >= ENOUGH
    }

    /// Gives up its connection until somebody waits again.
    pub fn close(&mut self) {
        self.listening = None;
    }
}

impl RedisStore {
    pub(super) async fn wait(&mut self, key: &str, version: Option<&Version>, at_most: Duration) -> bool {
        // Receiving loses nothing when it is given up, so the subscription stays for the next wait.
        tokio::time::timeout(at_most, self.hear(key, version)).await.unwrap_or(false)
    }

    async fn hear(&mut self, key: &str, version: Option<&Version>) -> bool {
        if self.ear.deaf() {
            return false;
        }
        let channel = self.connection.config.record(key);
        if self.ear.listening.as_ref().is_none_or(|(heard, _)| *heard != channel) {
            self.ear.listening = None;
            match self.subscribe(&channel).await {
                Ok(subscribed) => self.ear.listening = Some((channel, subscribed)),
                Err(e) => {
                    // A server that cannot be reached says so to the next read.
                    self.ear.refused = !e.is_io_error();
                    return false;
                }
            }
            // What changed before we listened was not heard.
            match self.read(key).await {
                Ok(now) if now.as_ref().map(|stored| &stored.version) == version => {}
                // Or it cannot be read, which whoever waits had better find out.
                Ok(_) | Err(_) => return true,
            }
        }
        let Some((_, listening)) = &mut self.ear.listening else { return false };
        let mut messages = listening.on_message();
        while let Some(message) = messages.next().await {
            self.ear.broken = 0;
            // The version we know may be announced only now.
            if Some(message.get_payload_bytes()) != version.map(|version| version.0.as_bytes()) {
                return true;
            }
        }
        drop(messages);
        self.ear.listening = None;
        self.ear.broken += 1;
        true
    }

    async fn subscribe(&self, channel: &str) -> redis::RedisResult<PubSub> {
        let mut listening = self.connection.config.client.get_async_pubsub().await?;
        listening.subscribe(channel).await?;
        Ok(listening)
    }
}
