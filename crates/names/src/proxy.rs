//! The proxy: lets a connection through when the name inside it may be reached at the address it goes to.
//!
//! ```text
//!   accept ─▶ destination ─▶ by address? ──────────────────────────────▶ connect ─▶ copy
//!                                │ a name could matter
//!                                ▼
//!                              sniff ─▶ by name, and the book knows it ─▶ connect ─▶ copy, HTTP request by request
//!                                │ silent, and allowed without a name
//!                                └───────────────────────────────────────▶ connect ─▶ server speaks; sniff later
//! ```

mod check;
mod refuse;
mod relay;

use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::gatekeeper::Shared;
use crate::sniff::Sniffed;
use check::Connection;
use refuse::Refusal;

const AFTER_FAILURE: Duration = Duration::from_millis(100);

pub(crate) fn serve(shared: &Arc<Shared>, listener: TcpListener) {
    let shared = shared.clone();
    let tasks = shared.tasks.clone();
    tasks.spawn(async move {
        let end = shared.end.clone();
        end.run_until_cancelled(accept(&shared, &listener)).await;
    });
}

async fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    let seats = Arc::new(Semaphore::new(shared.limits.connections));
    loop {
        let client = match listener.accept().await {
            Ok((client, _)) => client,
            Err(e) => {
                tracing::debug!(error = %e, "could not accept a redirected connection");
                tokio::time::sleep(AFTER_FAILURE).await;
                continue;
            }
        };
        let Ok(seat) = seats.clone().try_acquire_owned() else {
            refuse::reset(&client);
            continue;
        };
        let shared = shared.clone();
        let tasks = shared.tasks.clone();
        tasks.spawn(async move {
            let end = shared.end.clone();
            let mut client = client;
            if end.run_until_cancelled(one(&shared, &mut client)).await.is_none() {
                refuse::reset(&client);
            }
            drop(seat);
        });
    }
}

/// Why a connection ended before both sides were done with it.
enum Failure {
    Refused(Refusal),
    /// It broke, was idle for too long, or is no longer allowed.
    Cut,
    Io(io::Error),
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        Self::Io(e)
    }
}

async fn one(shared: &Shared, client: &mut TcpStream) {
    match through(shared, client).await {
        Ok(()) => {}
        Err(Failure::Refused(refusal)) => {
            shared.refusals.note(&refusal.name, refusal.what);
            refuse::say(client, &refusal).await;
        }
        Err(Failure::Cut) => refuse::reset(client),
        Err(Failure::Io(e)) => {
            tracing::trace!(error = %e, "a connection broke");
            refuse::reset(client);
        }
    }
}

async fn through(shared: &Shared, client: &mut TcpStream) -> Result<(), Failure> {
    let destination = shared.gate.destination(client.as_fd())?;
    // Whoever connects to the proxy itself was not redirected.
    if client.local_addr()? == destination.into() {
        return Err(Failure::Refused(Refusal::protocol(destination)));
    }
    // Packets of a few bytes must not wait for each other.
    client.set_nodelay(true)?;
    // Taken before the first check, so that no change of rules falls between.
    let mut changes = shared.policy.subscribe();
    let connection = Connection::new(shared, destination);
    let mut buffer = Vec::new();
    let first = match connection.by_address()? {
        true => Some(Sniffed::Other),
        false => {
            let quiet = connection.without_name().is_ok().then_some(shared.limits.quiet);
            let first = relay::sniffed(client, &mut buffer, quiet, shared.limits.hello).await?;
            if let Some(first) = &first {
                connection.check(first)?;
            }
            first
        }
    };
    let mut server = timeout(shared.limits.connect, connect(shared, &connection)).await.map_err(io::Error::from)??;
    let relayed = tokio::select! {
        relayed = relay::both_ways(&connection, client, &mut server, first, buffer) => relayed,
        () = connection.disallowed(&mut changes) => Err(Failure::Cut),
    };
    if relayed.is_err() {
        refuse::reset(&server);
    }
    relayed
}

async fn connect(shared: &Shared, connection: &Connection<'_>) -> io::Result<TcpStream> {
    let socket = std::net::TcpStream::from(shared.gate.socket()?);
    socket.set_nonblocking(true)?;
    let server = TcpSocket::from_std_stream(socket).connect(connection.destination.into()).await?;
    server.set_nodelay(true)?;
    Ok(server)
}
