//! What is left of a body when its request has been answered.
//!
//! A refusal often comes before all of the body did. A server that closes then, with bytes unread, makes the kernel reset
//! the connection, and the caller may lose the answer. So what is left is read and thrown away for a moment; a caller
//! that waits for our word before it sends (`Expect: 100-continue`, as curl does) never begins.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use bytes::Bytes;
use http::header;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use tokio_util::task::TaskTracker;

use crate::ApiConfig;

/// Whoever sends for longer than this after the answer gets a reset connection.
const LINGER: Duration = Duration::from_secs(5);

struct Lingering {
    body: Option<Body>,
    tasks: TaskTracker,
    /// The sender has not been asked for its body yet.
    unasked: bool,
}

/// The layer.
pub(crate) async fn read_on(State(config): State<Arc<ApiConfig>>, request: Request) -> Request {
    let unasked = request
        .headers()
        .get(header::EXPECT)
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"));
    request.map(|body| {
        if http_body::Body::is_end_stream(&body) {
            return body;
        }
        Body::new(Lingering { body: Some(body), tasks: config.tasks.clone(), unasked })
    })
}

impl http_body::Body for Lingering {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.unasked = false;
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = Pin::new(body).poll_frame(context);
        if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
            self.body = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), http_body::Body::size_hint)
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        let Some(mut body) = self.body.take() else { return };
        if self.unasked || http_body::Body::is_end_stream(&body) {
            return;
        }
        self.tasks.spawn(async move {
            let rest = async { while let Some(Ok(_)) = body.frame().await {} };
            let _ = tokio::time::timeout(LINGER, rest).await;
        });
    }
}
