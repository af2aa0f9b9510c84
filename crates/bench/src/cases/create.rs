//! Creates, one after the other.

use serde_json::json;

use super::{Bench, id_of, timed};
use crate::report::Pairs;
use crate::{Case, Error, Row};

pub(super) async fn clone(bench: &Bench<'_>) -> Result<Row, Error> {
    let bare = bench.bare(json!({})).await?;
    let (mut pairs, n) = (Pairs::default(), bench.pairs(Case::CreateClone));
    for round in 0..n {
        bench.tell(Case::CreateClone, round, n);
        let (took, made) = timed(bench.create(json!({}))).await?;
        pairs.ours.push(took);
        bench.destroy(id_of(&made)).await?;
        let (took, made) = timed(bare.create(bench.name())).await?;
        pairs.engine.push(took);
        made.destroy().await?;
    }
    Ok(Row::of(Case::CreateClone, &bench.runtime, &pairs))
}
