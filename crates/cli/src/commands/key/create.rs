//! `wakeful key create`.

use clap::Args;
use wakeful_client::types::CreateKey;
use wakeful_model::Scope;

use crate::args::Global;
use crate::commands::door::{Door, Make, Place};
use crate::failure::Failure;
use crate::output;

/// Make an API key; it is printed once and kept nowhere
#[derive(Args, Debug)]
#[command(after_help = "\
Scopes: sandbox:read, sandbox:write, sandbox:*, template:read, template:write, template:*, admin.
From the first key on every call needs one, on this machine too; whoever can read the data
directory is admin still, and this program finds that out by itself.

Examples:
  wakeful key create --name ci
  wakeful key create --name dashboard --scope sandbox:read,template:read
  wakeful key create --name acme-prod --tenant acme
  export WAKEFUL_API_KEY=$(wakeful key create --name laptop --scope admin)")]
pub(crate) struct Create {
    /// What to call it
    #[arg(long)]
    name: String,
    /// Whose it is [default: default]
    #[arg(long)]
    tenant: Option<String>,
    /// What it allows (repeatable) [default: sandbox:* and template:*]
    #[arg(long, value_name = "SCOPE", value_delimiter = ',', value_parser = scope)]
    scope: Vec<Scope>,
    #[command(flatten)]
    place: Place,
}

fn scope(text: &str) -> Result<Scope, String> {
    let all = Scope::ALL.map(Scope::as_str).join(", ");
    text.parse().map_err(|error: wakeful_model::InvalidScope| format!("{error}; there are {all}"))
}

impl Create {
    pub(crate) async fn run(self, global: &Global) -> Result<u8, Failure> {
        let scopes = if self.scope.is_empty() { vec![Scope::Sandbox, Scope::Template] } else { self.scope };
        let scopes = scopes.into_iter().map(|scope| scope.to_string()).collect();
        let new = CreateKey { name: self.name, tenant: self.tenant, scopes };
        let door = Door::open(global, &self.place, Make::Yes).await?;
        let created = door.create_key(&new).await;
        door.close().await;
        let created = created?;
        let about = &created.about;
        if global.json {
            output::json(&created)?;
        } else {
            output::secret(&created.secret)?;
        }
        output::say(&format!(
            "{} for tenant {} ({}); it is not shown again",
            about.id,
            about.tenant,
            about.scopes.join(", ")
        ));
        Ok(0)
    }
}
