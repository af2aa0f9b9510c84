//! Requests with a body that is streamed to the agent.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use http::Request;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use tokio_util::sync::CancellationToken;

use crate::connect::{Body, collect};
use crate::{Error, Guest};

const ANSWER_LIMIT: usize = 1 << 20;
const TICK: Duration = Duration::from_secs(10);
const HEALTH: Duration = Duration::from_secs(5);

impl Guest {
    /// Sends a request with `content` as its body, and gives the whole answer. If nothing moves for as long as `stalled`,
    /// it has failed, even if the agent is well.
    ///
    /// # Errors
    /// [`Error::Io`] if the content fails; [`Error::Refused`], [`Error::Late`], [`Error::Unresponsive`], [`Error::Lost`].
    ///
    /// # Cancel safety
    /// Dropping the future cuts the body off, which the agent sees.
    pub(crate) async fn upload<S>(&self, request: Request<Body>, content: S, stalled: Duration) -> Result<Bytes, Error>
    where
        S: Stream<Item = io::Result<Bytes>> + Send + 'static,
    {
        let upload = Upload::default();
        // However this future ends, the body learns it: a body that merely stops would look complete to the agent.
        let _cut = upload.cut.clone().drop_guard();
        let request = request.map(|_| StreamBody::new(upload.watch(content)).boxed_unsync());
        let exchange = async {
            let response = self.accepted(request).await?;
            collect(response.into_body(), ANSWER_LIMIT).await
        };
        let answer = tokio::select! {
            answer = exchange => answer,
            error = self.stalled(&upload, stalled) => Err(error),
        };
        match (answer, upload.take_failure()) {
            // The agent's word counts: it may have refused before it could see that the content ends early.
            (Err(refused @ Error::Refused { .. }), _) => Err(refused),
            (_, Some(source)) => Err(Error::Io { attempted: "read what was to be uploaded", source }),
            (answer, None) => answer,
        }
    }

    /// Resolves when an upload has come to a stop and the agent does not answer, or it stopped for too long altogether.
    async fn stalled(&self, upload: &Upload, most: Duration) -> Error {
        let (mut seen, mut still) = (upload.sent.load(Ordering::Relaxed), Duration::ZERO);
        loop {
            tokio::time::sleep(TICK).await;
            let now = upload.sent.load(Ordering::Relaxed);
            if now != seen {
                (seen, still) = (now, Duration::ZERO);
                continue;
            }
            still += TICK;
            match self.health(HEALTH).await {
                Err(Error::Lost) => return Error::Lost,
                Err(_) => return Error::Unresponsive,
                Ok(()) if still >= most => return Error::Late { attempted: "take the upload", after: most },
                Ok(()) => {}
            }
        }
    }
}

/// What host and connection know of an upload together.
#[derive(Default)]
struct Upload {
    cut: CancellationToken,
    sent: Arc<AtomicU64>,
    failure: Arc<Mutex<Option<io::Error>>>,
}

impl Upload {
    /// The content as frames: counted, ended by an error when the upload is cut off, its own failure remembered.
    fn watch<S>(&self, content: S) -> impl Stream<Item = io::Result<Frame<Bytes>>> + Send + use<S>
    where
        S: Stream<Item = io::Result<Bytes>> + Send + 'static,
    {
        let (cut, sent, failure) = (self.cut.clone(), Arc::clone(&self.sent), Arc::clone(&self.failure));
        stream::unfold(Some(Box::pin(content)), move |content| {
            let (cut, sent, failure) = (cut.clone(), Arc::clone(&sent), Arc::clone(&failure));
            async move {
                let mut content = content?;
                let piece = tokio::select! {
                    biased;
                    () = cut.cancelled() => Some(Err(io::ErrorKind::Interrupted.into())),
                    piece = content.next() => piece,
                };
                match piece? {
                    Ok(data) => {
                        sent.fetch_add(data.len() as u64, Ordering::Relaxed);
                        Some((Ok(Frame::data(data)), Some(content)))
                    }
                    Err(error) => {
                        let told = io::Error::from(error.kind());
                        *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                        Some((Err(told), None))
                    }
                }
            }
        })
    }

    fn take_failure(&self) -> Option<io::Error> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
