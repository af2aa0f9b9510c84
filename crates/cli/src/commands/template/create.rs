//! `wakeful template create`.

use std::time::Duration;

use clap::Args;
use futures_util::StreamExt;
use wakeful_client::Client;
use wakeful_client::types::{BuildEvent, CreateTemplate, Template};
use wakeful_model::{TemplateSource, TemplateStatus};

use crate::failure::Failure;
use crate::output;
use crate::progress::{Steps, Verbose};
use crate::values::{EgressArgs, key_value};

/// A build that says nothing for so long has hung.
const SILENCE: Duration = Duration::from_secs(600);

/// Build a template from Debian packages
#[derive(Args, Debug)]
#[command(after_help = "\
The template comes with its first golden snapshot, of which sandboxes are cloned. The build is
the server's, and goes on if this command is stopped.

Examples:
  wakeful template create tools --debian bookworm --packages git,make,gcc,libc6-dev
  wakeful template create node --debian bookworm --packages nodejs,npm --default-size shared-cpu-4x
  wakeful template create tools --debian bookworm --no-wait")]
pub(crate) struct Create {
    /// Its name
    name: String,
    /// The Debian release it is made of
    #[arg(long, value_name = "RELEASE", required = true)]
    debian: String,
    /// Packages, separated by commas (repeatable)
    #[arg(long, value_name = "PACKAGE", value_delimiter = ',')]
    packages: Vec<String>,
    /// Size of sandboxes that name none [default: shared-cpu-1x]
    #[arg(long, value_name = "SIZE")]
    default_size: Option<String>,
    /// A variable for all its sandboxes (repeatable)
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = key_value)]
    env: Vec<(String, String)>,
    /// Begin the build and do not wait for its end
    #[arg(long)]
    no_wait: bool,
    /// Show all that the build says
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    egress: EgressArgs,
}

impl Create {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        let new = CreateTemplate {
            name: self.name,
            source: TemplateSource::Debian {
                suite: self.debian,
                packages: self.packages.into_iter().filter(|name| !name.is_empty()).collect(),
            },
            default_size: self.default_size,
            env: self.env.into_iter().collect(),
            egress: self.egress.request(),
        };
        let template = if self.no_wait {
            client.create_template(&new).await?
        } else {
            build(client, &new, if self.verbose { Verbose::Yes } else { Verbose::No }).await?
        };
        if json {
            output::json(&template)?;
        } else {
            output::line(&template.name)?;
        }
        Ok(0)
    }
}

/// Has a template built, and shows how it goes.
pub(crate) async fn build(client: &Client, new: &CreateTemplate, verbose: Verbose) -> Result<Template, Failure> {
    client.create_template(new).await?;
    follow(client, &new.name, verbose).await
}

/// Shows a build until its end.
pub(crate) async fn follow(client: &Client, name: &str, verbose: Verbose) -> Result<Template, Failure> {
    let mut events = client.template_log(name, true).await?;
    let mut steps = Steps::new(verbose);
    loop {
        let next = tokio::time::timeout(SILENCE, events.next()).await;
        let Ok(next) = next else {
            return Err(Failure::refused(format!("the build of {name} said nothing for {SILENCE:?}"))
                .hint("it goes on in the server; `wakeful template list` shows how far it is"));
        };
        match next {
            Some(Ok(BuildEvent::Progress { step, fraction, line, .. })) => {
                steps.event(&step, fraction, line.as_deref());
            }
            Some(Ok(BuildEvent::End { .. })) | None => break,
            Some(Err(error)) => return Err(error.into()),
        }
    }
    // the row, not the log, has the last word
    let template = client.template(name).await?;
    match template.status {
        TemplateStatus::Ready => {
            steps.done(&format!("template {} is ready", template.name));
            Ok(template)
        }
        status => {
            steps.failed();
            let why = match &template.build_error {
                Some(error) => format!("{}: {}", error.step, error.detail),
                None => format!("it is {status}"),
            };
            Err(Failure::refused(format!("template {} was not built: {why}", template.name))
                .hint(format!("`wakeful template delete {}` frees the name for another try", template.name)))
        }
    }
}
