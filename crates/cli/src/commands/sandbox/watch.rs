//! `wakeful sandbox watch`.

use std::time::Duration;

use clap::Args;
use futures_util::StreamExt;
use wakeful_client::Client;
use wakeful_client::types::{FileEvent, Status};

use crate::failure::Failure;
use crate::patience::{Patience, code_passes, passes};
use crate::values::remote_path;
use crate::{output, table};

/// How long a server may be away.
const AWAY: Duration = Duration::from_secs(120);
/// Between two looks at a sandbox that sleeps.
const LOOK: Duration = Duration::from_secs(1);

/// Show what happens to files, as it happens
#[derive(Args, Debug)]
#[command(after_help = "\
One line a change: create, write, remove, rename or chmod, and the path. It goes on until ^C; over
a sleep of the sandbox it waits, and does not wake it.

Examples:
  wakeful sandbox watch sbx_k3v7q2m5x6a4b2c7d5ef /home/user -r
  wakeful sandbox watch sbx_k3v7q2m5x6a4b2c7d5ef /app --json")]
pub(crate) struct Watch {
    /// The sandbox
    id: String,
    /// The directory
    #[arg(value_parser = remote_path)]
    path: String,
    /// All that is below it too
    #[arg(short, long)]
    recursive: bool,
}

impl Watch {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        let mut changes = client.watch(&self.id, &self.path, self.recursive).await?;
        let mut patience = Patience::new(AWAY);
        loop {
            match changes.next().await {
                Some(Ok(event)) => match told(&event) {
                    Some((kind, path)) if !json => {
                        output::line(&format!("{kind:<7} {}", table::plain_text(path)))?;
                    }
                    Some(_) => output::json_line(&event)?,
                    None => match event {
                        FileEvent::Overflow if json => output::json_line(&event)?,
                        FileEvent::Overflow => {
                            output::warning("more happened than could be told; changes are missing here");
                        }
                        FileEvent::Error { code, detail } if !code.parse().is_ok_and(code_passes) => {
                            return Err(Failure::from_frame(&code, &detail));
                        }
                        // the stream ends here, and is begun anew below
                        _ => {}
                    },
                },
                Some(Err(error)) if !passes(&error) => return Err(error.into()),
                Some(Err(_)) | None => changes = self.again(client, &mut patience).await?,
            }
        }
    }

    /// Once more, when the sandbox is awake. What happened meanwhile is not told.
    async fn again(&self, client: &Client, patience: &mut Patience) -> Result<wakeful_client::Changes, Failure> {
        output::warning("the watch was interrupted; changes may be missing here");
        loop {
            let error = match client.sandbox(&self.id).await {
                Ok(sandbox) if sandbox.status == Status::Running => {
                    match client.watch(&self.id, &self.path, self.recursive).await {
                        Ok(changes) => {
                            patience.reset();
                            return Ok(changes);
                        }
                        Err(error) => error,
                    }
                }
                Ok(sandbox) if matches!(sandbox.status, Status::Destroyed | Status::Failed) => {
                    return Err(Failure::refused(format!("{} is {}", self.id, sandbox.status)));
                }
                Ok(_) => {
                    patience.reset();
                    tokio::time::sleep(LOOK).await;
                    continue;
                }
                Err(error) => error,
            };
            match patience.next() {
                Some(delay) if passes(&error) => tokio::time::sleep(delay).await,
                _ => return Err(error.into()),
            }
        }
    }
}

/// What happened to which file.
fn told(event: &FileEvent) -> Option<(&'static str, &str)> {
    Some(match event {
        FileEvent::Create { path } => ("create", path),
        FileEvent::Write { path } => ("write", path),
        FileEvent::Remove { path } => ("remove", path),
        FileEvent::Rename { path } => ("rename", path),
        FileEvent::Chmod { path } => ("chmod", path),
        FileEvent::Overflow | FileEvent::Keepalive | FileEvent::Suspended | FileEvent::Error { .. } => return None,
    })
}
