//! Who may reach the ports of a sandbox, and when a sandbox that slept can be reached again.

use wakeful_model::{Port, Refusal, SandboxId, State};

use crate::{Error, Lifecycle};

/// What must be known of a port before anybody is let through to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preview {
    /// Whose sandbox it is.
    pub tenant: String,
    /// It needs no credentials.
    pub public: bool,
}

impl Lifecycle {
    /// All ports that something was said about, by number.
    ///
    /// # Errors
    /// If there is no such sandbox, or it is another tenant's.
    pub async fn ports(&self, tenant: &str, id: &SandboxId) -> Result<Vec<Port>, Error> {
        self.find_live(tenant, id).await?;
        Ok(self.inner.store.ports(id).await?)
    }

    /// One port; private unless something else was said.
    ///
    /// # Errors
    /// As [`ports`](Self::ports).
    pub async fn port(&self, tenant: &str, id: &SandboxId, port: u16) -> Result<Port, Error> {
        self.find_live(tenant, id).await?;
        Ok(self.inner.store.port(id, port).await?.unwrap_or(Port { port, public: false }))
    }

    /// Says who may reach a port. It is no use of the sandbox, and wakes nobody.
    ///
    /// # Errors
    /// As [`ports`](Self::ports).
    pub async fn put_port(&self, tenant: &str, id: &SandboxId, port: Port) -> Result<(), Error> {
        self.find_live(tenant, id).await?;
        Ok(self.inner.store.put_port(id, port).await?)
    }

    /// Forgets what was said of a port: it is private again.
    ///
    /// # Errors
    /// As [`ports`](Self::ports).
    pub async fn forget_port(&self, tenant: &str, id: &SandboxId, port: u16) -> Result<(), Error> {
        self.find_live(tenant, id).await?;
        Ok(self.inner.store.remove_port(id, port).await?)
    }

    /// Whose port it is and whether it is public, for whoever must find out before it knows who is asking.
    ///
    /// # Errors
    /// If there is no such sandbox, or it is destroyed.
    pub async fn preview(&self, id: &SandboxId, port: u16) -> Result<Preview, Error> {
        let row = match self.inner.live_tenant(id) {
            Some(tenant) => tenant,
            None => match self.inner.store.sandbox(id).await? {
                None => return Err(Error::SandboxNotFound(id.to_string())),
                Some(row) if row.state == State::Destroyed => {
                    return Err(Error::Refused { id: row.id, refusal: Refusal::Destroyed });
                }
                Some(row) => row.tenant,
            },
        };
        let public = self.inner.store.port(id, port).await?.is_some_and(|port| port.public);
        Ok(Preview { tenant: row, public })
    }

    /// Resolves when the sandbox runs and nothing is under way with it. Wakes nobody.
    ///
    /// # Errors
    /// If it never will without being told to: destroyed or failed.
    pub async fn running(&self, id: &SandboxId) -> Result<(), Error> {
        let destroyed = || Error::Refused { id: id.clone(), refusal: Refusal::Destroyed };
        let mut live = self.inner.watch(id).ok_or_else(destroyed)?;
        let settled = live.wait_for(|live| {
            live.row.transition.is_none()
                && matches!(live.row.state, State::Running | State::Failed(_) | State::Destroyed)
        });
        let settled = settled.await.map_err(|_| destroyed())?;
        match settled.row.state {
            State::Destroyed => Err(destroyed()),
            State::Failed(_) => {
                let detail = settled.row.failure.as_ref().map_or_else(String::new, |failure| failure.detail.clone());
                Err(Error::Failed { id: id.clone(), detail })
            }
            State::Creating | State::Running | State::Suspended(_) => Ok(()),
        }
    }
}
