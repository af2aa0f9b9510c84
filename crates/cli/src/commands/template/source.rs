//! What a template is made of, as the command line names it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{ArgGroup, Args};
use wakeful_client::Client;
use wakeful_dockerfile::{Options, TemplateFile};
use wakeful_model::{SandboxId, SnapshotId, TemplateSource, UploadId};

use super::content::Content;
use super::context::{BuildContext, Named};
use crate::failure::Failure;
use crate::values::key_value;

#[derive(Args, Debug)]
#[command(group(ArgGroup::new("source").required(true).args([
    "image", "archive", "dockerfile", "debian", "rootfs", "from_sandbox", "from_snapshot",
])))]
#[command(next_help_heading = "What it is made of: one of these")]
pub(super) struct SourceArgs {
    /// An image of a registry, such as python:3.12
    #[arg(long, value_name = "REFERENCE")]
    image: Option<String>,
    /// An image of an archive: `docker save`, an OCI layout, packed or a directory; - for standard input
    #[arg(long, value_name = "PATH")]
    archive: Option<PathBuf>,
    /// A Dockerfile, or a directory that has one
    #[arg(long, value_name = "PATH")]
    dockerfile: Option<PathBuf>,
    /// A Debian release
    #[arg(long, value_name = "RELEASE")]
    debian: Option<String>,
    /// A root file system: a directory or a tar; - for standard input
    #[arg(long, value_name = "PATH")]
    rootfs: Option<PathBuf>,
    /// The disk of a sandbox, as it is now
    #[arg(long, value_name = "ID", value_parser = id::<SandboxId>)]
    from_sandbox: Option<SandboxId>,
    /// The disk of a snapshot
    #[arg(long, value_name = "ID", value_parser = id::<SnapshotId>)]
    from_snapshot: Option<SnapshotId>,
    /// Which image of the archive, if it has several
    #[arg(long, value_name = "TAG", requires = "archive", help_heading = "More about that")]
    image_tag: Option<String>,
    /// What the Dockerfile copies from [default: its directory]
    #[arg(long, value_name = "DIR", requires = "dockerfile", help_heading = "More about that")]
    context: Option<PathBuf>,
    /// The stage of the Dockerfile that is wanted [default: the last]
    #[arg(long, value_name = "STAGE", requires = "dockerfile", help_heading = "More about that")]
    target: Option<String>,
    /// The value of an ARG; without =VALUE that of the variable here (repeatable)
    #[arg(long, value_name = "KEY=VALUE", value_parser = build_arg, requires = "dockerfile", help_heading = "More about that")]
    build_arg: Vec<(String, String)>,
    /// Debian packages, separated by commas (repeatable)
    #[arg(long, value_name = "PACKAGE", value_delimiter = ',', requires = "debian", help_heading = "More about that")]
    packages: Vec<String>,
}

fn id<I: std::str::FromStr<Err = wakeful_model::InvalidId>>(text: &str) -> Result<I, String> {
    text.parse().map_err(|error: wakeful_model::InvalidId| error.to_string())
}

/// As Docker takes it.
fn build_arg(text: &str) -> Result<(String, String), String> {
    if text.contains('=') {
        return key_value(text);
    }
    match std::env::var(text) {
        Ok(value) => Ok((text.to_owned(), value)),
        Err(_) => Err(format!("it must look like KEY=VALUE, or {text:?} must be set here")),
    }
}

/// What the server is told, once it has what it needs.
pub(super) enum Source {
    /// It needs nothing from here.
    Named(TemplateSource),
    /// The image of an archive.
    Archive { content: Content, reference: Option<String> },
    /// A Dockerfile.
    Dockerfile { context: Box<BuildContext>, target: Option<String>, build_args: BTreeMap<String, String> },
    /// A root file system.
    Rootfs(Content),
}

impl SourceArgs {
    /// Looks at what is named; what lies beside a Dockerfile is told too.
    pub(super) fn look(self) -> Result<(Source, TemplateFile), Failure> {
        let plain = |source| Ok((source, TemplateFile::default()));
        let Self {
            image,
            archive,
            dockerfile,
            debian,
            rootfs,
            from_sandbox,
            from_snapshot,
            image_tag,
            context,
            target,
            build_arg,
            packages,
        } = self;
        if let Some(path) = archive {
            return plain(Source::Archive { content: Content::at(&path)?, reference: image_tag });
        }
        if let Some(path) = rootfs {
            return plain(Source::Rootfs(Content::at(&path)?));
        }
        if let Some(path) = dockerfile {
            let named = Named::find(&path)?;
            let target = target.or_else(|| named.settings.target.clone());
            let mut build_args = named.settings.build_args.clone();
            build_args.extend(build_arg);
            let options = Options { build_args: build_args.clone(), target: target.clone() };
            let dir = context.unwrap_or(named.dir);
            let context = Box::new(BuildContext::open(&dir, &named.dockerfile, &options)?);
            return Ok((Source::Dockerfile { context, target, build_args }, named.settings));
        }
        plain(Source::Named(match (image, debian) {
            (Some(reference), _) => TemplateSource::Image { reference: Some(reference), upload: None },
            (None, Some(suite)) => {
                let packages = packages.into_iter().filter(|name| !name.is_empty()).collect();
                TemplateSource::Debian { suite, packages }
            }
            (None, None) => TemplateSource::Sandbox { sandbox_id: from_sandbox, snapshot_id: from_snapshot },
        }))
    }
}

impl Source {
    /// Sends what the server needs.
    pub(super) async fn send(self, client: &Client) -> Result<TemplateSource, Failure> {
        Ok(match self {
            Self::Named(source) => source,
            Self::Archive { content, reference } => {
                TemplateSource::Image { reference, upload: Some(sent(content, client).await?) }
            }
            Self::Dockerfile { context, target, build_args } => {
                let dockerfile = context.dockerfile().to_owned();
                let upload = sent(Content::Context(context), client).await?;
                TemplateSource::Dockerfile { upload, dockerfile, target, build_args }
            }
            Self::Rootfs(content) => TemplateSource::Rootfs { upload: sent(content, client).await? },
        })
    }
}

async fn sent(content: Content, client: &Client) -> Result<UploadId, Failure> {
    Ok(content.upload(client).await?.id)
}
