//! A daemon whose thousand sandboxes all sleep: what it costs to have it, and to start it.
//!
//! One sandbox is really suspended. The other rows are copies of its row under ids of their own, with a directory each,
//! whose files are hard links to the first one's: a start must find them, and nobody wakes them.

use std::path::Path;

use serde_json::json;
use wakeful_model::SandboxId;
use wakeful_store::{SqliteStore, Store};

use super::{Bench, create_sandbox, id_of};
use crate::bare::blocking;
use crate::report::Pairs;
use crate::server::{Server, link_tree};
use crate::stats::rounded;
use crate::{Case, Error, Row};

const SLEEPERS: usize = 1000;

pub(super) async fn suspended(bench: &Bench<'_>) -> Result<Row, Error> {
    let starts = bench.pairs(Case::Suspended1000);
    bench.tell(Case::Suspended1000, 0, starts);
    let mut server =
        Server::prepare(&bench.options.data_dir, &bench.options.program, Some(bench.runtime.runtime)).await?;
    server.start().await?;
    let made = create_sandbox(&server.client()?, &bench.template, json!({})).await?;
    let id = id_of(&made);
    server.client()?.suspend(id, true).await.map_err(Error::call("suspend a sandbox"))?;
    server.stop().await?;
    multiply(&server.data(), id).await?;

    let (mut pairs, mut resident) = (Pairs::default(), Vec::new());
    for start in 0..starts {
        bench.tell(Case::Suspended1000, start, starts);
        pairs.ours.push(server.start().await?.as_secs_f64() * 1e3);
        resident.push(server.resident_mb()?);
        if start + 1 < starts {
            server.stop().await?;
        }
    }
    // They are really there, and the one that can be woken can be woken.
    let query = wakeful_client::ListQuery { status: Some("suspended".into()), limit: Some(1000), ..Default::default() };
    let client = server.client()?;
    let found = client.all_sandboxes(&query).await.map_err(Error::call("list the sleepers"))?.len();
    client.wake(id, true).await.map_err(Error::call("wake a sleeper"))?;
    client.destroy_sandbox(id).await.map_err(Error::call("destroy a sandbox"))?;
    let most = resident.iter().copied().fold(0.0, f64::max);
    let slowest = pairs.ours.iter().copied().fold(0.0, f64::max);
    let row = Row::of(Case::Suspended1000, &bench.runtime, &pairs);
    let met = found == SLEEPERS && most < 60.0 && slowest < 1000.0;
    Ok(row.judged(met).with("resident_mb", rounded(most)).with("sleepers", found))
}

/// Makes a thousand of one, while no daemon runs.
async fn multiply(data: &Path, id: &str) -> Result<(), Error> {
    let store = SqliteStore::open(&data.join("wakeful.db")).await.map_err(Error::store("open the database"))?;
    let id: SandboxId = id.parse().map_err(|_| Error::engine("be multiplied", "its id is none"))?;
    let row = store.sandbox(&id).await.map_err(Error::store("read a row"))?;
    let row = row.ok_or_else(|| Error::engine("be multiplied", "it has no row"))?;
    for _ in 1..SLEEPERS {
        let mut copy = row.clone();
        copy.id = SandboxId::random();
        let (from, to) = (data.join("sandboxes").join(id.as_str()), data.join("sandboxes").join(copy.id.as_str()));
        blocking(move || link_tree(&from, &to).map_err(Error::io("copy a sleeper"))).await?;
        store.insert_sandbox(&copy, None).await.map_err(Error::store("write a row"))?;
    }
    store.close().await;
    Ok(())
}
