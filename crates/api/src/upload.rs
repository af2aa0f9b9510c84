//! The body of an upload on its way to the guest: counted, never held, and cut off when it is too long or stalls.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::Stream;
use http::{HeaderMap, header};
use http_body::Body as _;
use tokio::time::{Instant, Sleep, sleep};
use wakeful_model::Code;

use crate::problem::Problem;

/// A sender that is silent for this long is gone.
const STALL: Duration = Duration::from_secs(60);

/// Why an upload ended before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    TooLarge,
    Stalled,
    BrokeOff,
}

/// What became of an upload; kept by the handler while the upload itself is on its way.
#[derive(Clone, Debug)]
pub(crate) struct Fate {
    cut: Arc<OnceLock<Cut>>,
    limit: u64,
}

impl Fate {
    /// The problem that the upload itself made, if it did: it explains what the guest saw.
    pub(crate) fn problem(&self) -> Option<Problem> {
        self.cut.get().map(|cut| match cut {
            Cut::TooLarge => too_large(self.limit),
            Cut::Stalled => Problem::new(Code::InvalidField, "the body did not go on for 60 seconds"),
            Cut::BrokeOff => Problem::new(Code::InvalidField, "the body broke off before its end"),
        })
    }
}

fn too_large(limit: u64) -> Problem {
    Problem::new(Code::FileTooLarge, format!("a file can have {limit} bytes at most"))
}

/// The body.
pub(crate) struct Upload {
    body: Option<Body>,
    length: Option<u64>,
    left: u64,
    fate: Fate,
    patience: Duration,
    waiting: bool,
    stall: Pin<Box<Sleep>>,
}

impl Upload {
    /// Of at most `limit` bytes.
    ///
    /// # Errors
    /// At once, if the request says that it is longer.
    pub(crate) fn new(headers: &HeaderMap, body: Body, limit: u64) -> Result<Self, Problem> {
        let length = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
        if length.is_some_and(|length| length > limit) {
            return Err(too_large(limit));
        }
        Ok(Self {
            body: Some(body),
            length,
            left: limit,
            fate: Fate { cut: Arc::default(), limit },
            patience: STALL,
            waiting: false,
            stall: Box::pin(sleep(STALL)),
        })
    }

    /// What becomes of it.
    pub(crate) fn fate(&self) -> Fate {
        self.fate.clone()
    }

    /// Its length, if the sender told.
    pub(crate) fn length(&self) -> Option<u64> {
        self.length
    }

    fn end(&mut self, cut: Cut) -> Poll<Option<io::Result<Bytes>>> {
        let _ = self.fate.cut.set(cut);
        Poll::Ready(Some(Err(io::Error::other("the upload was cut off"))))
    }
}

impl Stream for Upload {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if let Some(cut) = this.fate.cut.get().copied() {
            return this.end(cut);
        }
        loop {
            let Some(body) = &mut this.body else { return Poll::Ready(None) };
            match Pin::new(body).poll_frame(context) {
                Poll::Ready(frame) => {
                    this.waiting = false;
                    let data = match frame {
                        None => {
                            this.body = None;
                            return Poll::Ready(None);
                        }
                        Some(Err(_)) => return this.end(Cut::BrokeOff),
                        Some(Ok(frame)) => match frame.into_data() {
                            Ok(data) => data,
                            // Trailers say nothing here.
                            Err(_) => continue,
                        },
                    };
                    return match this.left.checked_sub(data.len() as u64) {
                        Some(left) => {
                            this.left = left;
                            Poll::Ready(Some(Ok(data)))
                        }
                        None => this.end(Cut::TooLarge),
                    };
                }
                Poll::Pending => {
                    // The clock runs only while we wait for the sender, not while the guest is slow.
                    if !this.waiting {
                        this.waiting = true;
                        this.stall.as_mut().reset(Instant::now() + this.patience);
                    }
                    ready!(this.stall.as_mut().poll(context));
                    return this.end(Cut::Stalled);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::{StreamExt, stream};
    use http::HeaderValue;

    fn chunks(sizes: &'static [usize]) -> Body {
        Body::from_stream(stream::iter(sizes).map(|size| io::Result::Ok(Bytes::from(vec![b'x'; *size]))))
    }

    async fn passed(body: Body, limit: u64) -> (u64, Option<Code>) {
        let mut upload = Upload::new(&HeaderMap::new(), body, limit).unwrap();
        let fate = upload.fate();
        let mut bytes = 0;
        while let Some(Ok(data)) = upload.next().await {
            bytes += data.len() as u64;
        }
        (bytes, fate.problem().map(|problem| problem.code()))
    }

    #[tokio::test]
    async fn counts() {
        assert_eq!(passed(chunks(&[]), 0).await, (0, None));
        assert_eq!(passed(chunks(&[5, 0, 5]), 10).await, (10, None));
        assert_eq!(passed(chunks(&[5, 6, 5]), 10).await, (5, Some(Code::FileTooLarge)));
        let broken = Body::from_stream(stream::iter([Ok("abc"), Err(io::Error::other("gone"))]));
        assert_eq!(passed(broken, 10).await, (3, Some(Code::InvalidField)));
    }

    #[tokio::test]
    async fn a_declared_length_is_believed() {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("11"));
        assert!(Upload::new(&headers, chunks(&[]), 11).is_ok());
        let refused = Upload::new(&headers, chunks(&[]), 10).map(|_| ()).unwrap_err();
        assert_eq!(refused.code(), Code::FileTooLarge);
    }

    #[tokio::test]
    async fn a_silent_sender_is_given_up() {
        let body = Body::from_stream(stream::iter([io::Result::Ok("abc")]).chain(stream::pending()));
        let mut upload = Upload::new(&HeaderMap::new(), body, 10).unwrap();
        upload.patience = Duration::from_millis(20);
        let fate = upload.fate();
        assert!(upload.next().await.is_some_and(|data| data.is_ok()));
        assert!(upload.next().await.is_some_and(|data| data.is_err()));
        assert_eq!(fate.problem().map(|problem| problem.code()), Some(Code::InvalidField));
    }
}
