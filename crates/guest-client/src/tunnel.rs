//! A byte stream to a port inside the sandbox.

use std::net::SocketAddr;
use std::time::Duration;

use http::{HeaderValue, Method, Request, Response};
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use wakeful_guest_proto::tunnel::{KEPT, RECEIVED, TUNNEL, TunnelId};

use crate::connect::empty;
use crate::{Error, Guest};

/// Reads and writes what the port inside writes and reads; shutting down one direction leaves the other.
pub type Tunnel = TokioIo<Upgraded>;

/// A tunnel that was just opened.
pub enum Opened {
    /// Its bytes are frames of a `wakeful_tunnel::Line`, and it can be taken up again after a sleep.
    Kept(Tunnel),
    /// The agent is too old, or has too many: it ends with the channel.
    Plain(Tunnel),
}

impl Guest {
    /// Opens a tunnel to an address of the guest's loopback interface.
    ///
    /// # Errors
    /// [`Error::Refused`] with the guest's `errno` if nothing listens there; [`Error::Late`].
    pub async fn tunnel(&self, target: SocketAddr, deadline: Duration) -> Result<Tunnel, Error> {
        Ok(self.connect_to(target, &[], deadline).await?.0)
    }

    /// Opens a tunnel under a name that it can be taken up again by.
    ///
    /// # Errors
    /// As [`tunnel`](Self::tunnel).
    pub async fn open_tunnel(&self, target: SocketAddr, id: TunnelId, deadline: Duration) -> Result<Opened, Error> {
        let (tunnel, answer) = self.connect_to(target, &[(TUNNEL, id.to_string())], deadline).await?;
        let kept = answer.headers().get(TUNNEL).is_some_and(|value| value == KEPT);
        Ok(if kept { Opened::Kept(tunnel) } else { Opened::Plain(tunnel) })
    }

    /// Takes a tunnel up again of which `received` bytes came; how many of ours the other end has.
    ///
    /// # Errors
    /// [`Error::Refused`] if there is no such tunnel any more.
    pub async fn resume_tunnel(
        &self,
        target: SocketAddr,
        id: TunnelId,
        received: u64,
        deadline: Duration,
    ) -> Result<(Tunnel, u64), Error> {
        let headers = [(TUNNEL, id.to_string()), (RECEIVED, received.to_string())];
        let (tunnel, answer) = self.connect_to(target, &headers, deadline).await?;
        let has = answer.headers().get(RECEIVED).and_then(|value| value.to_str().ok()?.parse().ok());
        has.map(|has| (tunnel, has)).ok_or_else(|| Error::Protocol { detail: "a tunnel without its count".to_owned() })
    }

    async fn connect_to(
        &self,
        target: SocketAddr,
        headers: &[(&'static str, String)],
        deadline: Duration,
    ) -> Result<(Tunnel, Response<Incoming>), Error> {
        let wrong = |error: http::Error| Error::Protocol { detail: error.to_string() };
        let mut request =
            Request::builder().method(Method::CONNECT).uri(target.to_string()).body(empty()).map_err(wrong)?;
        for (name, value) in headers {
            let value = HeaderValue::try_from(value).map_err(|error| wrong(error.into()))?;
            request.headers_mut().insert(*name, value);
        }
        let opened = async {
            let mut response = self.accepted(request).await?;
            let upgraded = hyper::upgrade::on(&mut response).await.map_err(|error| Error::from_hyper(&error))?;
            Ok((TokioIo::new(upgraded), response))
        };
        let opened = timeout(deadline, opened).await;
        opened.map_err(|_| Error::Late { attempted: "open a tunnel", after: deadline })?
    }
}
