//! The process id of the server that was announced when a session began.
//!
//! A pooler announces one that it made up, to pass on cancel requests, and it differs from the server's real
//! process id. So a pooler is noticed without another question. The client library does not show the number,
//! but writes it into a cancel request. Here a cancel request is written to memory, to read it.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Client;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};

/// The process id that was announced.
pub(super) async fn announced(client: &Client) -> Option<i32> {
    let written = Nowhere::default();
    client.cancel_token().cancel_query_raw(written.clone(), Same).await.ok()?;
    let bytes = written.bytes.lock().unwrap_or_else(PoisonError::into_inner);
    // A cancel request ends with the process id and a secret, four bytes each.
    let at = bytes.len().checked_sub(8)?;
    Some(i32::from_be_bytes(bytes[at..at + 4].try_into().ok()?))
}

/// A stream that keeps what is written to it, and accepts TLS.
#[derive(Clone, Default)]
struct Nowhere {
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl AsyncRead for Nowhere {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // The server's answer that it accepts TLS.
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

/// A TLS handshake that does nothing.
struct Same;

impl TlsConnect<Nowhere> for Same {
    type Stream = Nowhere;
    type Error = io::Error;
    type Future = std::future::Ready<io::Result<Nowhere>>;

    fn connect(self, stream: Nowhere) -> Self::Future {
        std::future::ready(Ok(stream))
    }
}
