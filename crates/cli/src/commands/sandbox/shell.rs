//! `wakeful sandbox shell`.

use clap::Args;
use wakeful_client::{Client, Which};

use crate::failure::Failure;
use crate::{session, tty};

/// How much of its past a terminal shows that is attached to.
const PAST: u64 = 200;

/// Open a terminal in a sandbox; a sleeping one wakes first
#[derive(Args, Debug)]
#[command(after_help = "\
All keys go to the shell inside, ^C and ^Z too. At the beginning of a line:
  ~.  leave; the shell inside goes on, and --attach comes back to it
  ~~  one ~
  ~?  this list

A shell in which nothing happens does not keep its sandbox awake. When that sleeps, the next key
wakes it and the same shell goes on, with its variables, jobs and screen. When the connection is
lost or the server restarts, it is attached to again as soon as that is possible.
The exit code is that of the shell; 125 if it never ran.

Examples:
  wakeful sandbox shell sbx_k3v7q2m5x6a4b2c7d5ef
  wakeful sandbox shell sbx_k3v7q2m5x6a4b2c7d5ef --command 'python3 -q'
  wakeful sandbox shell sbx_k3v7q2m5x6a4b2c7d5ef --attach 214")]
pub(crate) struct Shell {
    /// The sandbox
    id: String,
    /// Run this line instead of the user's shell
    #[arg(short, long, value_name = "LINE")]
    command: Option<String>,
    /// Go back to this process, which runs in a terminal already
    #[arg(short, long, value_name = "PID", conflicts_with = "command")]
    attach: Option<u32>,
}

impl Shell {
    pub(crate) async fn run(self, client: &Client) -> Result<u8, Failure> {
        if !tty::attended() {
            return Err(Failure::usage("a shell needs a terminal, and this is none")
                .hint("`wakeful sandbox exec ID 'line'` runs a command without one"));
        }
        let which = match (self.command, self.attach) {
            (Some(line), _) => Which::Command(line),
            (None, None) => Which::Shell,
            (None, Some(pid)) => {
                let process = client.process(&self.id, pid).await.map_err(|error| Failure::from(error).never_ran())?;
                if !process.pty {
                    return Err(Failure::usage(format!("process {pid} has no terminal"))
                        .hint(format!("`wakeful sandbox logs -f {} {pid}` shows what it writes", self.id)));
                }
                Which::Attach { pid, from: process.last_seq.saturating_sub(PAST) }
            }
        };
        session::show(client, &self.id, which).await
    }
}
