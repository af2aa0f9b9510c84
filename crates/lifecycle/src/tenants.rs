//! Tenants, and what each may have.
//!
//! Limits are counted by the store in the transaction that adds to what is used: a create when its row is written, a wake
//! when its intent is. What is lowered below what is used takes nothing away; it only lets nothing more in.

use std::time::Instant;

use tracing::info;
use wakeful_model::{Code, DEFAULT_TENANT, Event, Limits, Sandbox, Tenant, Usage, check_tenant};
use wakeful_store::{Admission, Removal};

use crate::lifecycle::Inner;
use crate::registry::Registry;
use crate::{Clock, Error, ops};

/// What a column can hold, and far more than any host has.
const MOST: u64 = i64::MAX.cast_unsigned();

/// Limits to be changed; what is `None` stays as it is, what is `Some(None)` is lifted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitsChange {
    /// Sandboxes.
    pub sandboxes: Option<Option<u64>>,
    /// Memory in MiB.
    pub memory_mb: Option<Option<u64>>,
    /// Disk in MiB.
    pub disk_mb: Option<Option<u64>>,
}

impl LimitsChange {
    fn over(self, limits: Limits) -> Result<Limits, Error> {
        let rows = [("sandboxes", self.sandboxes), ("memory_mb", self.memory_mb), ("disk_mb", self.disk_mb)];
        if let Some((name, _)) = rows.into_iter().find(|(_, limit)| limit.flatten().is_some_and(|n| n > MOST)) {
            let field = format!("limits.{name}");
            return Err(Error::invalid(
                Code::InvalidField,
                &field,
                format!("{field} is larger than anything could be"),
            ));
        }
        Ok(Limits {
            sandboxes: self.sandboxes.unwrap_or(limits.sandboxes),
            memory_mb: self.memory_mb.unwrap_or(limits.memory_mb),
            disk_mb: self.disk_mb.unwrap_or(limits.disk_mb),
        })
    }
}

impl Registry {
    /// Makes a tenant.
    ///
    /// # Errors
    /// If its name is taken or no name.
    pub async fn create_tenant(&self, name: &str, limits: LimitsChange) -> Result<(Tenant, Usage), Error> {
        check_tenant(name).map_err(|error| Error::invalid(Code::InvalidName, "name", error.to_string()))?;
        let limits = limits.over(Limits::default())?;
        let tenant = Tenant { name: name.to_owned(), limits, created_at: Clock::default().now() };
        if !self.store.insert_tenant(&tenant).await? {
            return Err(Error::TenantNameTaken(tenant.name));
        }
        info!(tenant = tenant.name, ?limits, "tenant created");
        Ok((tenant, Usage::default()))
    }

    /// A tenant and what it has.
    ///
    /// # Errors
    /// If there is none.
    pub async fn tenant(&self, name: &str) -> Result<(Tenant, Usage), Error> {
        let Some(tenant) = self.store.tenant(name).await? else { return Err(no_tenant(name)) };
        let usage = self.store.tenant_usage(name).await?;
        Ok((tenant, usage))
    }

    /// All tenants and what they have, by name.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn tenants(&self) -> Result<Vec<(Tenant, Usage)>, Error> {
        let mut all = Vec::new();
        for tenant in self.store.tenants().await? {
            let usage = self.store.tenant_usage(&tenant.name).await?;
            all.push((tenant, usage));
        }
        Ok(all)
    }

    /// Changes a tenant's limits. Sandboxes that are there stay, also beyond them.
    ///
    /// # Errors
    /// If there is no such tenant.
    pub async fn limit_tenant(&self, name: &str, change: LimitsChange) -> Result<(Tenant, Usage), Error> {
        // Two changes of different limits must not undo each other.
        let _turn = self.changes.lock().await;
        let (tenant, usage) = self.tenant(name).await?;
        let limits = change.over(tenant.limits)?;
        if !self.store.limit_tenant(name, &limits).await? {
            return Err(no_tenant(name));
        }
        info!(tenant = name, ?limits, "tenant limited");
        Ok((Tenant { limits, ..tenant }, usage))
    }

    /// Deletes a tenant that has no sandboxes, templates or keys.
    ///
    /// # Errors
    /// If it has, if there is none, or if it is the one that is always there.
    pub async fn delete_tenant(&self, name: &str) -> Result<(), Error> {
        if name == DEFAULT_TENANT {
            let detail = format!("tenant {name} is always there: it is everyone's while there are no keys");
            return Err(Error::TenantInUse { detail });
        }
        match self.store.remove_tenant(name).await? {
            Removal::Removed => {
                info!(tenant = name, "tenant deleted");
                Ok(())
            }
            Removal::NotFound => Err(no_tenant(name)),
            Removal::InUse { sandboxes, templates, snapshots, keys } => Err(Error::TenantInUse {
                detail: format!(
                    "tenant {name} has {sandboxes} sandboxes, {templates} templates, {snapshots} snapshots and {keys} keys"
                ),
            }),
        }
    }
}

fn no_tenant(name: &str) -> Error {
    Error::TenantNotFound(name.chars().take(100).collect())
}

fn refused<T>(admission: Admission<T>, row: &Sandbox) -> Result<T, Error> {
    match admission {
        Admission::Admitted(done) => Ok(done),
        Admission::NoTenant => Err(no_tenant(&row.tenant)),
        Admission::Over { limit, used, most } => {
            Err(Error::QuotaExceeded { tenant: row.tenant.clone(), limit, used, most })
        }
    }
}

/// Writes the row of a sandbox to be made, if its tenant may have it.
pub(crate) async fn admit(inner: &Inner, row: &Sandbox) -> Result<(), Error> {
    refused(inner.store.admit_sandbox(row, None).await?, row)
}

/// Writes the row of a sandbox whose disk grows, if the tenant may have so much.
pub(crate) async fn admit_growth(inner: &Inner, row: Sandbox, event: Option<&Event>) -> Result<Sandbox, Error> {
    let began = Instant::now();
    let swap = refused(inner.store.admit_growth(&row, event).await?, &row)?;
    ops::written(inner, row, event, swap, began)
}

/// Writes the intent to wake, if the tenant may have its memory.
pub(crate) async fn admit_wake(inner: &Inner, row: Sandbox, event: Option<&Event>) -> Result<Sandbox, Error> {
    let began = Instant::now();
    let swap = refused(inner.store.admit_wake(&row, event).await?, &row)?;
    ops::written(inner, row, event, swap, began)
}
