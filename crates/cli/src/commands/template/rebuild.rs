//! `wakeful template rebuild`.

use std::path::PathBuf;

use clap::Args;
use wakeful_client::Client;
use wakeful_client::types::{RebuildTemplate, Template};
use wakeful_dockerfile::Options;
use wakeful_model::TemplateSource;

use super::content::Content;
use super::context::BuildContext;
use super::follow::{follow, or_leave};
use crate::failure::Failure;
use crate::interrupt::or_interrupt;
use crate::output;
use crate::progress::Verbose;
use crate::table;

/// Build a template again, and leave its sandboxes as they are
#[derive(Args, Debug)]
#[command(after_help = "\
What was pulled or sent for the last build is what the next one begins with: an image's tag is
looked up again, and a Dockerfile's directory is sent anew with --context. Sandboxes keep what they
were made of; new ones get the old until the new is ready, also if the build fails. What flags and
wakeful-template.toml said when it was created stays as it is.

Examples:
  wakeful template rebuild py
  wakeful template rebuild shop --context .
  wakeful template rebuild app --archive app.tar --no-wait")]
pub(crate) struct Rebuild {
    /// Its name
    name: String,
    /// What its Dockerfile copies from, with the Dockerfile
    #[arg(long, value_name = "DIR")]
    context: Option<PathBuf>,
    /// The Dockerfile, if it is not in that directory where it was before
    #[arg(long, value_name = "FILE", requires = "context")]
    dockerfile: Option<PathBuf>,
    /// Another archive with the image; - for standard input
    #[arg(long, value_name = "PATH", conflicts_with = "context")]
    archive: Option<PathBuf>,
    /// Another root file system: a directory or a tar; - for standard input
    #[arg(long, value_name = "PATH", conflicts_with_all = ["context", "archive"])]
    rootfs: Option<PathBuf>,
    /// Print its id and do not wait for the build's end
    #[arg(long)]
    no_wait: bool,
    /// Show the steps of the build, and what they say only if one fails
    #[arg(short, long)]
    quiet: bool,
}

impl Rebuild {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        let begun = or_interrupt(async {
            let mut rebuild = RebuildTemplate::default();
            let mut name = self.name.clone();
            if self.context.is_some() || self.archive.is_some() || self.rootfs.is_some() {
                let template = client.template(&self.name).await?;
                rebuild.upload = Some(self.content(&template)?.upload(client).await?.id);
                // By id from here on: that is what this was sent for.
                name = template.id.to_string();
            }
            Ok(client.rebuild_template(&name, &rebuild).await?)
        });
        let begun: Template = begun.await?;
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

    /// What is sent for it. The server would take anything, and fail later.
    fn content(&self, template: &Template) -> Result<Content, Failure> {
        match (&template.source, &self.context, &self.archive, &self.rootfs) {
            (TemplateSource::Dockerfile { dockerfile, target, build_args, .. }, Some(dir), _, _) => {
                let file = self.dockerfile.clone().unwrap_or_else(|| dir.join(dockerfile));
                let options = Options { build_args: build_args.clone(), target: target.clone() };
                let context = BuildContext::open(dir, &file, &options)?.called(dockerfile);
                Ok(Content::Context(Box::new(context)))
            }
            (TemplateSource::Image { upload: Some(_), .. }, _, Some(path), _)
            | (TemplateSource::Rootfs { .. }, _, _, Some(path)) => Content::at(path),
            (source, ..) => {
                let source = table::source(source);
                Err(Failure::refused(format!("template {} is made of: {source}", template.name))
                    .hint("--context belongs to a Dockerfile, --archive to an archive, --rootfs to a root file system"))
            }
        }
    }
}
