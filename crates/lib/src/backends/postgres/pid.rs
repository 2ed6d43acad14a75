//! Which server process a session was promised.
//!
//! A pooler invents one, so that it can pass on a cancel request; the server itself says another. That
//! tells a pooler from a server without asking anything. The client library keeps the number to itself,
//! and writes it into a cancel request: one is written here that goes nowhere.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Client;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};

/// The process id told when the session began.
pub(super) async fn promised(client: &Client) -> Option<i32> {
    let written = Nowhere::default();
    client.cancel_token().cancel_query_raw(written.clone(), Same).await.ok()?;
    let bytes = written.bytes.lock().unwrap_or_else(PoisonError::into_inner);
    // A cancel request ends with the process id and a secret, four bytes each.
    let at = bytes.len().checked_sub(8)?;
    Some(i32::from_be_bytes(bytes[at..at + 4].try_into().ok()?))
}

/// Keeps what is written, and agrees to whatever is asked.
#[derive(Clone, Default)]
struct Nowhere {
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl AsyncRead for Nowhere {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // "TLS, gladly."
        buf.put_slice(b"S");
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Nowhere {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(buf);
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl TlsStream for Nowhere {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

/// A handshake that changes nothing.
struct Same;

impl TlsConnect<Nowhere> for Same {
    type Stream = Nowhere;
    type Error = io::Error;
    type Future = std::future::Ready<io::Result<Nowhere>>;

    fn connect(self, stream: Nowhere) -> Self::Future {
        std::future::ready(Ok(stream))
    }
}
