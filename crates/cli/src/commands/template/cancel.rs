//! `wakeful template cancel`.

use clap::Args;
use wakeful_client::Client;

use crate::failure::Failure;
use crate::output;

/// End the build of a template
#[derive(Args, Debug)]
#[command(after_help = "\
One that was never built is failed then; one that was is what it was before.

Examples:
  wakeful template cancel shop")]
pub(crate) struct Cancel {
    /// Its name
    name: String,
}

impl Cancel {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        let template = client.cancel_build(&self.name).await?;
        if json {
            output::json(&template)?;
        } else {
            output::say(&format!("the build of {} has ended; the template is {}", template.name, template.status));
        }
        Ok(0)
    }
}
