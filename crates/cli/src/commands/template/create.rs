//! `wakeful template create`.

use clap::Args;
use wakeful_client::Client;

use super::follow::{follow, or_leave};
use super::settings::Settings;
use super::source::SourceArgs;
use crate::failure::Failure;
use crate::interrupt::or_interrupt;
use crate::output;
use crate::progress::Verbose;

/// Build a template from an image, a Dockerfile, packages, files or a sandbox
#[derive(Args, Debug)]
#[command(override_usage = "wakeful template create [NAME] SOURCE [OPTIONS]")]
#[command(after_help = "\
The template comes with what its runtime begins from: a golden snapshot where sandboxes are
clones, a tree of files where they are not. The build is the server's: it goes on if this command
is stopped, and `template cancel` ends it. What is sent of a Dockerfile's directory is what
.dockerignore leaves of it. A wakeful-template.toml beside the
Dockerfile may say all that the flags say, and the name; flags go over it.

Examples:
  wakeful template create py --image python:3.12 --size shared-cpu-2x
  wakeful template create shop --dockerfile . --build-arg VERSION=2 --ready 'curl -f localhost:80'
  wakeful template create shop --dockerfile docker/web --context . --target runtime
  wakeful template create tools --debian bookworm --packages git,make,gcc,libc6-dev
  docker save app | wakeful template create app --archive -
  wakeful template create mine --rootfs ./rootfs --user app --workdir /srv
  wakeful template create prepared --from-sandbox sbx_k3v7q2m5x6a4b2c7d5ef --no-wait")]
pub(crate) struct Create {
    /// Its name; wakeful-template.toml may give it
    name: Option<String>,
    /// Print its id and do not wait for the build's end
    #[arg(long)]
    no_wait: bool,
    /// Show the steps of the build, and what they say only if one fails
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    settings: Settings,
}

impl Create {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        // Files here are looked at before anything is sent.
        let (source, file) = self.source.look()?;
        let name = self.name.or_else(|| file.name.clone()).ok_or_else(|| {
            Failure::usage("the template needs a name")
                .hint("give it before the flags, or as `name` in wakeful-template.toml beside the Dockerfile")
        })?;
        let settings = self.settings;
        let begun = or_interrupt(async {
            let new = settings.request(&name, source.send(client).await?, file)?;
            Ok(client.create_template(&new).await?)
        });
        let begun = begun.await?;
        let template = if self.no_wait {
            begun
        } else {
            let verbose = if self.quiet { Verbose::No } else { Verbose::Yes };
            or_leave(&begun.name, follow(client, begun.id.as_str(), verbose)).await?
        };
        if json {
            output::json(&template)?;
        } else if self.no_wait {
            output::line(template.id.as_str())?;
        } else {
            output::line(&template.name)?;
        }
        Ok(0)
    }
}
