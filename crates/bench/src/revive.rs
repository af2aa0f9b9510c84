//! Hello and restore as the daemon does them, for the bare engine's guests.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use wakeful_guest_client::Guest;
use wakeful_guest_proto::contact::Repair;

use crate::Error;

/// Says hello, puts clock, entropy and identity right, and rotates the secret; the new one.
pub(crate) async fn revive(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    secret: &[u8; 32],
    patience: Duration,
    name: &str,
    generation: u64,
) -> Result<(Guest, [u8; 32]), Error> {
    let mut fresh = [0; 32];
    getrandom::fill(&mut fresh).map_err(|error| Error::engine("have random bytes", error))?;
    let identity = Repair {
        hostname: Some(name.to_owned()),
        env: Some(BTreeMap::from([("WAKEFUL_SANDBOX_ID".to_owned(), name.to_owned())])),
        clone_generation: Some(generation),
        secret: Some(fresh),
        ..Repair::new(0, [0; 64])
    };
    let revived = Guest::revive(stream, secret, patience, patience, identity).await;
    Ok((revived.map_err(Error::guest("put a guest right"))?.guest, fresh))
}
