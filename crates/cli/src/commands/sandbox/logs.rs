//! `wakeful sandbox logs`.

use clap::Args;
use futures_util::StreamExt;
use wakeful_client::Client;
use wakeful_client::types::Frame;

use crate::failure::Failure;
use crate::follow::{Follow, OnSleep, Taker};
use crate::output;
use crate::sink::Sink;

/// Show what a process has written
#[derive(Args, Debug)]
#[command(after_help = "\
The last MiB of a process is kept, until an hour after its end. -f stays until it ends; a sandbox
that goes to sleep is not woken for it, but waited for.
With --json: the frames, numbered by seq; with -f one a line.

Examples:
  wakeful sandbox logs sbx_k3v7q2m5x6a4b2c7d5ef 214
  wakeful sandbox logs -f sbx_k3v7q2m5x6a4b2c7d5ef 214
  wakeful sandbox logs sbx_k3v7q2m5x6a4b2c7d5ef 214 --from 1000 --json")]
pub(crate) struct Logs {
    /// The sandbox
    id: String,
    /// The process
    pid: u32,
    /// Stay until it ends
    #[arg(short, long)]
    follow: bool,
    /// Begin with this frame
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    from: u64,
}

/// Frames as lines.
struct Lines;

impl Taker for Lines {
    async fn take(&mut self, frame: &Frame) -> Result<(), Failure> {
        match frame {
            Frame::Keepalive | Frame::Unknown => Ok(()),
            frame => Ok(output::json_line(frame)?),
        }
    }
}

impl Logs {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        if self.follow {
            let follow = Follow::attach(client, &self.id, self.pid, self.from, OnSleep::Wait);
            if json {
                follow.to_end(None, &mut Lines).await?;
            } else {
                let mut sink = Sink::through();
                follow.to_end(None, &mut sink).await?;
                finish(sink).await?;
            }
            return Ok(0);
        }
        let mut frames = client.process_output(&self.id, self.pid, self.from, false).await?;
        let mut all = Vec::new();
        let mut sink = Sink::through();
        while let Some(frame) = frames.next().await {
            let frame = frame?;
            if let Frame::Error { code, detail } = &frame {
                return Err(Failure::from_frame(code, detail));
            }
            if json && !matches!(frame, Frame::Keepalive | Frame::Unknown) {
                all.push(frame);
            } else {
                sink.take(&frame).await?;
            }
        }
        if json {
            output::json(&all)?;
        }
        finish(sink).await?;
        Ok(0)
    }
}

async fn finish(sink: Sink) -> Result<(), Failure> {
    match sink {
        Sink::Through(through) => through.finish().await,
        Sink::Kept(_) => Ok(()),
    }
}
