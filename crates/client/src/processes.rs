//! Commands that stream, and processes that go on without us.

use bytes::Bytes;
use reqwest::Method;
use wakeful_api_types::{ExecuteRequest, Process, ProcessList, PtySize, SignalRequest, StartProcess};

use crate::frames::Frames;
use crate::send::CALL;
use crate::{Client, Error};

impl Client {
    /// `POST …/execute?stream=true`: what it says comes as it says it. It goes on if the stream is dropped.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn execute_stream(&self, id: &str, execute: &ExecuteRequest) -> Result<Frames, Error> {
        let url = self.address.join(&["v1", "sandboxes", id, "execute"])?;
        let request = self.request(Method::POST, url).query(&[("stream", "true")]).json(execute);
        Ok(self.frames(self.begun(request).await?))
    }

    /// `POST …/processes`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn start_process(&self, id: &str, new: &StartProcess) -> Result<Process, Error> {
        self.json(self.post(&["v1", "sandboxes", id, "processes"], new)?).await
    }

    /// `GET …/processes`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn processes(&self, id: &str) -> Result<ProcessList, Error> {
        self.json(self.get(&["v1", "sandboxes", id, "processes"])?).await
    }

    /// `GET …/processes/{pid}`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn process(&self, id: &str, pid: u32) -> Result<Process, Error> {
        self.json(self.get(&["v1", "sandboxes", id, "processes", &pid.to_string()])?).await
    }

    /// `GET …/processes/{pid}/output`: from frame `from` on; `follow`: until it ends.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn process_output(&self, id: &str, pid: u32, from: u64, follow: bool) -> Result<Frames, Error> {
        let url = self.address.join(&["v1", "sandboxes", id, "processes", &pid.to_string(), "output"])?;
        let query = [("from", from.to_string()), ("follow", follow.to_string())];
        Ok(self.frames(self.begun(self.request(Method::GET, url).query(&query)).await?))
    }

    /// `POST …/processes/{pid}/stdin`: answered when the process has been given all of it, however long that takes.
    ///
    /// # Errors
    /// See [`Error`]. If the connection broke it is not known how much of it arrived.
    pub async fn send_input(&self, id: &str, pid: u32, input: Bytes, eof: bool) -> Result<(), Error> {
        let url = self.address.join(&["v1", "sandboxes", id, "processes", &pid.to_string(), "stdin"])?;
        let mut request = self.patient(Method::POST, url).body(input);
        if eof {
            request = request.query(&[("eof", "true")]);
        }
        self.nothing(request).await
    }

    /// `POST …/processes/{pid}/signal`: a name, as `TERM`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn signal_process(&self, id: &str, pid: u32, signal: &str) -> Result<(), Error> {
        let path = ["v1", "sandboxes", id, "processes", &pid.to_string(), "signal"];
        self.nothing(self.post(&path, &SignalRequest { signal: signal.to_owned() })?).await
    }

    /// `POST …/processes/{pid}/resize`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn resize_process(&self, id: &str, pid: u32, size: PtySize) -> Result<(), Error> {
        let path = ["v1", "sandboxes", id, "processes", &pid.to_string(), "resize"];
        self.nothing(self.post(&path, &size)?).await
    }

    /// Sends a request whose answer is a stream: only its beginning has a deadline.
    pub(crate) async fn begun(&self, request: reqwest::RequestBuilder) -> Result<reqwest::Response, Error> {
        match tokio::time::timeout(CALL, self.send(request)).await {
            Ok(response) => response,
            Err(_) => Err(self.broken(format!("no answer within {CALL:?}"))),
        }
    }
}
