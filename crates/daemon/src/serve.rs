//! The daemon: takes the data directory, recovers, listens, serves, drains.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, info, warn};

use crate::config::{Config, Loaded};
use crate::tls::{self, Tls};
use crate::{accept, admin_token, notify, wire};

/// How long operations may take to reach an end at a stop.
const GRACE: Duration = Duration::from_secs(30);
/// How long calls in flight may take after that.
const CALLS: Duration = Duration::from_secs(5);

/// Why the daemon did not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It would be open to the network, and nobody would need a key.
    #[error("{0} is not a loopback address, and there are no keys: anyone who reaches it would be admin")]
    Exposed(SocketAddr),
    /// An address cannot be listened on.
    #[error("could not listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// There is no certificate that can be used.
    #[error("could not set up https")]
    Tls(#[from] tls::Error),
    /// The parts could not be put together.
    #[error(transparent)]
    Wire(#[from] wire::Error),
    /// The lock file could not be written.
    #[error(transparent)]
    Paths(#[from] crate::paths::Error),
    /// Operations were still under way after the grace period.
    #[error("some operations were still under way after {GRACE:?}; the next start finishes or undoes them")]
    Late,
}

/// For a process that will only be a daemon: to be called before it has threads.
pub fn settle_in() {
    wakeful_sys::heap::share_one_arena();
}

/// Runs until `shutdown` resolves, then drains: no new calls, operations reach their end, sandboxes go on running.
///
/// `listening` is told the addresses once calls are answered.
///
/// # Errors
/// If it could not start, or not drain in time.
pub async fn serve(
    loaded: &Loaded,
    listening: impl FnOnce(&[SocketAddr]),
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    let config = &loaded.config;
    // Where there is no database there is no key, and nothing needs to be made to know it.
    if let Some(address) = config.exposed().filter(|_| !config.data_dir.join("wakeful.db").exists()) {
        return Err(Error::Exposed(address));
    }
    let tls = match (&config.tls.cert, &config.tls.key) {
        (Some(cert), Some(key)) => Some(Tls::load(cert, key)?),
        _ => None,
    };
    let acceptor = tls.as_ref().map(Tls::acceptor).transpose()?;
    // First the sockets: a second daemon, or a taken port, is found before anything is touched.
    let listeners = bind(&config.listen, loaded.listen_by_default).await?;
    let addresses: Vec<SocketAddr> = listeners.iter().map(|(_, address)| *address).collect();
    let taken = wire::take(config, "wakeful serve").await?;
    // Nobody is answered yet, and from here on keys change only through this daemon, which keeps the last one.
    if let Some(address) = config.exposed()
        && taken.registry().await?.keyring().is_empty()
    {
        taken.close().await;
        return Err(Error::Exposed(address));
    }
    let admin_token = admin_token::ensure(&taken.paths.data)?;
    let mut wired = taken.bring_up(config).await?;
    if let Some(address) = reachable(&addresses) {
        // In the clear by loopback, whatever the certificate says.
        let scheme = if tls.is_some() && !address.ip().is_loopback() { "https" } else { "http" };
        wired.lock.announce(&format!("{scheme}://{address}"))?;
    }
    wired.lifecycle.warm_up();
    wired.lifecycle.watch_pressure(wire::pressure(config));
    wired.lifecycle.keep_pool(wire::pool(config)).await;

    let calls = TaskTracker::new();
    let router = wakeful_api::router(
        wired.lifecycle.clone(),
        wakeful_api::ApiConfig {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            domain: config.domain.clone(),
            ports: addresses.iter().map(SocketAddr::port).collect(),
            tasks: calls.clone(),
            admin_token: Some(admin_token),
            exposed: config.exposed().is_some(),
            secure: tls.is_some(),
        },
    );
    let stop = CancellationToken::new();
    let mut servers = JoinSet::new();
    for (listener, _) in listeners {
        servers.spawn(accept::serve(listener, router.clone(), acceptor.clone(), stop.clone()));
    }
    if let Some(tls) = &tls {
        servers.spawn(Arc::clone(tls).watch(stop.clone()));
    }
    info!(?addresses, data_dir = %config.data_dir.display(), "listening");
    listening(&addresses);
    notify::ready();

    shutdown.await;
    notify::stopping();
    info!("draining: running sandboxes go on without the daemon");
    // Calls are still answered meanwhile: new work by 503, the health check too.
    let in_time = wired.lifecycle.drain(GRACE).await;
    stop.cancel();
    let ended = tokio::time::timeout(CALLS, async {
        while let Some(ended) = servers.join_next().await {
            match ended {
                Ok(()) => {}
                Err(panic) => error!(%panic, "a listener panicked"),
            }
        }
        calls.close();
        calls.wait().await;
    });
    if ended.await.is_err() {
        warn!("some calls were cut off");
    }
    wired.close().await;
    if in_time { Ok(()) } else { Err(Error::Late) }
}

/// Where this machine's own commands find the daemon: by loopback, if there is a way.
fn reachable(addresses: &[SocketAddr]) -> Option<SocketAddr> {
    let near = |address: &SocketAddr| match address.ip() {
        ip if ip.is_loopback() => Some(*address),
        IpAddr::V4(ip) if ip.is_unspecified() => Some(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), address.port())),
        IpAddr::V6(ip) if ip.is_unspecified() => Some(SocketAddr::new(Ipv6Addr::LOCALHOST.into(), address.port())),
        _ => None,
    };
    addresses.iter().find_map(near).or_else(|| addresses.first().copied())
}

/// A host without IPv6 gets the IPv4 default only; an address that was asked for must work.
async fn bind(addresses: &[SocketAddr], by_default: bool) -> Result<Vec<(TcpListener, SocketAddr)>, Error> {
    let mut listeners: Vec<(TcpListener, SocketAddr)> = Vec::new();
    for address in addresses {
        let wanted = match (address.port(), listeners.first()) {
            // Port 0 means one free port, the same on every address.
            (0, Some((_, first))) => SocketAddr::new(address.ip(), first.port()),
            _ => *address,
        };
        let bound = match TcpListener::bind(wanted).await {
            Ok(listener) => listener.local_addr().map(|local| (listener, local)),
            Err(error) => Err(error),
        };
        match bound {
            Ok(pair) => listeners.push(pair),
            Err(error) if by_default && wanted.is_ipv6() => {
                warn!(address = %wanted, %error, "no IPv6 here, listening on IPv4 only");
            }
            Err(source) => return Err(Error::Listen { address: wanted, source }),
        }
    }
    Ok(listeners)
}

/// Resolves at SIGTERM, SIGINT or SIGHUP; at the last only if no certificate is to be read again by it.
///
/// # Errors
/// If the signals cannot be watched.
pub fn signals(config: &Config) -> io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut term, mut int, mut hup) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, signal(SignalKind::hangup())?);
    let stops = config.tls.cert.is_none();
    Ok(async move {
        let which = tokio::select! {
            _ = term.recv() => "SIGTERM",
            _ = int.recv() => "SIGINT",
            _ = hup.recv(), if stops => "SIGHUP",
        };
        info!(signal = which, "stopping");
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_by_loopback_is_announced() {
        for (listening, announced) in [
            (&["127.0.0.1:1", "[::1]:1"][..], "127.0.0.1:1"),
            (&["0.0.0.0:2"], "127.0.0.1:2"),
            (&["[::]:3"], "[::1]:3"),
            (&["192.0.2.1:4", "127.0.0.1:5"], "127.0.0.1:5"),
            (&["192.0.2.1:6"], "192.0.2.1:6"),
        ] {
            let addresses: Vec<SocketAddr> = listening.iter().map(|text| text.parse().unwrap()).collect();
            assert_eq!(reachable(&addresses), Some(announced.parse().unwrap()));
        }
        assert_eq!(reachable(&[]), None);
    }
}
