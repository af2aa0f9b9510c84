//! Whether a connection may be, at its beginning, at each request, and when the rules change.

use std::net::SocketAddrV4;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::watch;
use wakeful_model::EgressVerdict;

use super::Failure;
use super::refuse::Refusal;
use crate::gatekeeper::Shared;
use crate::policy::{Nameless, Policy, Via};
use crate::refusals::What;
use crate::sniff::{Protocol, Sniffed};

/// More hosts than this on one connection are nobody's habit.
const MOST_NAMES: usize = 16;

pub(super) struct Connection<'a> {
    pub(super) shared: &'a Shared,
    pub(super) destination: SocketAddrV4,
    /// The names that the address was given for when it began; the book may forget them before it ends.
    at: Vec<String>,
    /// The names that it was let through for, and by what; none if it stands upon its address.
    names: Mutex<Vec<(String, Via)>>,
}

impl<'a> Connection<'a> {
    pub(super) fn new(shared: &'a Shared, destination: SocketAddrV4) -> Self {
        let at = shared.book.names(*destination.ip(), Instant::now());
        Self { shared, destination, at, names: Mutex::default() }
    }

    /// Whether its address alone allows it; `false` if a name could matter.
    pub(super) fn by_address(&self) -> Result<bool, Failure> {
        match self.shared.policy().by_address(*self.destination.ip(), self.destination.port()) {
            Some(EgressVerdict::Allow) => Ok(true),
            Some(EgressVerdict::Deny) => Err(Failure::Refused(Refusal::protocol(self.destination))),
            None => Ok(false),
        }
    }

    /// Whether it is allowed without a name on the wire.
    pub(super) fn without_name(&self) -> Result<(), Failure> {
        if self.nameless(Nameless::ByNature, &self.shared.policy()) {
            Ok(())
        } else {
            Err(Failure::Refused(Refusal::protocol(self.destination)))
        }
    }

    fn nameless(&self, why: Nameless, policy: &Policy) -> bool {
        policy.by_port(why, &self.at, *self.destination.ip(), self.destination.port())
    }

    /// Whether what was sniffed may go on.
    pub(super) fn check(&self, sniffed: &Sniffed) -> Result<(), Failure> {
        match sniffed {
            Sniffed::Tls(hello)
                if (hello.hides || hello.name.is_none())
                    && self.nameless(Nameless::ByChoice, &self.shared.policy()) =>
            {
                Ok(())
            }
            Sniffed::Tls(hello) if hello.hides => {
                let name = hello.name.as_deref().unwrap_or_default();
                Err(Failure::Refused(Refusal::named(name, What::Hidden, Protocol::Tls, self.destination)))
            }
            Sniffed::Tls(hello) => match &hello.name {
                Some(name) => self.name(name, Protocol::Tls),
                None => Err(Failure::Refused(Refusal::broken(self.destination, Protocol::Tls, "there is no name"))),
            },
            Sniffed::Http(head) => self.name(&head.host, Protocol::Http),
            Sniffed::Bad(protocol, why) => Err(Failure::Refused(Refusal::broken(self.destination, *protocol, why))),
            Sniffed::Other | Sniffed::NeedMore => self.without_name(),
        }
    }

    /// Whether this name may be reached here. One that was allowed once on this connection keeps its address.
    pub(super) fn name(&self, name: &str, protocol: Protocol) -> Result<(), Failure> {
        let (address, port) = (*self.destination.ip(), self.destination.port());
        let refuse = |what| Err(Failure::Refused(Refusal::named(name, what, protocol, self.destination)));
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let via = match self.shared.policy().by_name(name, address, port) {
            Some(via) => via,
            None if protocol == Protocol::Tls => return refuse(What::Sni),
            None => return refuse(What::Host),
        };
        let known = names.iter().any(|(known, by)| known == name && (*by == Via::Name || via == Via::Address));
        if !known {
            if via == Via::Name && !self.shared.book.knows(address, name, Instant::now()) {
                return refuse(What::Address);
            }
            names.retain(|(known, _)| known != name);
            if names.len() >= MOST_NAMES {
                return refuse(What::Host);
            }
            names.push((name.to_owned(), via));
        }
        Ok(())
    }

    /// Returns when a change of rules no longer allows the connection.
    pub(super) async fn disallowed(&self, changes: &mut watch::Receiver<Arc<Policy>>) {
        loop {
            let policy = changes.borrow_and_update().clone();
            if !self.still_allowed(&policy) {
                return;
            }
            if changes.changed().await.is_err() {
                // The gatekeeper is gone, and its own end cuts us.
                std::future::pending::<()>().await;
            }
        }
    }

    fn still_allowed(&self, policy: &Policy) -> bool {
        let (address, port) = (*self.destination.ip(), self.destination.port());
        if let Some(verdict) = policy.by_address(address, port) {
            return verdict == EgressVerdict::Allow;
        }
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if names.is_empty() {
            return self.nameless(Nameless::ByNature, policy);
        }
        names.iter().all(|(name, via)| match policy.by_name(name, address, port) {
            Some(Via::Address) => true,
            Some(Via::Name) => *via == Via::Name || self.shared.book.knows(address, name, Instant::now()),
            None => false,
        })
    }
}
