//! The story of a sandbox, read and followed. Reading it is no use of the sandbox and wakes nobody.
//!
//! A follower hears of news before it reads, and reads the store: what is written between the two is read in the next
//! round, and what somebody wrote without a word is found when it looks again by itself.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, Stream};
use tokio::sync::broadcast;
use wakeful_model::{Event, EventType, SandboxId, State};

use crate::lifecycle::Inner;
use crate::{Error, Lifecycle};

/// Events read at once.
const PAGE: u32 = 100;
/// A follower looks at least this often.
const LOOK: Duration = Duration::from_secs(15);
/// News that a slow follower may miss before it is told that it did.
const NEWS: usize = 256;

/// Where those hear of events who follow them.
pub(crate) struct News(broadcast::Sender<SandboxId>);

impl Default for News {
    fn default() -> Self {
        Self(broadcast::Sender::new(NEWS))
    }
}

impl News {
    /// An event of this sandbox is committed.
    pub(crate) fn tell(&self, id: &SandboxId) {
        // Nobody need be listening.
        let _ = self.0.send(id.clone());
    }
}

struct Follower {
    inner: Arc<Inner>,
    id: SandboxId,
    news: broadcast::Receiver<SandboxId>,
    after: u64,
    read: VecDeque<(u64, Event)>,
    ended: bool,
}

impl Follower {
    async fn next(&mut self) -> Result<Option<(u64, Event)>, Error> {
        loop {
            if let Some((seq, event)) = self.read.pop_front() {
                self.after = seq;
                self.ended = event.kind == EventType::Destroyed;
                return Ok(Some((seq, event)));
            }
            if self.ended || self.inner.draining.is_cancelled() {
                return Ok(None);
            }
            // The row first: one that is destroyed now has all its events by now.
            let row = self.inner.store.sandbox(&self.id).await?;
            self.read = self.inner.store.events(&self.id, self.after, PAGE).await?.into();
            if !self.read.is_empty() {
                continue;
            }
            if row.is_none_or(|row| row.state == State::Destroyed) {
                return Ok(None);
            }
            self.heard().await;
        }
    }

    /// Waits for news of this sandbox, and no longer than it should look again.
    async fn heard(&mut self) {
        let (id, news) = (&self.id, &mut self.news);
        let heard = async {
            loop {
                match news.recv().await {
                    Ok(other) if other != *id => {}
                    Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => return,
                    // It lives as long as we do.
                    Err(broadcast::error::RecvError::Closed) => return std::future::pending().await,
                }
            }
        };
        tokio::select! {
            () = heard => {}
            () = self.inner.draining.cancelled() => {}
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

impl Lifecycle {
    /// Events with a number above `after`, oldest first.
    ///
    /// # Errors
    /// If there is no such sandbox.
    pub async fn events(
        &self,
        tenant: &str,
        id: &SandboxId,
        after: u64,
        limit: u32,
    ) -> Result<Vec<(u64, Event)>, Error> {
        let _theirs = self.inner.find(tenant, id).await?;
        Ok(self.inner.store.events(id, after, limit).await?)
    }

    /// The same as they come. Ends after `destroyed`, and when the daemon does.
    ///
    /// # Errors
    /// If there is no such sandbox.
    pub async fn follow_events(
        &self,
        tenant: &str,
        id: &SandboxId,
        after: u64,
    ) -> Result<impl Stream<Item = Result<(u64, Event), Error>> + Send + use<>, Error> {
        let _theirs = self.inner.find(tenant, id).await?;
        let follower = Follower {
            inner: Arc::clone(&self.inner),
            id: id.clone(),
            news: self.inner.news.0.subscribe(),
            after,
            read: VecDeque::new(),
            ended: false,
        };
        Ok(stream::try_unfold(follower, |mut follower| async move {
            Ok(follower.next().await?.map(|event| (event, follower)))
        }))
    }
}
