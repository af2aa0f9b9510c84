//! A byte stream to a port inside the sandbox.

use std::net::SocketAddr;
use std::time::Duration;

use http::{Method, Request};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use crate::connect::empty;
use crate::{Error, Guest};

/// Reads and writes what the port inside writes and reads; shutting down one direction leaves the other.
pub type Tunnel = TokioIo<Upgraded>;

impl Guest {
    /// Opens a tunnel to an address of the guest's loopback interface.
    ///
    /// # Errors
    /// [`Error::Refused`] with the guest's `errno` if nothing listens there; [`Error::Late`].
    pub async fn tunnel(&self, target: SocketAddr, deadline: Duration) -> Result<Tunnel, Error> {
        let request = Request::builder().method(Method::CONNECT).uri(target.to_string()).body(empty());
        let request = request.map_err(|error| Error::Protocol { detail: error.to_string() })?;
        let opened = async {
            let mut response = self.accepted(request).await?;
            hyper::upgrade::on(&mut response).await.map_err(|error| Error::from_hyper(&error))
        };
        let opened = timeout(deadline, opened).await;
        let upgraded = opened.map_err(|_| Error::Late { attempted: "open a tunnel", after: deadline })??;
        Ok(TokioIo::new(upgraded))
    }
}
