//! Something between a client and its daemon that can break: a network, a laptop's lid, a daemon that moves.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Forwards to a daemon, which may change. Dropped: all is cut.
pub(crate) struct Proxy {
    pub(crate) url: String,
    target: watch::Sender<Option<SocketAddr>>,
    connections: Arc<AtomicU64>,
    _serving: JoinSet<()>,
}

impl Proxy {
    /// `chop`: every connection breaks after so many bytes of answer.
    pub(crate) async fn start(url: &str, chop: Option<usize>) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let at = listener.local_addr()?;
        let (target, targets) = watch::channel(Some(address(url)?));
        let connections = Arc::new(AtomicU64::new(0));
        let mut serving = JoinSet::new();
        let count = connections.clone();
        serving.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                open.spawn(carry(client, targets.clone(), chop));
                while open.try_join_next().is_some() {}
            }
        });
        Ok(Self { url: format!("http://{at}"), target, connections, _serving: serving })
    }

    /// Cuts all connections and refuses new ones until it is pointed somewhere.
    pub(crate) fn cut(&self) {
        self.target.send_replace(None);
    }

    pub(crate) fn point_to(&self, url: &str) -> Result<()> {
        self.target.send_replace(Some(address(url)?));
        Ok(())
    }

    pub(crate) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }
}

fn address(url: &str) -> Result<SocketAddr> {
    url.strip_prefix("http://").context("an http address")?.parse().context("an address and a port")
}

async fn carry(client: TcpStream, mut targets: watch::Receiver<Option<SocketAddr>>, chop: Option<usize>) {
    // whoever is cut off sees a reset, not an end
    let _ = client.set_zero_linger();
    let target = *targets.borrow_and_update();
    let Some(target) = target else { return };
    let Ok(server) = TcpStream::connect(target).await else { return };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let up = async {
        let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
        let _ = to_server.shutdown().await;
        std::future::pending::<()>().await;
    };
    let down = async {
        let mut left = chop.unwrap_or(usize::MAX);
        let mut buffer = vec![0; 8 << 10];
        while left > 0 {
            let most = left.min(buffer.len());
            match from_server.read(&mut buffer[..most]).await {
                Ok(0) | Err(_) => break,
                Ok(length) => {
                    left -= length;
                    if to_client.write_all(&buffer[..length]).await.is_err() {
                        break;
                    }
                }
            }
        }
    };
    tokio::select! {
        () = up => {}
        () = down => {}
        _ = targets.changed() => {}
    }
}
