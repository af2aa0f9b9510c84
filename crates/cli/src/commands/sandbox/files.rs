//! `wakeful sandbox ls`, `stat`, `mkdir`, `mv` and `rm`: the files of a sandbox, by name.

use clap::Args;
use wakeful_client::Client;

use crate::failure::Failure;
use crate::values::remote_path;
use crate::{output, table};

/// List a directory in a sandbox
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  wakeful sandbox ls sbx_k3v7q2m5x6a4b2c7d5ef /home/user
  wakeful sandbox ls sbx_k3v7q2m5x6a4b2c7d5ef /home/user --json")]
pub(crate) struct Ls {
    /// The sandbox
    id: String,
    /// The directory
    #[arg(value_parser = remote_path, default_value = "/")]
    path: String,
}

impl Ls {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        let entries = client.list_directory(&self.id, &self.path).await?.entries;
        if json {
            output::json(&entries)?;
        } else {
            output::line(&table::files(&entries))?;
        }
        Ok(0)
    }
}

/// Show one file or directory of a sandbox
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  wakeful sandbox stat sbx_k3v7q2m5x6a4b2c7d5ef /home/user/main.py")]
pub(crate) struct Stat {
    /// The sandbox
    id: String,
    /// The file
    #[arg(value_parser = remote_path)]
    path: String,
}

impl Stat {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        let entry = client.stat(&self.id, &self.path).await?;
        if json {
            output::json(&entry)?;
        } else {
            output::line(&table::files(std::slice::from_ref(&entry)))?;
        }
        Ok(0)
    }
}

/// Make a directory in a sandbox
#[derive(Args, Debug)]
#[command(after_help = "\
Directories on its way are made too.

Examples:
  wakeful sandbox mkdir sbx_k3v7q2m5x6a4b2c7d5ef /home/user/src/lib")]
pub(crate) struct Mkdir {
    /// The sandbox
    id: String,
    /// The directory
    #[arg(value_parser = remote_path)]
    path: String,
}

impl Mkdir {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        let entry = client.make_directory(&self.id, &self.path).await?;
        if json {
            output::json(&entry)?;
        }
        Ok(0)
    }
}

/// Move or rename a file in a sandbox
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  wakeful sandbox mv sbx_k3v7q2m5x6a4b2c7d5ef /tmp/result.json /home/user/result.json")]
pub(crate) struct Mv {
    /// The sandbox
    id: String,
    /// The file
    #[arg(value_name = "FROM", value_parser = remote_path)]
    from: String,
    /// Its new path
    #[arg(value_name = "TO", value_parser = remote_path)]
    to: String,
}

impl Mv {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        let entry = client.move_file(&self.id, &self.from, &self.to).await?;
        if json {
            output::json(&entry)?;
        }
        Ok(0)
    }
}

/// Remove files and directories of a sandbox
#[derive(Args, Debug)]
#[command(after_help = "\
Directories with all that is in them. What is not there is no error.
To end a sandbox with all its files: wakeful sandbox destroy

Examples:
  wakeful sandbox rm sbx_k3v7q2m5x6a4b2c7d5ef /home/user/build /tmp/log")]
pub(crate) struct Rm {
    /// The sandbox
    id: String,
    /// The files
    #[arg(value_name = "PATH", required = true, value_parser = remote_path)]
    paths: Vec<String>,
}

impl Rm {
    pub(crate) async fn run(self, client: &Client) -> Result<u8, Failure> {
        for path in &self.paths {
            client.remove_file(&self.id, path).await?;
        }
        Ok(0)
    }
}
