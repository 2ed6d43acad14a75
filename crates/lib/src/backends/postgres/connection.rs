//! Makes a connection, and reads its notifications.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use leasehold_core::human_duration::HumanDuration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::config::{ChannelBinding, SslMode};
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{AsyncMessage, Client, Config as Settings, Connection, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::config::{Binding, Config, Host, TlsMode};
use super::{env, errors, password, pid, tls};
use crate::stores::Failure;

/// A notification.
pub(crate) struct Notification {
    /// The server process it comes from.
    pub from: i32,
    pub channel: String,
    pub payload: String,
}

/// One session with a server. Dropping it ends the connection.
pub(crate) struct PgConnection {
    pub client: Client,
    pub host: Host,
    /// The process id that was announced when the session began.
    pub announced: Option<i32>,
    /// The notifications.
    pub notifications: UnboundedReceiver<Notification>,
    /// Channels known to work on this connection.
    pub listening: BTreeSet<String>,
    driver: JoinHandle<()>,
}

impl Drop for PgConnection {
    fn drop(&mut self) {
        // Closes the connection, so that no late answer is read.
        self.driver.abort();
    }
}

/// Connects to the first host that answers and can write.
pub(crate) async fn connect(config: &Config, limit: Duration) -> Result<PgConnection, Failure> {
    // Less than the whole limit, so that an error can name the host.
    let share = limit.mul_f64(0.9) / u32::try_from(config.hosts.len()).unwrap_or(1).max(1);
    let share = config.connect_timeout.unwrap_or(share).min(share);
    let mut last = None;
    for host in &config.hosts {
        let attempt = timeout(share, one(config, host)).await.unwrap_or_else(|_| {
            Err(errors::unreachable(format!(
                "PostgreSQL at {} did not answer within {}. Check the host and the network.",
                host.shown(),
                HumanDuration(share)
            )))
        });
        match attempt {
            Ok(link) if config.hosts.len() == 1 || writes(&link).await => return Ok(link),
            Ok(link) => last = Some(errors::replica(&link.host)),
            Err(failure) => last = Some(failure),
        }
    }
    Err(last.unwrap_or_else(|| errors::unusable("The URL names no host.".into())))
}

/// Whether it is a primary. Checked only if there are several hosts; with one, the first read checks it.
async fn writes(link: &PgConnection) -> bool {
    let sql = "SELECT pg_catalog.pg_is_in_recovery()";
    let row = link.client.query_typed_one(sql, &[]).await;
    row.and_then(|row| row.try_get::<_, bool>(0)).is_ok_and(|replica| !replica)
}

async fn one(config: &Config, host: &Host) -> Result<PgConnection, Failure> {
    let settings = settings(config, host);
    if host.is_socket() {
        return Ok(plain(&settings, config, host).await?);
    }
    match config.tls.mode {
        TlsMode::Disable => Ok(plain(&settings, config, host).await?),
        // As libpq: if the server refuses one way, try the other.
        TlsMode::Allow => match plain(&settings, config, host).await {
            Err(refused) if refused.other_way => Ok(secure(&settings, SslMode::Require, config, host).await?),
            link => Ok(link?),
        },
        TlsMode::Prefer => match secure(&settings, SslMode::Prefer, config, host).await {
            Err(refused) if refused.other_way => Ok(plain(&settings, config, host).await?),
            link => Ok(link?),
        },
        _ => Ok(secure(&settings, SslMode::Require, config, host).await?),
    }
}

/// Why there is no session, and whether to try again with TLS, or without.
struct NoSession {
    failure: Failure,
    other_way: bool,
}

impl From<NoSession> for Failure {
    fn from(refused: NoSession) -> Self {
        refused.failure
    }
}

impl From<Failure> for NoSession {
    fn from(failure: Failure) -> Self {
        Self { failure, other_way: false }
    }
}

async fn plain(settings: &Settings, config: &Config, host: &Host) -> Result<PgConnection, NoSession> {
    let mut settings = settings.clone();
    settings.ssl_mode(SslMode::Disable);
    if host.is_socket() {
        let path = Path::new(&host.name).join(format!(".s.PGSQL.{}", host.port));
        let stream = UnixStream::connect(path).await.map_err(|e| errors::no_connection(host, &e))?;
        return session(&settings, stream, NoTls, config, host).await;
    }
    session(&settings, tcp(host).await?, NoTls, config, host).await
}

async fn secure(
    settings: &Settings,
    mode: SslMode,
    config: &Config,
    host: &Host,
) -> Result<PgConnection, NoSession> {
    let mut settings = settings.clone();
    settings.ssl_mode(mode);
    let home = env("HOME").map(PathBuf::from);
    let tls = tls::config(&config.tls, home.as_deref());
    let mut tls = MakeRustlsConnect::new(tls.map_err(|why| errors::unusable(capital(&why)))?);
    let Ok(tls) = MakeTlsConnect::<TcpStream>::make_tls_connect(&mut tls, &host.name);
    session(&settings, tcp(host).await?, tls, config, host).await
}

async fn tcp(host: &Host) -> Result<TcpStream, Failure> {
    let name = host.address.as_deref().unwrap_or(&host.name);
    let found = lookup_host((name, host.port)).await.map_err(|e| errors::unknown_host(host, &e))?;
    let mut last = None;
    for address in found {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                // The messages are small, and each waits for an answer.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(e) => last = Some(e),
        }
    }
    let none = std::io::Error::other("no address");
    Err(errors::no_connection(host, &last.unwrap_or(none)))
}

async fn session<S, T>(
    settings: &Settings,
    stream: S,
    tls: T,
    config: &Config,
    host: &Host,
) -> Result<PgConnection, NoSession>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: TlsConnect<S>,
    T::Stream: Send + 'static,
{
    let (client, connection) = settings.connect_raw(stream, tls).await.map_err(|e| {
        let user = config.user.as_deref().unwrap_or_default();
        let dbname = config.dbname.as_deref().unwrap_or(user);
        let other_way = e.code() == Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION)
            || e.to_string() == "error performing TLS handshake";
        NoSession { failure: errors::no_session(host, user, dbname, &e), other_way }
    })?;
    let (send, notifications) = unbounded();
    let driver = tokio::spawn(drive(connection, send));
    let announced = pid::announced(&client).await;
    Ok(PgConnection {
        client,
        host: host.clone(),
        announced,
        notifications,
        listening: BTreeSet::new(),
        driver,
    })
}

/// Drives the connection until it ends.
async fn drive<S, T>(mut connection: Connection<S, T>, send: UnboundedSender<Notification>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
        if let AsyncMessage::Notification(n) = message {
            let (channel, payload) = (n.channel().to_owned(), n.payload().to_owned());
            // Ignored if no waiter is left.
            let _ = send.unbounded_send(Notification { from: n.process_id(), channel, payload });
        }
    }
}

fn settings(config: &Config, host: &Host) -> Settings {
    let mut settings = Settings::new();
    if let Some(user) = &config.user {
        settings.user(user);
    }
    if let Some(dbname) = &config.dbname {
        settings.dbname(dbname);
    }
    if let Some(options) = &config.options {
        settings.options(options);
    }
    if let Some(password) = password::find(config, host, &env) {
        settings.password(password);
    }
    settings.application_name(config.application.as_deref().unwrap_or("leasehold"));
    settings.channel_binding(match config.binding {
        Binding::Disable => ChannelBinding::Disable,
        Binding::Prefer => ChannelBinding::Prefer,
        Binding::Require => ChannelBinding::Require,
    });
    settings
}

/// The text with a capital letter at the start.
fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}
