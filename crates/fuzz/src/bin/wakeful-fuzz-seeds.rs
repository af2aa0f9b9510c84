//! Writes every target's seeds into a corpus directory: `wakeful-fuzz-seeds DIRECTORY`.

use std::path::PathBuf;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let corpus: PathBuf = env::args_os().nth(1).ok_or_else(|| io::Error::other("a directory is missing"))?.into();
    for target in wakeful_fuzz::TARGETS {
        let dir = corpus.join(target.name);
        fs::create_dir_all(&dir)?;
        for (nth, seed) in (target.seeds)().into_iter().enumerate() {
            fs::write(dir.join(format!("seed-{nth}")), seed)?;
        }
    }
    Ok(())
}
