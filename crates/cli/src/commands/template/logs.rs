//! `wakeful template logs`.

use clap::Args;
use futures_util::StreamExt;
use wakeful_client::Client;
use wakeful_client::types::BuildEvent;

use super::screen::{name, plain};
use crate::failure::Failure;
use crate::{output, table};

/// Show what a template's build said
#[derive(Args, Debug)]
#[command(after_help = "\
The log of the last build is kept. -f stays until the build has ended; to stop looking does not
stop the build.
With --json: the events of the REST API; with -f one a line.

Examples:
  wakeful template logs shop
  wakeful template logs -f shop
  wakeful template logs shop --json | jq -r '.[].line // empty'")]
pub(crate) struct Logs {
    /// Its name
    name: String,
    /// Stay until the build has ended
    #[arg(short, long)]
    follow: bool,
}

impl Logs {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        let mut events = client.template_log(&self.name, self.follow).await?;
        let (mut all, mut step) = (Vec::new(), String::new());
        while let Some(event) = events.next().await {
            let event = event?;
            match (json, self.follow) {
                (true, true) => output::json_line(&event)?,
                (true, false) => all.push(event),
                (false, _) => print(&event, &mut step)?,
            }
        }
        if json && !self.follow {
            output::json(&all)?;
        }
        Ok(0)
    }
}

/// Steps at the margin, what they said below them.
fn print(event: &BuildEvent, now: &mut String) -> Result<(), Failure> {
    let BuildEvent::Progress { step, line, layer, .. } = event else { return Ok(()) };
    if step != now {
        step.clone_into(now);
        output::line(&plain(step))?;
    }
    match (line, layer) {
        (Some(text), _) => {
            for line in text.lines() {
                output::line(format!("  {}", plain(line)).trim_end())?;
            }
        }
        (None, Some(layer)) if layer.done >= layer.total => {
            output::line(&format!("  {} {}", name(layer), table::bytes(layer.total)))?;
        }
        (None, _) => {}
    }
    Ok(())
}
