//! Suspends and wakes. A wake is measured as users meet it: by a call that needs the sandbox awake.

use serde_json::{Value, json};

use super::{Bench, id_of, timed};
use crate::bare::Bare;
use crate::report::{Pairs, follows_dirty_pages};
use crate::stats::{paired, rounded, summary};
use crate::{Case, Error, Row};

/// 100 MiB that no compression and no page of zeroes makes smaller, held in the guest's memory.
const DIRTY: [&str; 3] = ["sh", "-c", "head -c 104857600 /dev/urandom > /dev/shm/dirty"];

/// Suspends and wakes of one kind.
#[derive(Default)]
struct Cycles {
    suspend: Pairs,
    wake: Pairs,
}

impl Cycles {
    async fn ours(&mut self, bench: &Bench<'_>, id: &str) -> Result<(), Error> {
        self.suspend.ours.push(timed(bench.suspend(id)).await?.0);
        self.wake.ours.push(timed(bench.execute(id, &["true"])).await?.0);
        Ok(())
    }

    async fn engine(&mut self, bare: &mut crate::bare::Sandbox) -> Result<(), Error> {
        self.suspend.engine.push(timed(bare.suspend()).await?.0);
        bare.prepare().await?;
        let wake = async {
            bare.wake().await?;
            bare.run("true", &[]).await
        };
        self.wake.engine.push(timed(wake).await?.0);
        Ok(())
    }
}

/// Fresh sandboxes that have done nothing, of both sizes in turns.
pub(super) async fn idle(bench: &Bench<'_>, wanted: &dyn Fn(Case) -> bool) -> Result<Vec<Row>, Error> {
    let large = wanted(Case::SuspendIdle4096);
    if !large && !wanted(Case::SuspendIdle256) && !wanted(Case::WakeIdle256) {
        return Ok(Vec::new());
    }
    let sizes: &[(Case, Value)] =
        &[(Case::SuspendIdle256, json!({})), (Case::SuspendIdle4096, json!({"cpu": 1, "memory_mb": 4096}))];
    let mut bare: Vec<(Case, &Value, Bare, Cycles)> = Vec::new();
    for (case, size) in &sizes[..if large { 2 } else { 1 }] {
        bench.tell(*case, 0, bench.pairs(*case));
        bare.push((*case, size, bench.bare(size.clone()).await?, Cycles::default()));
    }
    let n = bench.pairs(Case::SuspendIdle256);
    for round in 0..n {
        for (case, size, bare, cycles) in &mut bare {
            bench.tell(*case, round, n);
            let made = bench.create(size.clone()).await?;
            cycles.ours(bench, id_of(&made)).await?;
            bench.destroy(id_of(&made)).await?;
            let mut made = bare.create(bench.name()).await?;
            cycles.engine(&mut made).await?;
            made.destroy().await?;
        }
    }
    let mut rows = Vec::new();
    let small = &bare[0].3;
    if wanted(Case::SuspendIdle256) {
        rows.push(Row::of(Case::SuspendIdle256, &bench.runtime, &small.suspend));
    }
    if wanted(Case::WakeIdle256) {
        rows.push(Row::of(Case::WakeIdle256, &bench.runtime, &small.wake));
    }
    if let Some((case, _, _, cycles)) = bare.get(1) {
        let (large, small) = (&cycles.suspend.ours, &small.suspend.ours);
        let met = follows_dirty_pages(large, small).unwrap_or(false);
        let ratio = paired(large, small, |large, small| large / small).map(rounded);
        let row = Row::of(*case, &bench.runtime, &cycles.suspend).judged(met);
        rows.push(row.with("ours_256_ms", json!(summary(small))).with("ratio_to_256", json!(ratio)));
    }
    Ok(rows)
}

/// One sandbox of each kind with 100 MiB in memory. Pages that were brought back differ from the base as they did
/// before, so every suspend writes all of them again.
pub(super) async fn dirty(bench: &Bench<'_>, wanted: &dyn Fn(Case) -> bool) -> Result<Vec<Row>, Error> {
    if !wanted(Case::SuspendDirty100) && !wanted(Case::WakeDirty100) {
        return Ok(Vec::new());
    }
    let n = bench.pairs(Case::WakeDirty100);
    bench.tell(Case::WakeDirty100, 0, n);
    let mut bare = bench.bare(json!({})).await?.create(bench.name()).await?;
    let ours = bench.create(json!({})).await?;
    let id = id_of(&ours);
    bare.run(DIRTY[0], &DIRTY[1..]).await?;
    bench.execute(id, &DIRTY).await?;
    let mut cycles = Cycles::default();
    for round in 0..n {
        bench.tell(Case::WakeDirty100, round, n);
        cycles.ours(bench, id).await?;
        cycles.engine(&mut bare).await?;
    }
    bare.destroy().await?;
    bench.destroy(id).await?;
    let mut rows = Vec::new();
    if wanted(Case::SuspendDirty100) {
        rows.push(Row::of(Case::SuspendDirty100, &bench.runtime, &cycles.suspend));
    }
    if wanted(Case::WakeDirty100) {
        rows.push(Row::of(Case::WakeDirty100, &bench.runtime, &cycles.wake));
    }
    Ok(rows)
}
