//! `wakeful sandbox download`.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use futures_util::StreamExt;
use indicatif::ProgressBar;
use wakeful_client::{Client, Download as Incoming};

use crate::failure::Failure;
use crate::values::remote_path;
use crate::{output, progress};

/// Copy a file out of a sandbox
#[derive(Args, Debug)]
#[command(after_help = "\
The file appears under its name only when all of it has come.

Examples:
  wakeful sandbox download sbx_k3v7q2m5x6a4b2c7d5ef /home/user/output.json ./output.json
  wakeful sandbox download sbx_k3v7q2m5x6a4b2c7d5ef /home/user/output.json
  wakeful sandbox download sbx_k3v7q2m5x6a4b2c7d5ef /tmp/src.tar - | tar x")]
pub(crate) struct Download {
    /// The sandbox
    id: String,
    /// The file there
    #[arg(value_name = "REMOTE", value_parser = remote_path)]
    remote: String,
    /// Its name here, or a directory; - for standard output
    #[arg(value_name = "LOCAL", default_value = ".")]
    local: PathBuf,
}

impl Download {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        let target = target(&self.local, &self.remote)?;
        let incoming = client.download(&self.id, &self.remote).await?;
        let bar = match &target {
            // a bar between the lines of someone else's output helps nobody
            Target::Stdout => ProgressBar::hidden(),
            Target::Beside(_) | Target::Into(_) => progress::transfer(&self.remote, incoming.length),
        };
        let received = match &target {
            Target::Stdout => copy(incoming, &bar, &mut std::io::stdout().lock(), None).await,
            Target::Into(path) => {
                let wrong = |error| Failure::file("write", path, &error);
                let mut file = std::fs::OpenOptions::new().write(true).open(path).map_err(wrong)?;
                copy(incoming, &bar, &mut file, Some(path)).await
            }
            Target::Beside(path) => beside(incoming, &bar, path).await,
        };
        bar.finish_and_clear();
        let received = received?;
        match &target {
            Target::Stdout => {}
            Target::Beside(path) | Target::Into(path) if json => {
                output::json(&serde_json::json!({"path": path.display().to_string(), "size": received}))?;
            }
            Target::Beside(path) | Target::Into(path) => {
                output::say(&format!("{received} bytes in {}", path.display()));
            }
        }
        Ok(0)
    }
}

/// Where the bytes go.
#[derive(Debug, PartialEq, Eq)]
enum Target {
    Stdout,
    /// Written beside and renamed.
    Beside(PathBuf),
    /// A pipe or a device that is there already.
    Into(PathBuf),
}

fn target(local: &Path, remote: &str) -> Result<Target, Failure> {
    if local == Path::new("-") {
        return Ok(Target::Stdout);
    }
    match local.metadata() {
        Ok(metadata) if metadata.is_dir() => {
            let name = remote.rsplit('/').find(|name| !name.is_empty());
            name.map(|name| Target::Beside(local.join(name)))
                .ok_or_else(|| Failure::usage(format!("{remote} gives no name for a file in {}", local.display())))
        }
        Ok(metadata) if !metadata.is_file() => Ok(Target::Into(local.to_owned())),
        // through a symbolic link to the file that it means
        Ok(_) => Ok(Target::Beside(local.canonicalize().unwrap_or_else(|_| local.to_owned()))),
        Err(_) => Ok(Target::Beside(local.to_owned())),
    }
}

async fn beside(incoming: Incoming, bar: &ProgressBar, path: &Path) -> Result<u64, Failure> {
    use std::os::unix::fs::PermissionsExt;
    let wrong = |error| Failure::file("write", path, &error);
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // dropped, and so removed, if anything below fails or a signal comes
    let mut file = tempfile::Builder::new()
        .prefix(".wakeful-download-")
        // the user's umask applies, as to every other file
        .permissions(std::fs::Permissions::from_mode(0o666))
        .tempfile_in(parent)
        .map_err(wrong)?;
    let received = copy(incoming, bar, file.as_file_mut(), Some(path)).await?;
    file.persist(path).map_err(|error| wrong(error.error))?;
    Ok(received)
}

/// Copies all of it; fewer bytes than were promised are an error.
async fn copy(
    mut incoming: Incoming,
    bar: &ProgressBar,
    to: &mut dyn Write,
    path: Option<&Path>,
) -> Result<u64, Failure> {
    let wrong = |error| match path {
        Some(path) => Failure::file("write", path, &error),
        None => error.into(),
    };
    let mut received = 0;
    while let Some(piece) = incoming.content.next().await {
        let piece = piece?;
        to.write_all(&piece).map_err(wrong)?;
        received += piece.len() as u64;
        bar.set_position(received);
    }
    to.flush().map_err(wrong)?;
    match incoming.length {
        Some(length) if length != received => {
            Err(Failure::refused(format!("the file broke off after {received} of {length} bytes")))
        }
        _ => Ok(received),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_it_goes() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path();
        assert_eq!(target(Path::new("-"), "/a").unwrap(), Target::Stdout);
        assert_eq!(target(at, "/a/b.txt").unwrap(), Target::Beside(at.join("b.txt")));
        assert_eq!(target(&at.join("new"), "/a/b.txt").unwrap(), Target::Beside(at.join("new")));
        assert_eq!(target(Path::new("/dev/null"), "/a").unwrap(), Target::Into("/dev/null".into()));
        assert!(target(at, "/").is_err());
    }
}
