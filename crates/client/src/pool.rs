//! The warm pool.

use reqwest::Method;
use wakeful_api_types::{Pool, PoolList, PutPool};

use crate::send::CALL;
use crate::{Client, Error};

impl Client {
    /// `GET /v1/pool`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn pools(&self) -> Result<PoolList, Error> {
        self.json(self.get(&["v1", "pool"])?).await
    }

    /// `PUT /v1/pool/{template}/{size}`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn put_pool(&self, template: &str, size: &str, target: u32) -> Result<Pool, Error> {
        let url = self.address.join(&["v1", "pool", template, size])?;
        self.json(self.request(Method::PUT, url).timeout(CALL).json(&PutPool { target })).await
    }
}
