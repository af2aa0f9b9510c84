//! `wakeful template list`.

use clap::Args;
use jiff::Timestamp;
use wakeful_client::Client;

use crate::failure::Failure;
use crate::{output, table};

/// List templates
#[derive(Args, Debug)]
#[command(after_help = "\
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
                    output::say(&format!("{}: {}: {}", template.name, error.step, error.detail));
                }
            }
        }
        Ok(0)
    }
}
