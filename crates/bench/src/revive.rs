//! Hello and restore as the daemon does them, for the bare engine's guests.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::net::UnixStream;
use wakeful_guest_client::Guest;
use wakeful_guest_proto::control::Restore;

use crate::Error;

/// Says hello, puts clock, entropy and identity right, and rotates the secret; the new one.
pub(crate) async fn revive(
    stream: UnixStream,
    secret: &[u8; 32],
    patience: Duration,
    name: &str,
    generation: u64,
) -> Result<(Guest, [u8; 32]), Error> {
    let guest = Guest::connect(stream, secret, patience).await.map_err(Error::guest("say hello"))?;
    let mut fresh = [0; 32];
    random(&mut fresh)?;
    let identity = Restore {
        hostname: Some(name.to_owned()),
        env: Some(BTreeMap::from([("WAKEFUL_SANDBOX_ID".to_owned(), name.to_owned())])),
        clone_generation: Some(generation),
        ..clock_and_entropy()?.with_secret(&fresh)
    };
    guest.restore(&identity).await.map_err(Error::guest("restore"))?;
    guest.restore(&clock_and_entropy()?).await.map_err(Error::guest("restore"))?;
    Ok((guest, fresh))
}

fn random(bytes: &mut [u8]) -> Result<(), Error> {
    getrandom::fill(bytes).map_err(|error| Error::engine("have random bytes", error))
}

fn clock_and_entropy() -> Result<Restore, Error> {
    let mut entropy = [0; 64];
    random(&mut entropy)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(Restore::new(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX), &entropy))
}
