//! `wakeful sandbox create`.

use clap::Args;
use wakeful_client::Client;
use wakeful_client::types::CreateSandbox;

use crate::failure::Failure;
use crate::output;
use crate::values::{EgressArgs, IoArgs, Span, key_value};

/// What a new sandbox is made of; `run` takes the same.
#[derive(Args, Clone, Debug)]
pub(crate) struct Machine {
    /// Template name or id, or the id of a snapshot to go on from
    #[arg(short, long, value_name = "NAME")]
    pub(crate) template: String,
    /// Size preset, such as shared-cpu-1x or performance-2x [default: the template's]
    #[arg(short, long, value_name = "SIZE")]
    size: Option<String>,
    /// A variable for all its commands (repeatable)
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = key_value)]
    env: Vec<(String, String)>,
    /// A label to find it by (repeatable)
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    metadata: Vec<(String, String)>,
    /// The engine [default: the daemon's choice]
    #[arg(long, value_name = "NAME")]
    runtime: Option<String>,
}

impl Machine {
    pub(crate) fn request(self, io: &IoArgs, egress: &EgressArgs) -> CreateSandbox {
        CreateSandbox {
            egress: egress.request(),
            template: self.template,
            size: self.size,
            disk_mb: io.disk_mb,
            io: io.request(),
            env: self.env.into_iter().collect(),
            metadata: self.metadata.into_iter().collect(),
            runtime: self.runtime,
            ..CreateSandbox::default()
        }
    }
}

/// Create a sandbox and print its id
#[derive(Args, Debug)]
#[command(after_help = "\
The sandbox is running and usable when its id is printed. An ephemeral one (the default) is
destroyed when its timeout is over. A persistent one sleeps when it is idle, and wakes on the
next use with its files, memory and processes. From a snapshot (-t snp_...) it goes on where that
was taken, in the same size, as a sandbox of its own.

Examples:
  wakeful sandbox create --template python --timeout 10m
  wakeful sandbox create -t python --persistent --idle-timeout 10m -e OPENAI_API_KEY=sk-...
  wakeful sandbox create -t base -s performance-1x --egress-allow-cidr 192.0.2.0/24
  wakeful sandbox create -t base --disk-mb 8192 --bandwidth-mbps 50 --burst-mbps 200
  wakeful sandbox create -t snp_k3v7q2m5x6a4b2c7d5ef
  id=$(wakeful sandbox create -t python)")]
pub(crate) struct Create {
    #[command(flatten)]
    machine: Machine,
    /// Sleep when idle instead of ending
    #[arg(long)]
    persistent: bool,
    /// Destroyed after this time (ephemeral) [default: 5m, at most 24h]
    #[arg(long, value_name = "DURATION", value_parser = Span::parse, conflicts_with = "persistent")]
    timeout: Option<Span>,
    /// Sleeps after so much idleness (persistent) [default: 10m]
    #[arg(long, value_name = "DURATION", value_parser = Span::parse, requires = "persistent")]
    idle_timeout: Option<Span>,
    /// Destroyed after this time, whatever happens
    #[arg(long, value_name = "DURATION", value_parser = Span::parse)]
    hard_ttl: Option<Span>,
    /// Do not wake it on access, only by `wake`
    #[arg(long)]
    no_auto_resume: bool,
    #[command(flatten)]
    io: IoArgs,
    #[command(flatten)]
    egress: EgressArgs,
}

impl Create {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        let request = CreateSandbox {
            mode: self.persistent.then(|| "persistent".to_owned()),
            timeout: self.timeout.map(Into::into),
            idle_timeout: self.idle_timeout.map(Into::into),
            hard_ttl: self.hard_ttl.map(Into::into),
            auto_resume: self.no_auto_resume.then_some(false),
            ..self.machine.request(&self.io, &self.egress)
        };
        let sandbox = client.create_sandbox(&request).await?;
        if json {
            output::json(&sandbox)?;
        } else {
            output::line(sandbox.id.as_str())?;
        }
        Ok(0)
    }
}
