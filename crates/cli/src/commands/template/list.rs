//! `wakeful template list`.

use clap::Args;
use jiff::Timestamp;
use wakeful_client::Client;

use super::screen::plain;
use crate::failure::Failure;
use crate::{output, table};

/// List templates
#[derive(Args, Debug)]
#[command(after_help = "\
DISK is what the base takes, SIZE the size of sandboxes that name none.

Examples:
  wakeful template list
  wakeful template list --json")]
pub(crate) struct List {}

impl List {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        let templates = client.templates().await?.templates;
        if json {
            output::json(&templates)?;
        } else {
            output::line(&table::templates(&templates, Timestamp::now()))?;
            for template in &templates {
                if let Some(error) = &template.build_error {
                    let why = error.detail.lines().next().unwrap_or_default();
                    output::say(&format!("{}: {}: {}", template.name, plain(&error.step), plain(why)));
                }
            }
        }
        Ok(0)
    }
}
