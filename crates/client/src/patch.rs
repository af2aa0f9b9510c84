//! Changes of a sandbox.

use reqwest::Method;
use wakeful_api_types::{PatchSandbox, Sandbox};

use crate::send::CALL;
use crate::{Client, Error};

impl Client {
    /// `PATCH /v1/sandboxes/{id}`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn patch_sandbox(&self, id: &str, patch: &PatchSandbox) -> Result<Sandbox, Error> {
        let url = self.address.join(&["v1", "sandboxes", id])?;
        self.json(self.request(Method::PATCH, url).timeout(CALL).json(patch)).await
    }
}
