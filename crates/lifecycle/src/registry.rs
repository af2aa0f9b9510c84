//! Who may call: the keys, in the store and in memory.
//!
//! Every call shows a key, so keys are looked up in memory; the store is only written. One process owns the data
//! directory, so the memory is right as long as every change goes through [`Registry`], which changes the store first and
//! the memory when that is done, in a task that its caller cannot drop half-way.
//!
//! ```text
//!   create_key, delete_key ──▶ store ──▶ Keyring ◀── identify (every call)
//! ```
//!
//! The first key closes the door for everyone who has none, and the last one to go opens it again: [`Keyring::identify`]
//! looks at "is there any key" and "is it this one" under one lock.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, RwLock};

use jiff::Timestamp;
use secrecy::SecretString;
use tokio::sync::Mutex;
use tokio_util::task::TaskTracker;
use tracing::info;
use wakeful_model::{Code, Digest, Key, KeyId, Scope, new_key};
use wakeful_store::Store;

use crate::{Clock, Error};

const LONGEST_NAME: usize = 100;

/// A key to be made.
#[derive(Clone, Debug)]
pub struct NewKey {
    /// What people call it.
    pub name: String,
    /// For whom.
    pub tenant: String,
    /// What it shall allow.
    pub scopes: Vec<Scope>,
}

/// Whether the last key may go. Without one, whoever reaches the port is admin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastKey {
    /// Only this machine reaches the port.
    MayGo,
    /// Others reach it too.
    MustStay,
}

/// Who shows a credential.
#[derive(Clone, Debug)]
pub enum Identity {
    /// There are no keys: everyone who is let in is admin.
    NoKeys,
    /// The holder of this key.
    Holder(Arc<Key>),
    /// Nobody we know.
    Nobody,
}

struct Entry {
    key: Arc<Key>,
    /// In microseconds; 0 for never.
    used_at: AtomicI64,
    /// What the store knows of it.
    noted_at: AtomicI64,
}

/// The keys in memory.
#[derive(Default)]
pub struct Keyring {
    entries: RwLock<HashMap<Digest, Entry>>,
}

impl Keyring {
    /// Whether there is any key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.read().expect("no panic while it is held").is_empty()
    }

    /// Who shows what this is the digest of.
    #[must_use]
    pub fn identify(&self, shown: impl IntoIterator<Item = Digest>) -> Identity {
        let entries = self.entries.read().expect("no panic while it is held");
        if entries.is_empty() {
            return Identity::NoKeys;
        }
        match shown.into_iter().find_map(|digest| entries.get(&digest)) {
            Some(entry) => {
                entry.used_at.fetch_max(Timestamp::now().as_microsecond(), Ordering::Relaxed);
                Identity::Holder(Arc::clone(&entry.key))
            }
            None => Identity::Nobody,
        }
    }

    /// Whether there is a key of this id.
    #[must_use]
    pub fn contains(&self, id: &KeyId) -> bool {
        self.entries.read().expect("no panic while it is held").values().any(|entry| entry.key.id == *id)
    }

    fn insert(&self, key: Key) {
        let used = key.last_used_at.map_or(0, Timestamp::as_microsecond);
        let entry = Entry { used_at: used.into(), noted_at: used.into(), key: Arc::new(key) };
        self.entries.write().expect("no panic while it is held").insert(entry.key.digest, entry);
    }

    fn remove(&self, id: &KeyId) {
        self.entries.write().expect("no panic while it is held").retain(|_, entry| entry.key.id != *id);
    }

    /// All of them with their last use, oldest first.
    fn list(&self) -> Vec<Key> {
        let entries = self.entries.read().expect("no panic while it is held");
        let mut keys: Vec<Key> = entries
            .values()
            .map(|entry| Key { last_used_at: instant(entry.used_at.load(Ordering::Relaxed)), ..(*entry.key).clone() })
            .collect();
        keys.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        keys
    }

    /// Uses that the store has not been told of.
    fn take_uses(&self) -> Vec<(KeyId, Timestamp)> {
        let entries = self.entries.read().expect("no panic while it is held");
        let fresh = entries.values().filter_map(|entry| {
            let used = entry.used_at.load(Ordering::Relaxed);
            let is_new = entry.noted_at.swap(used, Ordering::Relaxed) != used;
            is_new.then(|| Some((entry.key.id.clone(), instant(used)?))).flatten()
        });
        fresh.collect()
    }
}

fn instant(microseconds: i64) -> Option<Timestamp> {
    (microseconds > 0).then(|| Timestamp::from_microsecond(microseconds).ok()).flatten()
}

/// Tenants and their keys. Works without a running daemon too, for whoever holds the data directory.
pub struct Registry {
    pub(crate) store: Arc<dyn Store>,
    keyring: Arc<Keyring>,
    /// One change at a time.
    pub(crate) changes: Mutex<()>,
    tasks: TaskTracker,
}

impl Registry {
    /// Reads all keys.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn open(store: Arc<dyn Store>) -> Result<Arc<Self>, Error> {
        let keyring = Keyring::default();
        for key in store.keys().await? {
            keyring.insert(key);
        }
        let tasks = TaskTracker::new();
        Ok(Arc::new(Self { store, keyring: Arc::new(keyring), changes: Mutex::default(), tasks }))
    }

    /// The keys in memory.
    #[must_use]
    pub fn keyring(&self) -> &Arc<Keyring> {
        &self.keyring
    }

    /// Makes a key. The secret is in this answer and nowhere else.
    ///
    /// # Errors
    /// If there is no such tenant, the name is none, or it would allow nothing.
    ///
    /// # Cancel safety
    /// Dropped, it is done whole or not at all, in memory and in the store alike.
    pub async fn create_key(self: &Arc<Self>, new: NewKey) -> Result<(Key, SecretString), Error> {
        if new.name.is_empty() || new.name.len() > LONGEST_NAME || new.name.contains(char::is_control) {
            let detail = format!("a key's name has 1 to {LONGEST_NAME} bytes and no control characters");
            return Err(Error::invalid(Code::InvalidName, "name", detail));
        }
        let mut scopes = new.scopes;
        scopes.sort_unstable();
        scopes.dedup();
        if scopes.is_empty() {
            return Err(Error::invalid(Code::InvalidField, "scopes", "a key without scopes would allow nothing"));
        }
        let (secret, digest) = new_key();
        let key = Key {
            id: KeyId::random(),
            name: new.name,
            tenant: new.tenant,
            scopes,
            digest,
            created_at: Clock::default().now(),
            last_used_at: None,
        };
        let this = Arc::clone(self);
        let made = self.whole(async move {
            let _turn = this.changes.lock().await;
            if !this.store.insert_key(&key).await? {
                return Err(Error::TenantNotFound(key.tenant));
            }
            let first = this.keyring.is_empty();
            this.keyring.insert(key.clone());
            info!(key_id = %key.id, tenant = key.tenant, scopes = ?key.scopes, first, "key created");
            Ok(key)
        });
        Ok((made.await?, secret))
    }

    /// All keys of all tenants, oldest first.
    #[must_use]
    pub fn keys(&self) -> Vec<Key> {
        self.keyring.list()
    }

    /// Deletes a key: the next call that shows it is refused.
    ///
    /// # Errors
    /// If there is none, or it is the last one and must stay.
    ///
    /// # Cancel safety
    /// As [`create_key`](Self::create_key).
    pub async fn delete_key(self: &Arc<Self>, id: &KeyId, last: LastKey) -> Result<(), Error> {
        let (this, id) = (Arc::clone(self), id.clone());
        self.whole(async move {
            let _turn = this.changes.lock().await;
            let keys = this.keyring.list();
            if !keys.iter().any(|key| key.id == id) {
                return Err(Error::KeyNotFound(id.to_string()));
            }
            if keys.len() == 1 && last == LastKey::MustStay {
                return Err(Error::LastKey(id));
            }
            this.store.remove_key(&id).await?;
            this.keyring.remove(&id);
            info!(key_id = %id, last = keys.len() == 1, "key deleted");
            Ok(())
        })
        .await
    }

    /// Tells the store which keys were used since it was last told.
    ///
    /// # Errors
    /// If the store fails; what was not noted is noted with the next use.
    pub async fn note_uses(&self) -> Result<(), Error> {
        Ok(self.store.note_key_uses(&self.keyring.take_uses()).await?)
    }

    /// Does something to its end, also if the caller hangs up meanwhile.
    pub(crate) async fn whole<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let done = self.tasks.spawn(work).await;
        done.unwrap_or_else(|panic| Err(Error::Internal(format!("a change of keys or tenants ended badly: {panic}"))))
    }

    /// Waits for changes under way; later ones are still made.
    pub(crate) async fn settle(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}
