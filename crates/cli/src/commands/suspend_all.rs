//! `wakeful suspend-all`.

use std::collections::HashSet;

use clap::Args;
use futures_util::{StreamExt, stream};
use serde::Serialize;
use wakeful_client::{Client, Error, ListQuery};

use super::door::{Door, Make, Place};
use crate::args::Global;
use crate::failure::{Failure, REFUSED};
use crate::interrupt::or_interrupt;
use crate::output;

/// So many at once: each writes its memory to the disk.
const AT_ONCE: usize = 4;
/// Whatever is woken meanwhile is put to sleep again, but not for ever.
const ROUNDS: usize = 3;

/// Put all running sandboxes of all tenants to sleep
#[derive(Args, Debug)]
#[command(after_help = "\
For the end of a host: memory and processes are kept, and each goes on where it left off with its
next use. Leases of ephemeral sandboxes go on counting. `wakeful setup --systemd` installs a unit
that does this before the host shuts down. The exit code is 1 if one is still running.

Examples:
  wakeful suspend-all
  wakeful suspend-all --json")]
pub(crate) struct SuspendAll {
    #[command(flatten)]
    place: Place,
}

/// What became of them.
#[derive(Default, Serialize)]
struct Outcome {
    suspended: Vec<String>,
    failed: Vec<Failed>,
}

#[derive(Serialize)]
struct Failed {
    id: String,
    detail: String,
}

impl SuspendAll {
    pub(crate) async fn run(self, global: &Global) -> Result<u8, Failure> {
        let client = match Door::open(global, &self.place, Make::No).await? {
            Door::Server(client) => client,
            // Nobody has the directory: then nobody can put anything to sleep either.
            here @ Door::Here(..) => {
                here.close().await;
                return Err(Failure::refused("no daemon is running").hint("start it with `wakeful serve`"));
            }
        };
        let outcome = or_interrupt(suspend_all(&client)).await?;
        if global.json {
            output::json(&outcome)?;
        }
        for Failed { id, detail } in &outcome.failed {
            output::warning(&format!("{id} was not suspended: {detail}"));
        }
        output::say(&format!("{} suspended, {} left", outcome.suspended.len(), outcome.failed.len()));
        Ok(if outcome.failed.is_empty() { 0 } else { REFUSED })
    }
}

async fn suspend_all(client: &Client) -> Result<Outcome, Failure> {
    let tenants = client.tenants().await?.tenants;
    let clients: Vec<Client> =
        tenants.iter().map(|tenant| client.clone().in_tenant(&tenant.name)).collect::<Result<_, _>>()?;
    let mut outcome = Outcome::default();
    for round in 0..=ROUNDS {
        let mut running = Vec::new();
        for client in &clients {
            let query = ListQuery { status: Some("running".into()), ..ListQuery::default() };
            running.extend(client.all_sandboxes(&query).await?.into_iter().map(|sandbox| (client, sandbox.id)));
        }
        if running.is_empty() {
            outcome.failed.clear();
            break;
        }
        if round == ROUNDS {
            let known: HashSet<String> = outcome.failed.iter().map(|failed| failed.id.clone()).collect();
            let again = running.into_iter().map(|(_, id)| id.to_string()).filter(|id| !known.contains(id));
            outcome
                .failed
                .extend(again.map(|id| Failed { id, detail: "somebody wakes it again and again".to_owned() }));
            break;
        }
        let ended: Vec<(String, Result<(), Error>)> = stream::iter(running)
            .map(|(client, id)| async move {
                let id = id.to_string();
                let done = client.suspend(&id, true).await.map(drop);
                (id, done)
            })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        outcome.failed.clear();
        for (id, done) in ended {
            match done {
                Ok(()) if outcome.suspended.contains(&id) => {}
                Ok(()) => outcome.suspended.push(id),
                Err(error) => outcome.failed.push(Failed { id, detail: error.to_string() }),
            }
        }
    }
    Ok(outcome)
}
