//! What a template has running in its sandboxes from their first moment.
//!
//! It is started as a process that nobody waits for, after every boot and first start: memory that is loaded has it still, and
//! so has a copy of a golden snapshot that was kept warm.
//! A create also waits until it is ready. A wake goes on whatever becomes of it: the sandbox is there, and its processes
//! and their output can be looked at.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};
use wakeful_guest_client::{Error as GuestError, Exec, Guest};
use wakeful_guest_proto::process::{ProcessConfig, StartRequest};
use wakeful_model::{Entry, Sandbox, SandboxId};

use crate::guest::Identity;
use crate::lifecycle::error_chain;
use crate::{Error, access};

/// By which a daemon that finishes what another began knows it.
const TAG: &str = "wakeful-entry";
/// One try of the ready check.
const TRY: Duration = Duration::from_secs(10);
/// Between two tries: first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// What is too little time for another try.
const LAST: Duration = Duration::from_millis(50);
/// How long a wake waits at most.
const AWAKE: Duration = Duration::from_secs(30);
/// How much is kept of what the check printed, and told of it.
const OUTPUT: (usize, usize) = (4096, 1000);

/// After what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Began {
    /// A create, which fails with it.
    Create,
    /// A wake that booted.
    Wake,
    /// A wake that booted, whose daemon ended: it may have been started already.
    Recovery,
}

/// Starts what the sandbox's template wants started, and waits until it is ready.
///
/// # Errors
/// After a create only: what `execute` says if it cannot be started; `NotReady` if it is not ready in time.
pub(crate) async fn begin(row: &Sandbox, guest: &Guest, why: Began) -> Result<(), Error> {
    let Some(entry) = &row.entry else { return Ok(()) };
    let patience = Duration::from_secs(entry.ready_seconds.into());
    let (id, begun) = (&row.id, Instant::now());
    let who = Identity::of(row, row.runtime_generation);
    let outcome = match why {
        Began::Create => return run(&who, entry, guest, patience).await,
        Began::Wake => run(&who, entry, guest, patience.min(AWAKE)).await,
        Began::Recovery => match is_there(guest).await {
            Ok(true) => Ok(()),
            Ok(false) => run(&who, entry, guest, patience.min(AWAKE)).await,
            Err(error) => Err(access::refusal(id, error)),
        },
    };
    match outcome {
        Ok(()) => info!(sandbox_id = %id, took = ?begun.elapsed(), "start command is ready"),
        Err(error) => warn!(sandbox_id = %id, error = error_chain(&error), "start command is not ready"),
    }
    Ok(())
}

/// Starts it where sandboxes will be copied from, and waits until it is ready.
///
/// # Errors
/// As after a create.
pub(crate) async fn warm(who: &Identity<'_>, entry: &Entry, guest: &Guest) -> Result<(), Error> {
    run(who, entry, guest, Duration::from_secs(entry.ready_seconds.into())).await
}

async fn is_there(guest: &Guest) -> Result<bool, GuestError> {
    Ok(guest.processes().await?.iter().any(|process| process.tag.as_deref() == Some(TAG)))
}

async fn run(who: &Identity<'_>, entry: &Entry, guest: &Guest, patience: Duration) -> Result<(), Error> {
    let Some((cmd, args)) = entry.start.split_first() else { return Ok(()) };
    let start = StartRequest {
        process: ProcessConfig {
            cmd: cmd.clone(),
            args: args.to_vec(),
            envs: BTreeMap::new(),
            cwd: Some(who.workdir.to_owned()),
        },
        tag: Some(TAG.to_owned()),
        // As a service has it: a shell or an interpreter ends at once instead of waiting for words.
        stdin: Some(false),
        user: Some(who.user.to_owned()),
        ..StartRequest::default()
    };
    let pid = match guest.launch(start, None).await {
        Ok(job) => job.pid(),
        Err(error) => return Err(access::refusal(who.id, error)),
    };
    let Some((cmd, args)) = entry.ready.as_deref().and_then(<[String]>::split_first) else { return Ok(()) };
    let check = Exec {
        cwd: Some(who.workdir.to_owned()),
        user: Some(who.user.to_owned()),
        output_limit: OUTPUT.0,
        ..Exec::new(cmd, args)
    };
    let Err(said) = ready(who.id, guest, check, patience).await? else { return Ok(()) };
    let ended = guest.process(pid).await.ok().and_then(|process| process.details?.end);
    let ended = ended.map_or_else(String::new, |end| {
        let code = end.signal.map_or(end.exit_code, |signal| 128_i32.saturating_add(signal));
        format!("; the start command has ended with {code}")
    });
    Err(Error::NotReady { detail: format!("not ready within {} s: {said}{ended}", patience.as_secs()) })
}

/// Tries until the check ends with 0 or the time is over: then, what the last try came to.
async fn ready(id: &SandboxId, guest: &Guest, check: Exec, patience: Duration) -> Result<Result<(), String>, Error> {
    let deadline = Instant::now() + patience;
    let (mut pause, mut last) = (PAUSE.0, "the ready check did not end".to_owned());
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let check = Exec { timeout: Some(TRY.min(left)), ..check.clone() };
        match tokio::time::timeout(left, guest.exec(&check)).await {
            Ok(Ok(output)) if output.exit_code == 0 => return Ok(Ok(())),
            Ok(Ok(output)) if output.timed_out => last = "the ready check did not end".to_owned(),
            Ok(Ok(output)) => {
                let printed = if output.stderr.is_empty() { &output.stdout } else { &output.stderr };
                last = format!("the ready check ended with {}{}", output.exit_code, told(printed));
            }
            // What is not there yet may come; a guest that is gone does not.
            Ok(Err(GuestError::Refused { message, .. })) => last = message,
            Ok(Err(error)) => return Err(access::refusal(id, error)),
            Err(_) => return Ok(Err(last)),
        }
        // Rather once more shortly before the end than not at all.
        let left = deadline.saturating_duration_since(Instant::now());
        if left < LAST {
            return Ok(Err(last));
        }
        tokio::time::sleep(pause.min(left / 2)).await;
        pause = (pause * 3 / 2).min(PAUSE.1);
    }
}

/// The last of what a guest printed, fit for a terminal and a log.
fn told(printed: &[u8]) -> String {
    let text = String::from_utf8_lossy(printed);
    let text: String = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let skip = text.chars().count().saturating_sub(OUTPUT.1);
    if text.is_empty() { text } else { format!(": {}", text.chars().skip(skip).collect::<String>()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_short_and_harmless() {
        assert_eq!(told(b" \n"), "");
        assert_eq!(told(b"one\ntwo\n"), ": one two");
        assert_eq!(told(b"\x1b[2Jx"), ":  [2Jx");
        let long = told("é".repeat(5000).as_bytes());
        assert_eq!(long.chars().count(), OUTPUT.1 + 2);
    }
}
