//! `wakeful sandbox events`.

use clap::Args;
use futures_util::StreamExt;
use wakeful_client::Client;
use wakeful_client::types::Event;

use crate::failure::Failure;
use crate::output;

/// Events of one page.
const PAGE: u32 = 1000;

/// Show what happened to a sandbox, and why
#[derive(Args, Debug)]
#[command(after_help = "\
Looking wakes nobody. With --follow it ends when the sandbox is destroyed.

Examples:
  wakeful sandbox events sbx_k3v7q2m5x6a4b2c7d5ef
  wakeful sandbox events sbx_k3v7q2m5x6a4b2c7d5ef -f --json")]
pub(crate) struct Events {
    /// The sandbox
    id: String,
    /// Stay and show events as they happen
    #[arg(short, long)]
    follow: bool,
    /// Only events with a higher number
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    after: u64,
}

impl Events {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        if self.follow {
            let mut events = client.follow_events(&self.id, self.after).await?;
            while let Some(event) = events.next().await {
                let event = event?;
                if json { output::json_line(&event)? } else { output::line(&describe(&event))? }
            }
            return Ok(0);
        }
        let (mut all, mut after) = (Vec::new(), self.after);
        loop {
            let page = client.events(&self.id, after, PAGE).await?;
            let more = page.events.len() >= PAGE as usize && page.next_after > after;
            after = page.next_after;
            all.extend(page.events);
            if !more {
                break;
            }
        }
        if json {
            output::json(&all)?;
        } else {
            for event in &all {
                output::line(&describe(event))?;
            }
        }
        Ok(0)
    }
}

/// One line: number, instant, what, why, and what else is known.
fn describe(event: &Event) -> String {
    let mut text = format!("{:<4} {}  {:<19} {}", event.seq, event.at, event.kind.to_string(), event.cause);
    if let Some(took) = event.duration_ms {
        text.push_str(&format!("  {took} ms"));
    }
    if let Some(message) = event.detail.get("message").and_then(|message| message.as_str()) {
        text.push_str(&format!("  {message}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let event = |more: &str| {
            let text = format!(
                "{{\"seq\":7,\"at\":\"2026-04-05T14:30:00.031Z\",\"type\":\"suspended\",\"cause\":\"idle\",\"actor\":null,\
                 \"runtime_generation\":2,{more}}}"
            );
            describe(&serde_json::from_str(&text).unwrap())
        };
        insta::assert_snapshot!(event("\"duration_ms\":31,\"detail\":{}"), @"7    2026-04-05T14:30:00.031Z  suspended           idle  31 ms");
        insta::assert_snapshot!(event("\"duration_ms\":null,\"detail\":{\"message\":\"disk full\"}"), @"7    2026-04-05T14:30:00.031Z  suspended           idle  disk full");
    }
}
