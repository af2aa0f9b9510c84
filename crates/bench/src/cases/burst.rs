//! Many creates at once: nothing may fail, nothing may be left, and the daemon may not get in the engines' way.

use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{Bench, create_sandbox, id_of, timed};
use crate::bare::qemu::Sandbox;
use crate::report::Pairs;
use crate::stats::rounded;
use crate::{Case, Error, Row};

pub(super) async fn burst(bench: &Bench<'_>) -> Result<Row, Error> {
    let n = bench.pairs(Case::Burst100);
    let bare = Arc::new(bench.qemu(json!({})).await?);
    let mut pairs = Pairs::default();

    bench.tell(Case::Burst100, 0, n);
    let mut creates = JoinSet::new();
    let began = Instant::now();
    for _ in 0..n {
        let (client, template) = (bench.client.clone(), bench.template.clone());
        creates.spawn(async move { timed(create_sandbox(&client, &template, json!({}))).await });
    }
    let mut errors = Vec::new();
    let mut made: Vec<Value> = Vec::new();
    while let Some(done) = creates.join_next().await {
        match done.unwrap_or_else(|ended| Err(Error::engine("go on", ended))) {
            Ok((took, sandbox)) => {
                pairs.ours.push(took);
                made.push(sandbox);
            }
            Err(error) => errors.push(error.to_string()),
        }
    }
    let ours = throughput(made.len(), began);
    for sandbox in &made {
        bench.destroy(id_of(sandbox)).await?;
    }
    let left = bench.server.left();

    bench.tell(Case::Burst100, n, n);
    let mut creates: JoinSet<Result<(f64, Sandbox), Error>> = JoinSet::new();
    let began = Instant::now();
    for _ in 0..n {
        let (bare, name) = (Arc::clone(&bare), bench.name());
        creates.spawn(async move { timed(bare.create(name)).await });
    }
    let mut made = Vec::new();
    while let Some(done) = creates.join_next().await {
        let (took, sandbox) = done.unwrap_or_else(|ended| Err(Error::engine("go on", ended)))?;
        pairs.engine.push(took);
        made.push(sandbox);
    }
    let engine = throughput(made.len(), began);
    for sandbox in made {
        sandbox.destroy().await?;
    }

    let share = ours / engine;
    let met = errors.is_empty() && left.is_empty() && share >= 0.8;
    let mut row = Row::of(Case::Burst100, &bench.runtime, &pairs).judged(met);
    // Nobody's neighbour was measured beside them: these two say nothing here.
    (row.difference_ms, row.ratio) = (None, None);
    errors.truncate(5);
    Ok(row
        .with("ours_per_second", rounded(ours))
        .with("engine_per_second", rounded(engine))
        .with("throughput_ratio", rounded(share))
        .with("errors", errors)
        .with("left", left))
}

fn throughput(count: usize, began: Instant) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / began.elapsed().as_secs_f64()
}
