//! The whole surface over real HTTP, with a real lifecycle and store, on a host whose engines cannot be used: everything
//! up to the guest. What needs a guest is tested against a whole daemon.

mod server;

mod callers;
mod events;
mod idempotency;
mod keys;
mod meta;
mod raw;
mod sandboxes;
mod snapshots;
mod templates;
mod tenants;
