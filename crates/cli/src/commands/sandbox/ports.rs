//! `wakeful sandbox port`, `ports` and `url`.

use clap::Args;
use wakeful_client::Client;
use wakeful_client::types::Port;

use crate::failure::Failure;
use crate::{output, table};

/// Show a port's preview, or make it public or private
#[derive(Args, Debug)]
#[command(after_help = "\
A private preview needs a key, or a session: `wakeful sandbox url ID PORT --session`.
A public one is open to everybody who reaches the server.

Examples:
  wakeful sandbox port sbx_k3v7q2m5x6a4b2c7d5ef 3000
  wakeful sandbox port sbx_k3v7q2m5x6a4b2c7d5ef 3000 --public")]
pub(crate) struct One {
    /// The sandbox
    id: String,
    /// The port inside
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Let everybody see it
    #[arg(long)]
    public: bool,
    /// Let only those see it who may use the sandbox
    #[arg(long, conflicts_with = "public")]
    private: bool,
}

fn word(port: &Port) -> &'static str {
    if port.public { "public" } else { "private" }
}

impl One {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        let port = if self.public || self.private {
            client.put_port(&self.id, self.port, self.public).await?
        } else {
            client.sandbox_port(&self.id, self.port).await?
        };
        if json {
            output::json(&port)?;
        } else {
            output::line(&format!("{} {} {}", port.port, word(&port), port.url))?;
        }
        Ok(0)
    }
}

/// List the ports that something was said about; all others are private
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  wakeful sandbox ports sbx_k3v7q2m5x6a4b2c7d5ef")]
pub(crate) struct All {
    /// The sandbox
    id: String,
}

impl All {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        let ports = client.ports(&self.id).await?.ports;
        if json {
            output::json(&ports)?;
        } else {
            let rows = ports.iter().map(|port| vec![port.port.to_string(), word(port).to_owned(), port.url.clone()]);
            output::line(&table::of(&["PORT", "ACCESS", "URL"], rows))?;
        }
        Ok(0)
    }
}

/// Print where a port's preview is
#[derive(Args, Debug)]
#[command(after_help = "\
With --session the address lets a browser in to a private port: once, within five minutes,
for twelve hours.

Examples:
  curl $(wakeful sandbox url sbx_k3v7q2m5x6a4b2c7d5ef 3000)
  xdg-open $(wakeful sandbox url sbx_k3v7q2m5x6a4b2c7d5ef 3000 --session)")]
pub(crate) struct Address {
    /// The sandbox
    id: String,
    /// The port inside
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// With a ticket for a browser
    #[arg(long)]
    session: bool,
}

impl Address {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        if self.session {
            let session = client.port_session(&self.id, self.port).await?;
            if json { output::json(&session)? } else { output::line(&session.url)? }
        } else {
            let port = client.sandbox_port(&self.id, self.port).await?;
            if json { output::json(&port)? } else { output::line(&port.url)? }
        }
        Ok(0)
    }
}
