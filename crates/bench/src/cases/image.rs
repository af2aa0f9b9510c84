//! A root file system into a base.

use std::io::Write as _;
use std::path::Path;

use super::{Bench, timed};
use crate::bare::blocking;
use crate::report::Pairs;
use crate::{Case, Error, Row};

/// Two hundred files of a megabyte and two thousand small ones: some 200 MB.
const LARGE: usize = 190;
const SMALL: usize = 2000;

/// From the unpacked tree to the base under its digest, synced, against `mke2fs` alone with the same tree.
pub(super) async fn base(bench: &Bench<'_>) -> Result<Row, Error> {
    let dir = bench.server.scratch("image")?;
    let (work, bases, bare) = (dir.join("work"), dir.join("bases"), dir.join("bare.ext4"));
    let (mut pairs, n) = (Pairs::default(), bench.pairs(Case::ImageBase200));
    for round in 0..n {
        bench.tell(Case::ImageBase200, round, n);
        let draft = wakeful_images::Draft::begin(&work).map_err(|error| Error::engine("begin a base", error))?;
        let root = draft.root();
        blocking(move || fill(&root).map_err(Error::io("fill a tree"))).await?;
        let (from, to) = (draft.root(), bare.clone());
        let made = blocking(move || make(&from, &to));
        pairs.engine.push(timed(made).await?.0);
        let finished = async { draft.finish(&bases, &()).await.map_err(|error| Error::engine("make a base", error)) };
        pairs.ours.push(timed(finished).await?.0);
        for made in [&bases, &bare] {
            let gone = if made.is_dir() { std::fs::remove_dir_all(made) } else { std::fs::remove_file(made) };
            gone.map_err(Error::io("remove what was made"))?;
        }
    }
    std::fs::remove_dir_all(dir).map_err(Error::io("remove a directory"))?;
    Ok(Row::of(Case::ImageBase200, &bench.runtime, &pairs))
}

/// Bytes that no file system finds holes in.
fn fill(root: &Path) -> std::io::Result<()> {
    let mut noise = vec![0u8; 1 << 20];
    getrandom::fill(&mut noise).map_err(std::io::Error::other)?;
    for number in 0..LARGE {
        let dir = root.join(format!("usr/lib/part{}", number % 20));
        std::fs::create_dir_all(&dir)?;
        noise.rotate_left(4099);
        std::fs::File::create(dir.join(format!("lib{number}.so")))?.write_all(&noise)?;
    }
    for number in 0..SMALL {
        let dir = root.join(format!("usr/share/doc/part{}", number % 100));
        std::fs::create_dir_all(&dir)?;
        std::fs::write(dir.join(format!("text{number}")), &noise[number..number + 5000])?;
    }
    Ok(())
}

fn make(root: &Path, image: &Path) -> Result<(), Error> {
    let status = std::process::Command::new("mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d"])
        .arg(root)
        .arg(image)
        .arg("320M")
        .stdout(std::process::Stdio::null())
        .status();
    match status.map_err(Error::io("run mke2fs"))? {
        ended if ended.success() => Ok(()),
        ended => Err(Error::engine("make an image", ended)),
    }
}
