//! `wakeful tenant …`.

mod create;
mod delete;
mod list;
mod set;

use clap::{Args, Subcommand};
use wakeful_client::types::LimitsRequest;

use crate::args::Global;
use crate::failure::Failure;
use crate::interrupt::or_interrupt;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Create(create::Create),
    #[command(visible_alias = "ls")]
    List(list::List),
    Set(set::Set),
    #[command(visible_alias = "rm")]
    Delete(delete::Delete),
}

impl Command {
    pub(crate) async fn run(self, global: &Global) -> Result<u8, Failure> {
        match self {
            Self::Create(args) => or_interrupt(args.run(global)).await,
            Self::List(args) => or_interrupt(args.run(global)).await,
            Self::Set(args) => or_interrupt(args.run(global)).await,
            Self::Delete(args) => {
                args.confirm()?;
                or_interrupt(args.run(global)).await
            }
        }
    }
}

/// How much a tenant may have.
#[derive(Args, Clone, Copy, Debug, Default)]
struct LimitArgs {
    /// Most sandboxes that are not destroyed, or none
    #[arg(long, value_name = "N", value_parser = limit)]
    sandboxes: Option<Limit>,
    /// Most memory of those that run, in MiB, or none
    #[arg(long, value_name = "N", value_parser = limit)]
    memory_mb: Option<Limit>,
    /// Most disk of all that are not destroyed, in MiB, or none
    #[arg(long, value_name = "N", value_parser = limit)]
    disk_mb: Option<Limit>,
}

/// A number, or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit(Option<u64>);

fn limit(text: &str) -> Result<Limit, String> {
    match text {
        "none" => Ok(Limit(None)),
        text => text.parse().map(|number| Limit(Some(number))).map_err(|_| "it is a whole number, or none".into()),
    }
}

impl From<LimitArgs> for LimitsRequest {
    fn from(args: LimitArgs) -> Self {
        let said = |limit: Option<Limit>| limit.map(|limit| limit.0);
        Self { sandboxes: said(args.sandboxes), memory_mb: said(args.memory_mb), disk_mb: said(args.disk_mb) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_numbers_or_none() {
        assert_eq!(limit("0"), Ok(Limit(Some(0))));
        assert_eq!(limit("none"), Ok(Limit(None)));
        for bad in ["", "-1", "1G", "None", "1.5"] {
            assert!(limit(bad).is_err(), "{bad}");
        }
        let args = LimitArgs { sandboxes: Some(Limit(None)), memory_mb: Some(Limit(Some(512))), disk_mb: None };
        let wanted = LimitsRequest { sandboxes: Some(None), memory_mb: Some(Some(512)), disk_mb: None };
        assert_eq!(LimitsRequest::from(args), wanted);
    }
}
