//! Everything that is said about a template beside what it is made of: by flags, or by `wakeful-template.toml` beside a
//! Dockerfile, over which flags go.

use clap::Args;
use wakeful_client::types::{Command, CreateTemplate, EgressRequest, IoLimits};
use wakeful_dockerfile::{EgressFile, IoFile, TemplateFile};
use wakeful_model::TemplateSource;

use crate::failure::Failure;
use crate::values::{EgressArgs, Span, key_value};

#[derive(Args, Debug, Default)]
pub(super) struct Settings {
    /// Another name that it answers to, as NAME:TAG (repeatable)
    #[arg(long, value_name = "TAG", help_heading = "About it")]
    tag: Vec<String>,
    /// What it is for
    #[arg(long, value_name = "TEXT", help_heading = "About it")]
    description: Option<String>,
    /// Size of sandboxes that name none [default: shared-cpu-1x]
    #[arg(short, long, value_name = "SIZE", visible_alias = "default-size", help_heading = "Its sandboxes")]
    size: Option<String>,
    /// Disk of sandboxes that name none, in MiB [default: 2048]
    #[arg(long, value_name = "MIB", alias = "disk-size-mb", help_heading = "Its sandboxes")]
    disk_mb: Option<u32>,
    /// A variable for all its sandboxes (repeatable)
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = key_value, help_heading = "Its sandboxes")]
    env: Vec<(String, String)>,
    /// Who runs commands [default: the source's user]
    #[arg(long, value_name = "NAME", help_heading = "Its sandboxes")]
    user: Option<String>,
    /// Where commands run [default: the source's]
    #[arg(long, value_name = "DIR", help_heading = "Its sandboxes")]
    workdir: Option<String>,
    /// A line for the shell that every sandbox starts with [default: the image's entry point]
    #[arg(long, value_name = "COMMAND", help_heading = "Its sandboxes")]
    start: Option<String>,
    /// Start nothing, whatever the image says
    #[arg(long, conflicts_with = "start", help_heading = "Its sandboxes")]
    no_start: bool,
    /// A line that ends with 0 once that works; a create waits for it [default: the image's health check]
    #[arg(long, value_name = "COMMAND", help_heading = "Its sandboxes")]
    ready: Option<String>,
    /// How long that may take, from 1s to 10m [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = Span::parse, help_heading = "Its sandboxes")]
    ready_timeout: Option<Span>,
    /// Start it once, and make sandboxes copies of one in which it is ready
    #[arg(long, help_heading = "Its sandboxes")]
    warm: bool,
    /// Runtime of sandboxes that name none: auto, qemu or gvisor [default: the server's]
    #[arg(long, value_name = "NAME", help_heading = "Its sandboxes")]
    runtime: Option<String>,
    #[command(flatten)]
    io: DiskLimits,
    #[command(flatten)]
    egress: EgressArgs,
}

/// What its sandboxes may ask of their disks.
#[derive(Args, Clone, Copy, Debug, Default)]
#[command(next_help_heading = "Disk limits, for reading and writing together")]
struct DiskLimits {
    /// Operations a second
    #[arg(long, value_name = "N")]
    ops_per_sec: Option<u64>,
    /// Operations a second, in a burst of a second
    #[arg(long, value_name = "N")]
    burst_ops: Option<u64>,
    /// Megabytes a second
    #[arg(long, value_name = "MB")]
    bandwidth_mbps: Option<u64>,
    /// Megabytes a second, in a burst of a second
    #[arg(long, value_name = "MB")]
    burst_mbps: Option<u64>,
}

impl Settings {
    /// The request: what the file says, and flags over it.
    pub(super) fn request(
        self,
        name: &str,
        source: TemplateSource,
        file: TemplateFile,
    ) -> Result<CreateTemplate, Failure> {
        let disk_mb = match (self.disk_mb, file.disk_mb) {
            (Some(flag), _) => Some(flag),
            (None, None) => None,
            (None, Some(mb)) => Some(
                u32::try_from(mb).map_err(|_| Failure::refused(format!("disk_mb = {mb} is more than any disk has")))?,
            ),
        };
        let mut env = file.env;
        env.extend(self.env);
        let io = self.io.over(file.io.unwrap_or_default());
        Ok(CreateTemplate {
            tags: if self.tag.is_empty() { file.tags } else { self.tag },
            description: self.description.or(file.description),
            default_size: self.size.or(file.default_size),
            disk_mb,
            env,
            io: (io != IoLimits::default()).then_some(io),
            egress: self.egress.request().or(file.egress.map(egress)),
            user: self.user.or(file.user),
            workdir: self.workdir.or(file.workdir),
            start: match (self.no_start, self.start) {
                (true, _) => Some(Command::Argv(Vec::new())),
                (false, Some(line)) => Some(Command::Shell(line)),
                (false, None) => file.start.map(command),
            },
            ready: self.ready.map(Command::Shell).or(file.ready.map(command)),
            ready_timeout: self.ready_timeout.map(Into::into).or(file.ready_timeout.map(Into::into)),
            warm: self.warm || file.warm,
            runtime: self.runtime.or(file.runtime),
            ..CreateTemplate::new(name, source)
        })
    }
}

impl DiskLimits {
    fn over(self, file: IoFile) -> IoLimits {
        IoLimits {
            ops_per_sec: self.ops_per_sec.or(file.ops_per_sec),
            burst_ops: self.burst_ops.or(file.ops_burst),
            bandwidth_mbps: self.bandwidth_mbps.or(file.bandwidth_mbps),
            burst_mbps: self.burst_mbps.or(file.bandwidth_burst_mb),
        }
    }
}

fn command(command: wakeful_dockerfile::Command) -> Command {
    match command {
        wakeful_dockerfile::Command::Shell(line) => Command::Shell(line),
        wakeful_dockerfile::Command::Argv(argv) => Command::Argv(argv),
    }
}

fn egress(file: EgressFile) -> EgressRequest {
    let EgressFile { mode, allow_cidrs, deny_cidrs, allow_ports, allow_domains } = file;
    EgressRequest { mode, allow_cidrs, deny_cidrs, allow_ports, allow_domains }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        settings: Settings,
    }

    fn request(flags: &[&str], file: &str) -> CreateTemplate {
        let line = Line::try_parse_from(["x"].iter().chain(flags)).unwrap_or_else(|error| panic!("{error}"));
        let source = TemplateSource::Debian { suite: "s".into(), packages: Vec::new() };
        let file = TemplateFile::parse(file).unwrap();
        line.settings.request("x", source, file).unwrap_or_else(|failure| panic!("{failure:?}"))
    }

    const FILE: &str = r#"
        tags = ["web"]
        description = "the shop"
        default_size = "shared-cpu-2x"
        disk_mb = 4096
        start = "serve"
        ready = ["curl", "-f", "localhost"]
        ready_timeout = "40s"
        warm = true
        user = "app"
        workdir = "/srv"
        runtime = "gvisor"
        [env]
        A = "file"
        B = "file"
        [egress]
        allow_domains = ["shop.invalid"]
        [io]
        ops_per_sec = 500
        ops_burst = 1000
        bandwidth_mbps = 10
        bandwidth_burst_mb = 20
    "#;

    #[test]
    fn the_file_alone() {
        let new = request(&[], FILE);
        let limits =
            IoLimits { ops_per_sec: Some(500), burst_ops: Some(1000), bandwidth_mbps: Some(10), burst_mbps: Some(20) };
        assert_eq!((new.tags.as_slice(), new.description.as_deref()), (&["web".to_owned()][..], Some("the shop")));
        assert_eq!(
            (new.default_size.as_deref(), new.disk_mb, new.io),
            (Some("shared-cpu-2x"), Some(4096), Some(limits))
        );
        assert_eq!((new.user.as_deref(), new.workdir.as_deref()), (Some("app"), Some("/srv")));
        assert_eq!(new.runtime.as_deref(), Some("gvisor"));
        assert_eq!(new.start, Some(Command::Shell("serve".into())));
        assert_eq!(new.ready, Some(Command::Argv(vec!["curl".into(), "-f".into(), "localhost".into()])));
        assert_eq!(new.ready_timeout, Some("40s".into()));
        assert!(new.warm);
        assert_eq!(new.egress.unwrap().allow_domains, ["shop.invalid"]);
        assert_eq!(new.env["A"], "file");
    }

    #[test]
    fn flags_go_over_it() {
        let flags = "--tag 1 --tag 2 --description mine --default-size shared-cpu-4x --disk-size-mb 8192 -e A=flag \
            --no-start --ready true --ready-timeout 5s --user me --workdir /here --ops-per-sec 700 \
            --egress-mode deny_all --runtime qemu";
        let new = request(&flags.split_whitespace().collect::<Vec<_>>(), FILE);
        assert_eq!((new.tags.len(), new.description.as_deref(), new.disk_mb), (2, Some("mine"), Some(8192)));
        assert_eq!(new.default_size.as_deref(), Some("shared-cpu-4x"));
        assert_eq!((new.env["A"].as_str(), new.env["B"].as_str()), ("flag", "file"));
        assert_eq!((new.start, new.ready), (Some(Command::Argv(Vec::new())), Some(Command::Shell("true".into()))));
        assert_eq!(new.ready_timeout, Some("5000ms".into()));
        assert_eq!((new.user.as_deref(), new.workdir.as_deref()), (Some("me"), Some("/here")));
        assert_eq!(new.runtime.as_deref(), Some("qemu"));
        assert_eq!(new.io.map(|io| (io.ops_per_sec, io.burst_ops)), Some((Some(700), Some(1000))));
        let egress = new.egress.unwrap();
        assert_eq!((egress.mode.as_deref(), egress.allow_domains.len()), (Some("deny_all"), 0));
    }

    #[test]
    fn nothing_is_said_that_nobody_said() {
        let source = TemplateSource::Debian { suite: "s".into(), packages: Vec::new() };
        assert_eq!(request(&[], ""), CreateTemplate::new("x", source));
    }
}
