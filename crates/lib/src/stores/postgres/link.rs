//! One connection: how it is made, and what comes of it.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use leasehold_core::stop::Text;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::config::{ChannelBinding, SslMode};
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::url::{Binding, Host, Mode, Target};
use super::{env, failure, password, pid, tls};
use crate::stores::Failure;

/// A notification.
pub(crate) struct Told {
    /// The server process it comes from.
    pub from: i32,
    pub channel: String,
    pub payload: String,
}

/// One session with a server. Dropping it ends the connection.
pub(crate) struct Link {
    pub client: Client,
    pub host: Host,
    /// The process id the session was promised.
    pub promised: Option<i32>,
    /// What came unasked.
    pub told: UnboundedReceiver<Told>,
    /// Channels known to work on this connection.
    pub listening: BTreeSet<String>,
    driver: JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        // A late answer must have nowhere to arrive.
        self.driver.abort();
    }
}

/// Connects to the first host that will do.
pub(crate) async fn connect(target: &Target, limit: Duration) -> Result<Link, Failure> {
    // Something is left of the limit to say which host it was.
    let share = limit.mul_f64(0.9) / u32::try_from(target.hosts.len()).unwrap_or(1).max(1);
    let share = target.connect_timeout.unwrap_or(share).min(share);
    let mut last = None;
    for host in &target.hosts {
        let attempt = timeout(share, one(target, host)).await.unwrap_or_else(|_| {
            Err(failure::unreachable(format!(
                "PostgreSQL at {} did not answer within {}. Check the host and the network.",
                host.shown(),
                Text(share)
            )))
        });
        match attempt {
            Ok(link) if target.hosts.len() == 1 || writes(&link).await => return Ok(link),
            Ok(link) => last = Some(failure::replica(&link.host)),
            Err(failure) => last = Some(failure),
        }
    }
    Err(last.unwrap_or_else(|| failure::unusable("The store URL names no host.".into())))
}

/// Several hosts are tried until one is the primary; with one, the first read finds out.
async fn writes(link: &Link) -> bool {
    let sql = "SELECT pg_catalog.pg_is_in_recovery()";
    let row = link.client.query_typed_one(sql, &[]).await;
    row.and_then(|row| row.try_get::<_, bool>(0)).is_ok_and(|replica| !replica)
}

async fn one(target: &Target, host: &Host) -> Result<Link, Failure> {
    let config = config(target, host);
    if host.is_socket() {
        return Ok(plain(&config, target, host).await?);
    }
    match target.tls.mode {
        Mode::Disable => Ok(plain(&config, target, host).await?),
        // The order of libpq: what a server refuses one way is tried the other.
        Mode::Allow => match plain(&config, target, host).await {
            Err(refused) if refused.other_way => Ok(secure(&config, SslMode::Require, target, host).await?),
            link => Ok(link?),
        },
        Mode::Prefer => match secure(&config, SslMode::Prefer, target, host).await {
            Err(refused) if refused.other_way => Ok(plain(&config, target, host).await?),
            link => Ok(link?),
        },
        _ => Ok(secure(&config, SslMode::Require, target, host).await?),
    }
}

/// Why there is no session, and whether it may be another matter with TLS, or without.
struct Refused {
    failure: Failure,
    other_way: bool,
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        refused.failure
    }
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        Self { failure, other_way: false }
    }
}

async fn plain(config: &Config, target: &Target, host: &Host) -> Result<Link, Refused> {
    let mut config = config.clone();
    config.ssl_mode(SslMode::Disable);
    if host.is_socket() {
        let path = Path::new(&host.name).join(format!(".s.PGSQL.{}", host.port));
        let stream = UnixStream::connect(path).await.map_err(|e| failure::no_connection(host, &e))?;
        return session(&config, stream, NoTls, target, host).await;
    }
    session(&config, tcp(host).await?, NoTls, target, host).await
}

async fn secure(config: &Config, mode: SslMode, target: &Target, host: &Host) -> Result<Link, Refused> {
    let mut config = config.clone();
    config.ssl_mode(mode);
    let home = env("HOME").map(PathBuf::from);
    let tls = tls::config(&target.tls, home.as_deref());
    let mut tls = MakeRustlsConnect::new(tls.map_err(|why| failure::unusable(capital(&why)))?);
    let Ok(tls) = MakeTlsConnect::<TcpStream>::make_tls_connect(&mut tls, &host.name);
    session(&config, tcp(host).await?, tls, target, host).await
}

async fn tcp(host: &Host) -> Result<TcpStream, Failure> {
    let name = host.address.as_deref().unwrap_or(&host.name);
    let found = lookup_host((name, host.port)).await.map_err(|e| failure::unknown_host(host, &e))?;
    let mut last = None;
    for address in found {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                // Small messages that each wait for an answer.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(e) => last = Some(e),
        }
    }
    let none = std::io::Error::other("no address");
    Err(failure::no_connection(host, &last.unwrap_or(none)))
}

async fn session<S, T>(
    config: &Config,
    stream: S,
    tls: T,
    target: &Target,
    host: &Host,
) -> Result<Link, Refused>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: TlsConnect<S>,
    T::Stream: Send + 'static,
{
    let (client, connection) = config.connect_raw(stream, tls).await.map_err(|e| {
        let user = target.user.as_deref().unwrap_or_default();
        let dbname = target.dbname.as_deref().unwrap_or(user);
        let other_way = e.code() == Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION)
            || e.to_string() == "error performing TLS handshake";
        Refused { failure: failure::no_session(host, user, dbname, &e), other_way }
    })?;
    let (tell, told) = unbounded();
    let driver = tokio::spawn(drive(connection, tell));
    let promised = pid::promised(&client).await;
    Ok(Link { client, host: host.clone(), promised, told, listening: BTreeSet::new(), driver })
}

/// Carries everything over the connection until it ends.
async fn drive<S, T>(mut connection: Connection<S, T>, tell: UnboundedSender<Told>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
        if let AsyncMessage::Notification(n) = message {
            let (channel, payload) = (n.channel().to_owned(), n.payload().to_owned());
            // Nobody may be waiting any more.
            let _ = tell.unbounded_send(Told { from: n.process_id(), channel, payload });
        }
    }
}

fn config(target: &Target, host: &Host) -> Config {
    let mut config = Config::new();
    if let Some(user) = &target.user {
        config.user(user);
    }
    if let Some(dbname) = &target.dbname {
        config.dbname(dbname);
    }
    if let Some(options) = &target.options {
        config.options(options);
    }
    if let Some(password) = password::find(target, host, &env) {
        config.password(password);
    }
    config.application_name(target.application.as_deref().unwrap_or("leasehold"));
    config.channel_binding(match target.binding {
        Binding::Disable => ChannelBinding::Disable,
        Binding::Prefer => ChannelBinding::Prefer,
        Binding::Require => ChannelBinding::Require,
    });
    config
}

/// As the beginning of a sentence.
fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}
