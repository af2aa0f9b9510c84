//! `wakeful sandbox port-forward`.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use wakeful_client::Client;

use crate::failure::Failure;
use crate::output;

/// Connections at a time, over all ports.
const CONNECTIONS: usize = 256;
/// After a connection could not be taken, for want of descriptors perhaps.
const PAUSE: Duration = Duration::from_millis(100);

/// Reach ports in a sandbox as if they were here
#[derive(Args, Debug)]
#[command(after_help = "\
The program inside may listen on its own loopback only. Where it is reached is printed, one line a
port; --json prints one array. It goes on until ^C, also while the sandbox sleeps: connections end
then, and the next one wakes it.

Examples:
  wakeful sandbox port-forward sbx_k3v7q2m5x6a4b2c7d5ef 8080:80
  wakeful sandbox port-forward sbx_k3v7q2m5x6a4b2c7d5ef 3000 :5432      5432 gets a free port here
  wakeful sandbox port-forward sbx_k3v7q2m5x6a4b2c7d5ef --address 0.0.0.0 8080:80")]
pub(crate) struct PortForward {
    /// The sandbox
    id: String,
    /// Port here and port there; `:REMOTE` takes any that is free, `PORT` the same
    #[arg(value_name = "LOCAL:REMOTE", required = true, value_parser = Pair::parse)]
    ports: Vec<Pair>,
    /// The address here
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    address: IpAddr,
}

/// A port here (0: any) and a port there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pair {
    local: u16,
    remote: u16,
}

impl Pair {
    fn parse(text: &str) -> Result<Self, String> {
        let port = |text: &str| match text.parse() {
            Ok(port) if port > 0 => Ok(port),
            _ => Err(format!("{text:?} is not a port")),
        };
        match text.split_once(':') {
            None => port(text).map(|port| Self { local: port, remote: port }),
            Some(("", remote)) => Ok(Self { local: 0, remote: port(remote)? }),
            Some((local, remote)) => Ok(Self { local: port(local)?, remote: port(remote)? }),
        }
    }
}

impl PortForward {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        // all of them or none
        let mut listening = Vec::new();
        for pair in &self.ports {
            let address = SocketAddr::new(self.address, pair.local);
            let listener = TcpListener::bind(address).await;
            let bound = listener.and_then(|listener| Ok((listener.local_addr()?, listener)));
            let (at, listener) =
                bound.map_err(|error| Failure::refused(format!("could not listen on {address}: {error}")))?;
            listening.push((at, pair.remote, listener));
        }
        // a wrong id is told now, not with the first connection
        let id: Arc<str> = client.sandbox(&self.id).await?.id.to_string().into();
        if json {
            let all: Vec<_> = listening.iter().map(|(at, port, _)| json!({"local": at, "remote": port})).collect();
            output::json(&all)?;
        } else {
            for (at, port, _) in &listening {
                output::line(&format!("{at} -> {port}"))?;
            }
        }
        let room = Arc::new(Semaphore::new(CONNECTIONS));
        let mut listeners = JoinSet::new();
        for (_, port, listener) in listening {
            listeners.spawn(serve(client.clone(), id.clone(), port, listener, room.clone()));
        }
        match listeners.join_next().await {
            Some(Ok(never)) => match never {},
            Some(Err(_)) | None => Err(Failure::bug()),
        }
    }
}

async fn serve(
    client: Client,
    id: Arc<str>,
    port: u16,
    listener: TcpListener,
    room: Arc<Semaphore>,
) -> std::convert::Infallible {
    let mut open = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = open.join_next(), if !open.is_empty() => continue,
        };
        let (local, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                output::warning(&format!("could not take a connection to port {port}: {error}"));
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let (client, id, room) = (client.clone(), id.clone(), room.clone());
        open.spawn(async move {
            let Ok(_place) = room.acquire_owned().await else { return };
            if let Err(why) = carry(&client, &id, port, local).await {
                output::warning(&format!("connection from {from} to port {port}: {why}"));
            }
        });
    }
}

async fn carry(client: &Client, id: &str, port: u16, local: TcpStream) -> Result<(), String> {
    let _ = local.set_nodelay(true);
    match client.tunnel(id, port).await {
        Ok(tunnel) => tunnel.join(local).await.map_err(|error| Failure::chain(&error)),
        Err(error) => {
            // as a port where nobody listens: reset, not an empty answer
            let _ = local.set_zero_linger();
            Err(match error.problem() {
                Some(problem) => problem.detail.clone(),
                None => Failure::chain(&error),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs() {
        assert_eq!(Pair::parse("8080:80"), Ok(Pair { local: 8080, remote: 80 }));
        assert_eq!(Pair::parse(":80"), Ok(Pair { local: 0, remote: 80 }));
        assert_eq!(Pair::parse("80"), Ok(Pair { local: 80, remote: 80 }));
        for bad in ["", ":", "80:", "0", "0:80", "80:0", "http", "1:2:3", "65536", "-1:80"] {
            assert!(Pair::parse(bad).is_err(), "{bad}");
        }
    }
}
