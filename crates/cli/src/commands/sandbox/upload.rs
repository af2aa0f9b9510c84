//! `wakeful sandbox upload`.

use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};

use clap::Args;
use tokio::fs::File;
use wakeful_client::{Client, Upload as Options};

use crate::failure::Failure;
use crate::values::remote_path;
use crate::{output, progress};

/// Copy a file into a sandbox
#[derive(Args, Debug)]
#[command(after_help = "\
A file may have 100 MB. Directories on its way are made.

Examples:
  wakeful sandbox upload sbx_k3v7q2m5x6a4b2c7d5ef ./main.py /home/user/main.py
  wakeful sandbox upload sbx_k3v7q2m5x6a4b2c7d5ef tool /usr/local/bin/ --mode 0755
  tar c src | wakeful sandbox upload sbx_k3v7q2m5x6a4b2c7d5ef - /tmp/src.tar")]
pub(crate) struct Upload {
    /// The sandbox
    id: String,
    /// The file here; - for standard input
    #[arg(value_name = "LOCAL")]
    local: PathBuf,
    /// Its path there; with / at the end the name is kept
    #[arg(value_name = "REMOTE", value_parser = remote_path)]
    remote: String,
    /// Permissions in octal [default: 0644]
    #[arg(long, value_name = "MODE")]
    mode: Option<String>,
    /// Who owns it [default: the template's user]
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
}

impl Upload {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        let remote = destination(&self.remote, &self.local)?;
        let (file, length) = if self.local == Path::new("-") { spool().await? } else { open(&self.local).await? };
        let bar = progress::transfer(&remote, Some(length));
        let how = Options { mode: self.mode, user: self.user };
        let written = client.upload(&self.id, &remote, length, bar.wrap_async_read(file), &how).await;
        bar.finish_and_clear();
        let written = written?;
        if json {
            output::json(&written)?;
        } else {
            output::say(&format!("{} bytes in {}", written.size, written.path));
        }
        Ok(0)
    }
}

fn destination(remote: &str, local: &Path) -> Result<String, Failure> {
    if !remote.ends_with('/') {
        return Ok(remote.to_owned());
    }
    let name = local.file_name().and_then(|name| name.to_str()).filter(|_| local != Path::new("-"));
    name.map(|name| format!("{remote}{name}"))
        .ok_or_else(|| Failure::usage(format!("{} gives no name for a file in {remote}", local.display())))
}

async fn open(path: &Path) -> Result<(File, u64), Failure> {
    let wrong = |error: std::io::Error| Failure::file("read", path, &error);
    let file = File::open(path).await.map_err(wrong)?;
    let metadata = file.metadata().await.map_err(wrong)?;
    if metadata.is_dir() {
        return Err(Failure::refused(format!("{} is a directory", path.display()))
            .hint("send an archive: tar c DIR | wakeful sandbox upload ID - /tmp/dir.tar"));
    }
    if !metadata.is_file() {
        return Err(Failure::refused(format!("{} is not a file", path.display())).hint("use - for standard input"));
    }
    Ok((file, metadata.len()))
}

/// The server wants the length first, so standard input goes through a file without a name.
async fn spool() -> Result<(File, u64), Failure> {
    let wrong = |error: std::io::Error| Failure::refused(format!("could not keep standard input: {error}"));
    let spooled = tokio::task::spawn_blocking(|| {
        let mut file = tempfile::tempfile()?;
        let length = std::io::copy(&mut std::io::stdin().lock(), &mut file)?;
        file.seek(SeekFrom::Start(0))?;
        Ok((file, length))
    });
    let (file, length) = spooled.await.map_err(|_| Failure::bug())?.map_err(wrong)?;
    Ok((File::from_std(file), length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_keeps_the_name() {
        let to = |remote: &str, local: &str| destination(remote, Path::new(local)).ok();
        assert_eq!(to("/a/b", "./c.py").as_deref(), Some("/a/b"));
        assert_eq!(to("/a/", "./c.py").as_deref(), Some("/a/c.py"));
        assert_eq!(to("/a/", "-"), None);
        assert_eq!(to("/a/", ".."), None);
    }
}
