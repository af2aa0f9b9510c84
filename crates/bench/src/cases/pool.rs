//! Creates that the pool answers, and the first command after them.

use std::time::{Duration, Instant};

use serde_json::json;
use wakeful_client::types::Pool;

use super::{Bench, id_of, timed};
use crate::report::Pairs;
use crate::{Case, Error, Row};

/// How long the pool may take to be as it should.
const FILLED: Duration = Duration::from_secs(60);
/// An emulated guest translates the way of a call first.
const WARM: usize = 8;

/// Both are measured over a pool of one, which is full before each: nothing is made beside them.
pub(super) async fn pool(bench: &Bench<'_>, wanted: &dyn Fn(Case) -> bool) -> Result<Vec<Row>, Error> {
    if !wanted(Case::CreatePool) && !wanted(Case::PoolExec) {
        return Ok(Vec::new());
    }
    let template = bench.client.template(&bench.template).await.map_err(Error::call("look at the template"))?;
    let size = template.default_size;
    let mut rows = Vec::new();
    if wanted(Case::CreatePool) {
        rows.push(create(bench, &size).await?);
    }
    if wanted(Case::PoolExec) {
        rows.push(exec(bench, &size).await?);
    }
    Ok(rows)
}

async fn set(bench: &Bench<'_>, size: &str, target: u32) -> Result<(), Error> {
    bench.client.put_pool(&bench.template, size, target).await.map_err(Error::call("set the pool"))?;
    full(bench, size, target).await.map(drop)
}

/// Waits until it has as many members as it should, and none that is on its way.
async fn full(bench: &Bench<'_>, size: &str, target: u32) -> Result<u64, Error> {
    let began = Instant::now();
    loop {
        let pools = bench.client.pools().await.map_err(Error::call("look at the pool"))?.pools;
        let pool = pools.into_iter().find(|pool| pool.template == bench.template && pool.size == size);
        match pool {
            Some(Pool { ready, claimed, memory_mb, .. }) if ready == target && (target > 0 || memory_mb == 0) => {
                return Ok(claimed);
            }
            None if target == 0 => return Ok(0),
            _ if began.elapsed() > FILLED => return Err(Error::engine("fill the pool", "it takes too long")),
            _ => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

async fn create(bench: &Bench<'_>, size: &str) -> Result<Row, Error> {
    let bare = bench.bare(json!({})).await?;
    let (mut pairs, n) = (Pairs::default(), bench.pairs(Case::CreatePool));
    set(bench, size, 1).await?;
    let before = full(bench, size, 1).await?;
    for round in 0..n {
        bench.tell(Case::CreatePool, round, n);
        let mut still = bare.create(bench.name()).await?;
        still.stand().await?;
        full(bench, size, 1).await?;
        let (took, made) = timed(bench.create(json!({}))).await?;
        pairs.ours.push(took);
        full(bench, size, 1).await?;
        pairs.engine.push(timed(still.claim()).await?.0);
        still.destroy().await?;
        bench.destroy(id_of(&made)).await?;
    }
    let claimed = full(bench, size, 1).await? - before;
    set(bench, size, 0).await?;
    Ok(Row::of(Case::CreatePool, &bench.runtime, &pairs).with("claimed", claimed))
}

async fn exec(bench: &Bench<'_>, size: &str) -> Result<Row, Error> {
    let (mut pairs, n) = (Pairs::default(), bench.pairs(Case::PoolExec));
    let running = bench.create(json!({})).await?;
    for _ in 0..WARM {
        bench.execute(id_of(&running), &["true"]).await?;
    }
    set(bench, size, 1).await?;
    let before = full(bench, size, 1).await?;
    for round in 0..n {
        bench.tell(Case::PoolExec, round, n);
        full(bench, size, 1).await?;
        let both = async {
            let made = bench.create(json!({})).await?;
            bench.execute(id_of(&made), &["true"]).await?;
            Ok(made)
        };
        let (took, made) = timed(both).await?;
        pairs.ours.push(took);
        full(bench, size, 1).await?;
        pairs.engine.push(timed(bench.execute(id_of(&running), &["true"])).await?.0);
        bench.destroy(id_of(&made)).await?;
    }
    let claimed = full(bench, size, 1).await? - before;
    set(bench, size, 0).await?;
    bench.destroy(id_of(&running)).await?;
    Ok(Row::of(Case::PoolExec, &bench.runtime, &pairs).with("claimed", claimed))
}
