//! Keys and tenants.

use reqwest::{Method, Url};
use wakeful_api_types::{
    ChangeTenant, CreateKey, CreateTenant, CreatedKey, KeyList, LimitsRequest, Tenant, TenantList,
};

use crate::send::CALL;
use crate::{Client, Error};

impl Client {
    /// Whether the server is this machine, reached without leaving it.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.address.loopback
    }

    /// The server's port.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        Url::parse(self.url()).ok()?.port_or_known_default()
    }

    /// `POST /v1/keys`. The secret is in this answer and nowhere else.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn create_key(&self, new: &CreateKey) -> Result<CreatedKey, Error> {
        self.json(self.post(&["v1", "keys"], new)?).await
    }

    /// `GET /v1/keys`; of one tenant, or of all.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn keys(&self, tenant: Option<&str>) -> Result<KeyList, Error> {
        let filter: Vec<(&str, &str)> = tenant.map(|name| ("tenant", name)).into_iter().collect();
        self.json(self.get(&["v1", "keys"])?.query(&filter)).await
    }

    /// `DELETE /v1/keys/{id}`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn delete_key(&self, id: &str) -> Result<(), Error> {
        self.nothing(self.delete(&["v1", "keys", id])?).await
    }

    /// `POST /v1/tenants`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn create_tenant(&self, new: &CreateTenant) -> Result<Tenant, Error> {
        self.json(self.post(&["v1", "tenants"], new)?).await
    }

    /// `GET /v1/tenants`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn tenants(&self) -> Result<TenantList, Error> {
        self.json(self.get(&["v1", "tenants"])?).await
    }

    /// `GET /v1/tenants/{name}`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn tenant(&self, name: &str) -> Result<Tenant, Error> {
        self.json(self.get(&["v1", "tenants", name])?).await
    }

    /// `PATCH /v1/tenants/{name}`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn limit_tenant(&self, name: &str, limits: LimitsRequest) -> Result<Tenant, Error> {
        let url = self.address.join(&["v1", "tenants", name])?;
        self.json(self.request(Method::PATCH, url).timeout(CALL).json(&ChangeTenant { limits })).await
    }

    /// `DELETE /v1/tenants/{name}`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn delete_tenant(&self, name: &str) -> Result<(), Error> {
        self.nothing(self.delete(&["v1", "tenants", name])?).await
    }
}
