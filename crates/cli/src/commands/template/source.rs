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
#[command(next_help_heading = "What it is made of (one of these)")]
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
    #[arg(long, value_name = "TAG", help_heading = "More about that")]
    image_tag: Option<String>,
    /// What the Dockerfile copies from [default: its directory]
    #[arg(long, value_name = "DIR", help_heading = "More about that")]
    context: Option<PathBuf>,
    /// The stage of the Dockerfile that is wanted [default: the last]
    #[arg(long, value_name = "STAGE", help_heading = "More about that")]
    target: Option<String>,
    /// The value of an ARG; without =VALUE that of the variable here (repeatable)
    #[arg(long, value_name = "KEY=VALUE", value_parser = build_arg, help_heading = "More about that")]
    build_arg: Vec<(String, String)>,
    /// Debian packages, separated by commas (repeatable)
    #[arg(long, value_name = "PACKAGE", value_delimiter = ',', help_heading = "More about that")]
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
    /// A flag that says more about a source than the one that was named has.
    fn misplaced(&self) -> Option<(&'static str, &'static str)> {
        // clap has `requires`, but forgets about it where the source that is required excludes the one that was named.
        let of_dockerfile = [
            ("--context", self.context.is_some()),
            ("--target", self.target.is_some()),
            ("--build-arg", !self.build_arg.is_empty()),
        ];
        let said = of_dockerfile.into_iter().find(|(_, said)| *said).map(|(flag, _)| flag);
        match said {
            Some(flag) if self.dockerfile.is_none() => Some((flag, "--dockerfile")),
            _ if self.image_tag.is_some() && self.archive.is_none() => Some(("--image-tag", "--archive")),
            _ if !self.packages.is_empty() && self.debian.is_none() => Some(("--packages", "--debian")),
            _ => None,
        }
    }

    /// Looks at what is named; what lies beside a Dockerfile is told too.
    pub(super) fn look(self) -> Result<(Source, TemplateFile), Failure> {
        if let Some((flag, of)) = self.misplaced() {
            return Err(Failure::usage(format!("{flag} belongs to {of}")));
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        source: SourceArgs,
    }

    fn look(flags: &[&str]) -> Result<(Source, TemplateFile), String> {
        let line = Line::try_parse_from(["x"].iter().chain(flags)).map_err(|error| error.to_string())?;
        line.source.look().map_err(|failure| format!("{failure:?}"))
    }

    fn named(flags: &[&str]) -> TemplateSource {
        match look(flags) {
            Ok((Source::Named(source), _)) => source,
            Ok(_) => panic!("{flags:?} needs an upload"),
            Err(error) => panic!("{flags:?}: {error}"),
        }
    }

    #[test]
    fn what_needs_no_upload() {
        let reference = Some("python:3.12".to_owned());
        assert_eq!(named(&["--image", "python:3.12"]), TemplateSource::Image { reference, upload: None });
        let packages = vec!["git".to_owned(), "make".to_owned(), "gcc".to_owned()];
        assert_eq!(
            named(&["--debian", "bookworm", "--packages", "git,make,", "--packages", "gcc"]),
            TemplateSource::Debian { suite: "bookworm".into(), packages }
        );
        let snapshot_id = Some("snp_k3v7q2m5x6a4b2c7d5ef".parse().unwrap());
        assert_eq!(
            named(&["--from-snapshot", "k3v7q2m5x6a4b2c7d5ef"]),
            TemplateSource::Sandbox { sandbox_id: None, snapshot_id }
        );
    }

    #[test]
    fn a_dockerfile_with_all_its_flags() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("docker");
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("web"), "ARG A\nFROM scratch AS one\nFROM scratch AS two\n").unwrap();
        std::fs::write(path.join("wakeful-template.toml"), "target = \"two\"\n[build_args]\nA = \"1\"\nB = \"1\"\n")
            .unwrap();
        let (web, top) = (path.join("web"), dir.path());
        let flags = ["--dockerfile", web.to_str().unwrap(), "--context", top.to_str().unwrap(), "--build-arg", "A=2=3"];
        let Ok((Source::Dockerfile { context, target, build_args }, _)) = look(&flags) else { panic!("of one") };
        assert_eq!((context.dockerfile(), target.as_deref()), ("docker/web", Some("two")));
        assert_eq!((build_args["A"].as_str(), build_args["B"].as_str()), ("2=3", "1"));
        let Ok((Source::Dockerfile { context, target, .. }, _)) =
            look(&["--dockerfile", web.to_str().unwrap(), "--target", "one"])
        else {
            panic!("of one")
        };
        assert_eq!((context.dockerfile(), target.as_deref()), ("web", Some("one")));
    }

    #[test]
    fn one_of_them() {
        assert!(look(&[]).is_err());
        assert!(look(&["--image", "a", "--debian", "b"]).is_err());
        for (flags, of) in [
            (&["--image", "a", "--packages", "b"][..], "--debian"),
            (&["--image", "a", "--image-tag", "b"], "--archive"),
            (&["--debian", "a", "--target", "b"], "--dockerfile"),
            (&["--rootfs", "/", "--context", "b"], "--dockerfile"),
        ] {
            let error = look(flags).map(drop).expect_err("they do not belong together");
            assert!(error.contains(&format!("belongs to {of}")), "{flags:?}: {error}");
        }
    }
}
