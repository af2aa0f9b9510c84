//! What a daemon holds of an engine.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;
use wakeful_driver::{ByteStream, Engine, Error, Exit, IoLimits};

use crate::agent;
use crate::host::{Host, Point};
use crate::process::Process;
use crate::snapshot::{self, Saved};

/// What the pipe to an agent holds.
const PIPE: usize = 64 * 1024;
/// How long the last session may take to end, once its line is cut.
const SESSION_ENDS: Duration = Duration::from_secs(5);

pub(crate) struct SimEngine {
    pub(crate) host: Arc<Host>,
    pub(crate) process: Arc<Process>,
    pub(crate) key: String,
}

impl SimEngine {
    /// Does it unless the engine ends first.
    async fn while_alive<T>(
        &self,
        doing: &'static str,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        tokio::select! {
            biased;
            exit = self.process.ended() => Err(Error::Ended { doing, output: exit.output }),
            done = work => done,
        }
    }

    async fn sessions_over(&self) -> Result<(), Error> {
        let mut sessions = self.process.sessions.subscribe();
        let over = tokio::time::timeout(SESSION_ENDS, sessions.wait_for(|n| *n == 0)).await;
        match over {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::Late { doing: "close the last session", after: SESSION_ENDS }),
        }
    }
}

#[async_trait]
impl Engine for SimEngine {
    fn pid(&self) -> u32 {
        self.process.pid
    }

    async fn connect(&self) -> Result<Box<dyn ByteStream>, Error> {
        let opened = async {
            self.host.pass(Point::Connect, "connect").await?;
            self.sessions_over().await?;
            let (ours, theirs) = tokio::io::duplex(PIPE);
            let cut = CancellationToken::new();
            let session = agent::serve(Arc::clone(&self.host), Arc::clone(&self.process), theirs, cut.clone());
            self.host.runtime().spawn(session);
            Ok(Box::new(agent::Line::new(ours, cut)) as Box<dyn ByteStream>)
        };
        self.while_alive("connect", opened).await
    }

    async fn disconnected(&self) -> Result<(), Error> {
        self.sessions_over().await
    }

    async fn limit_io(&self, limits: IoLimits) -> Result<(), Error> {
        let doing = "limit what it asks of its disk";
        self.while_alive(doing, async {
            self.host.pass(Point::Limit, doing).await?;
            self.process.limit(limits);
            Ok(())
        })
        .await
    }

    fn disk_mb(&self) -> u32 {
        self.process.disk().told_mb
    }

    async fn grow_disk(&self, disk_mb: u32) -> Result<(), Error> {
        let doing = "grow its disk";
        self.while_alive(doing, async {
            self.host.pass(Point::Grow, doing).await?;
            if disk_mb < self.process.disk().told_mb {
                self.host.wrong(format!("the disk of {} was to shrink", self.process.name));
            }
            self.process.tell_disk(disk_mb);
            Ok(())
        })
        .await
    }

    async fn resume(&self) -> Result<(), Error> {
        let doing = "run";
        self.while_alive(doing, async {
            if self.host.pass(Point::Resume, doing).await.is_err() {
                let exit = Exit { status: Some("exit status: 1".into()), output: String::new(), out_of_memory: false };
                self.process.end(exit);
                return Err(Error::Ended { doing, output: String::new() });
            }
            self.process.run();
            Ok(())
        })
        .await
    }

    async fn pause(&self) -> Result<(), Error> {
        self.while_alive("stop", async {
            self.process.stop();
            Ok(())
        })
        .await
    }

    async fn save(&self, into: &Path) -> Result<wakeful_driver::Image, Error> {
        let doing = "save its state";
        self.while_alive(doing, async {
            self.host.pass(Point::Save, doing).await?;
            if !self.process.is_stopped() {
                self.host.wrong(format!("{} was saved while it ran", self.process.name));
                return Err(Error::Refused { doing, answer: "it is running".into() });
            }
            let disk_mb = self.process.disk().told_mb;
            let saved = Saved { number: self.host.number(), memory: self.process.memory(), disk_mb };
            let image = snapshot::write(into, &self.key, self.process.base.clone(), &saved)?;
            self.process.saved(saved.number);
            Ok(image)
        })
        .await
    }

    async fn exited(&self) -> Exit {
        self.process.ended().await
    }

    async fn kill(&self) -> Result<(), Error> {
        self.host.pass(Point::Kill, "kill").await?;
        self.process.end(Exit { status: Some("signal: 9".into()), output: String::new(), out_of_memory: false });
        Ok(())
    }
}
