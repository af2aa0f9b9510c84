//! Creates, one after the other.

use std::fs::File;

use serde_json::json;

use super::{Bench, id_of, timed};
use crate::bare::blocking;
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
        bare.prepare().await?;
        let (took, made) = timed(bare.create(bench.name())).await?;
        pairs.engine.push(took);
        made.destroy().await?;
    }
    Ok(Row::of(Case::CreateClone, &bench.runtime, &pairs))
}

/// The copy that a driver makes of the golden snapshot's disk: holes stay holes.
pub(super) async fn disk(bench: &Bench<'_>) -> Result<Row, Error> {
    let golden = bench.qemu(json!({})).await?.golden.dir.join("overlay.ext4");
    let dir = bench.server.scratch("disks")?;
    let (mut pairs, n) = (Pairs::default(), bench.pairs(Case::DiskPrepare));
    for round in 0..n {
        bench.tell(Case::DiskPrepare, round, n);
        let (from, to) = (golden.clone(), dir.join(format!("{round}.ext4")));
        let copy = blocking(move || {
            let failed = || Error::io("copy a disk");
            let (from, to) = (File::open(from).map_err(failed())?, File::create_new(to).map_err(failed())?);
            wakeful_sys::copy::sparse_copy(&from, &to).map_err(failed())
        });
        pairs.ours.push(timed(copy).await?.0);
    }
    std::fs::remove_dir_all(dir).map_err(Error::io("remove a directory"))?;
    Ok(Row::of(Case::DiskPrepare, &bench.runtime, &pairs))
}
