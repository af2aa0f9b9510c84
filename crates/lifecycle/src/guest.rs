//! Reaching the agent of an engine, and putting a restored guest right.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::debug;
use wakeful_driver::Engine;
use wakeful_guest_client::{Error as GuestError, Guest, Revived};
use wakeful_guest_proto::contact::Repair;
use wakeful_model::{Sandbox, SandboxId};

use crate::Error;

/// One hello; then the host connects again.
const HELLO: Duration = Duration::from_secs(2);
/// Between two hellos.
const PAUSE: Duration = Duration::from_millis(50);
/// One confirmation: five seconds of it are the clone hooks', and the first after a load runs cold code.
const RESTORE: Duration = Duration::from_secs(20);

/// Whether the vCPUs run already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vcpus {
    Running,
    /// Loaded and stopped: they are started as soon as the hello is on its way.
    Stopped,
}

/// Opens the channel to an agent that is in order.
///
/// # Errors
/// `Unresponsive` if it does not answer within `patience`, `Failed` if the engine ends.
pub(crate) async fn reach(
    id: &SandboxId,
    engine: &Arc<dyn Engine>,
    secret: &[u8; 32],
    patience: Duration,
) -> Result<Guest, Error> {
    or_ended(id, engine, keep_trying(id, engine, secret, Vcpus::Running, patience, None)).await
}

/// Opens the channel to an agent whose guest was just loaded, booted or continued, and puts the guest right: clock,
/// entropy, identity and secret. Without this a create or wake does not count.
///
/// # Errors
/// `Unresponsive` if it does not answer within `patience` or does not confirm: the create or wake fails closed. `Failed` if
/// the engine ends.
pub(crate) async fn revive(
    engine: &Arc<dyn Engine>,
    secret: &[u8; 32],
    vcpus: Vcpus,
    patience: Duration,
    who: &Identity<'_>,
) -> Result<Guest, Error> {
    or_ended(who.id, engine, keep_trying(who.id, engine, secret, vcpus, patience, Some(who))).await
}

async fn or_ended(
    id: &SandboxId,
    engine: &Arc<dyn Engine>,
    work: impl Future<Output = Result<Guest, Error>>,
) -> Result<Guest, Error> {
    let output = tokio::select! {
        biased;
        exit = engine.exited() => exit.output,
        // Whoever sees its end first.
        guest = work => match guest {
            Err(Error::Driver(wakeful_driver::Error::Ended { output, .. })) => output,
            other => return other,
        },
    };
    let detail = format!("the engine ended before its agent answered: {}", output.trim());
    Err(Error::Failed { id: id.clone(), detail })
}

async fn keep_trying(
    id: &SandboxId,
    engine: &Arc<dyn Engine>,
    secret: &[u8; 32],
    vcpus: Vcpus,
    patience: Duration,
    who: Option<&Identity<'_>>,
) -> Result<Guest, Error> {
    let began = Instant::now();
    let deadline = began + patience;
    let mut to_start = vcpus == Vcpus::Stopped;
    loop {
        let stream = engine.connect().await?;
        let hello = async {
            let hello = HELLO.min(patience);
            let Some(who) = who else { return Guest::connect(stream, secret, hello).await };
            let Revived { guest, answer, hello, first, all } =
                Guest::revive(stream, secret, hello, RESTORE, who.repair()).await?;
            debug!(sandbox_id = %id, ?hello, ?first, ?all, clock_error_us = answer.clock_error_us, "guest put right");
            Ok(guest)
        };
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
                debug!(sandbox_id = %id, took = ?began.elapsed(), "agent reached");
                return Ok(guest);
            }
            Err(error @ (GuestError::Hello { .. } | GuestError::Io { .. })) if Instant::now() < deadline => {
                debug!(sandbox_id = %id, %error, "no hello yet");
            }
            // Once the guest was told anything, it may know its new secret: another try would not be understood.
            Err(error) => {
                let detail = format!("its agent did not confirm: {error}");
                return Err(Error::Unresponsive { id: id.clone(), detail });
            }
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

    /// Without time and entropy, which are filled in when they are sent.
    fn repair(&self) -> Repair {
        Repair {
            hostname: Some(self.hostname.to_owned()),
            env: Some(self.env.clone()),
            clone_generation: Some(self.generation),
            secret: Some(*self.secret),
            default_user: Some(self.user.to_owned()),
            default_workdir: Some(self.workdir.to_owned()),
            ..Repair::new(0, [0; 64])
        }
    }
}
