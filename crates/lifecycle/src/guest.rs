//! Reaching the agent of an engine, and putting a restored guest right.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;
use tracing::debug;
use wakeful_driver::Engine;
use wakeful_guest_client::Guest;
use wakeful_guest_proto::control::Restore;
use wakeful_model::{Sandbox, SandboxId};

use crate::Error;

/// One hello; then the host connects again.
const HELLO: Duration = Duration::from_secs(2);
/// Between two hellos.
const PAUSE: Duration = Duration::from_millis(50);
/// One restore call. The first after a load runs cold code.
const RESTORE: Duration = Duration::from_secs(20);

/// Whether the vCPUs run already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vcpus {
    Running,
    /// Loaded and stopped: they are started as soon as the hello is on its way.
    Stopped,
}

/// Opens the channel to the agent.
///
/// # Errors
/// `Unresponsive` if it does not answer within `patience`, `Failed` if the engine ends.
pub(crate) async fn reach(
    id: &SandboxId,
    engine: &Arc<dyn Engine>,
    secret: &[u8; 32],
    vcpus: Vcpus,
    patience: Duration,
) -> Result<Guest, Error> {
    tokio::select! {
        biased;
        exit = engine.exited() => Err(Error::Failed {
            id: id.clone(),
            detail: format!("the engine ended before its agent answered: {}", exit.output.trim()),
        }),
        guest = keep_trying(id, engine, secret, vcpus, patience) => guest,
    }
}

async fn keep_trying(
    id: &SandboxId,
    engine: &Arc<dyn Engine>,
    secret: &[u8; 32],
    vcpus: Vcpus,
    patience: Duration,
) -> Result<Guest, Error> {
    let began = Instant::now();
    let deadline = began + patience;
    let mut to_start = vcpus == Vcpus::Stopped;
    loop {
        let stream = engine.connect().await?;
        let hello = Guest::connect(stream, secret, HELLO.min(patience));
        let answer = if to_start {
            to_start = false;
            // The hello waits in the port when the vCPUs begin: the agent finds it at once.
            let (answer, resumed) = tokio::join!(hello, engine.resume());
            resumed?;
            answer
        } else {
            hello.await
        };
        match answer {
            Ok(guest) => {
                debug!(sandbox_id = %id, took = ?began.elapsed(), "hello answered");
                return Ok(guest);
            }
            Err(error) if Instant::now() >= deadline => {
                return Err(Error::Unresponsive { id: id.clone(), detail: format!("no hello: {error}") });
            }
            Err(error) => debug!(sandbox_id = %id, %error, "no hello yet"),
        }
        // One connection at a time: the engine must have seen this one go, and the agent needs a moment to see it too, or
        // the next hello might be taken for the rest of a frame.
        engine.disconnected().await?;
        tokio::time::sleep(PAUSE).await;
    }
}

/// Who the guest is to be.
pub(crate) struct Identity<'a> {
    pub(crate) id: &'a SandboxId,
    pub(crate) hostname: &'a str,
    pub(crate) env: &'a BTreeMap<String, String>,
    pub(crate) user: &'a str,
    pub(crate) workdir: &'a str,
    pub(crate) generation: u64,
    pub(crate) secret: &'a [u8; 32],
}

impl<'a> Identity<'a> {
    pub(crate) fn of(row: &'a Sandbox, generation: u64) -> Self {
        Self {
            id: &row.id,
            hostname: row.id.bare(),
            env: &row.env,
            user: &row.user,
            workdir: &row.workdir,
            generation,
            secret: &row.secret,
        }
    }
}

/// Clock, entropy, identity and secret. Without this answer a restore does not count.
///
/// # Errors
/// `Unresponsive`: the wake or create fails closed.
pub(crate) async fn restore(guest: &Guest, who: &Identity<'_>) -> Result<(), Error> {
    let identity = |clock: Restore| Restore {
        hostname: Some(who.hostname.to_owned()),
        env: Some(who.env.clone()),
        clone_generation: Some(who.generation),
        default_user: Some(who.user.to_owned()),
        default_workdir: Some(who.workdir.to_owned()),
        ..clock.with_secret(who.secret)
    };
    let began = Instant::now();
    tell(guest, who.id, &identity(clock_and_entropy()?)).await?;
    let first = began.elapsed();
    // The first setting after a load is 10 to 30 ms late, because it runs cold code; the second is right.
    tell(guest, who.id, &clock_and_entropy()?).await?;
    debug!(sandbox_id = %who.id, ?first, both = ?began.elapsed(), "guest put right");
    Ok(())
}

fn clock_and_entropy() -> Result<Restore, Error> {
    let mut entropy = [0u8; 64];
    getrandom::fill(&mut entropy).map_err(|error| Error::Internal(format!("no random bytes: {error}")))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_err(|error| Error::Internal(error.to_string()))?;
    Ok(Restore::new(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX), &entropy))
}

async fn tell(guest: &Guest, id: &SandboxId, request: &Restore) -> Result<(), Error> {
    let unresponsive = |detail: String| Error::Unresponsive { id: id.clone(), detail };
    match tokio::time::timeout(RESTORE, guest.restore(request)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(unresponsive(format!("restore: {error}"))),
        Err(_) => Err(unresponsive("its agent did not confirm the restore".into())),
    }
}
