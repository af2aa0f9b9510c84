//! `true`, again and again, in guests that do nothing else.

use serde_json::json;

use super::{Bench, id_of, timed};
use crate::report::Pairs;
use crate::{Case, Error, Row};

/// An emulated guest translates the way of a call first.
const WARM: usize = 8;

pub(super) async fn true_(bench: &Bench<'_>) -> Result<Row, Error> {
    let bare = bench.bare(json!({})).await?.create(bench.name()).await?;
    let ours = bench.create(json!({})).await?;
    let id = id_of(&ours);
    for _ in 0..WARM {
        bench.execute(id, &["true"]).await?;
        bare.run("true", &[]).await?;
    }
    let (mut pairs, n) = (Pairs::default(), bench.pairs(Case::ExecTrue));
    for round in 0..n {
        if round % 10 == 0 {
            bench.tell(Case::ExecTrue, round, n);
        }
        pairs.ours.push(timed(bench.execute(id, &["true"])).await?.0);
        pairs.engine.push(timed(bare.run("true", &[])).await?.0);
    }
    bare.destroy().await?;
    bench.destroy(id).await?;
    Ok(Row::of(Case::ExecTrue, &bench.runtime, &pairs))
}
