//! How browsers come in: a ticket in an address, good once and soon, becomes a cookie.
//!
//! A browser cannot be told to send a key, and a key in an address would end up in histories and logs. So whoever has a key
//! gets a ticket for one port; the first to show it gets the cookie of that port. Tickets are in memory only. Cookies are not
//! kept at all: they are signed, for one port of one sandbox, and name the key that they came from, so that they end with it.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use wakeful_model::SandboxId;

/// The cookie's name.
pub const COOKIE: &str = "wakeful_preview";
/// How long a ticket is good.
const TICKET: Duration = Duration::from_secs(300);
/// How long a cookie is good.
const LASTS: Duration = Duration::from_secs(12 * 3600);
/// Most tickets that are out; then the oldest are worth nothing.
const MOST: usize = 4096;

/// What somebody may come in for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The sandbox.
    pub id: SandboxId,
    /// The port.
    pub port: u16,
    /// Whose word it is: a key's id, or another word without dots.
    pub by: String,
}

/// Tickets and cookies.
pub struct Sessions {
    key: [u8; 32],
    tickets: Mutex<HashMap<String, (Grant, u64)>>,
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl Sessions {
    /// Signs with a key that is derived from `secret`; without one, cookies end with the daemon.
    ///
    /// # Panics
    /// If the system has no entropy.
    #[must_use]
    pub fn new(secret: Option<&[u8]>) -> Self {
        let mut random = [0; 32];
        let secret = secret.unwrap_or_else(|| {
            getrandom::fill(&mut random).expect("the system has entropy");
            &random
        });
        let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("a key of any length");
        mac.update(b"wakeful preview cookies");
        Self { key: mac.finalize().into_bytes().into(), tickets: Mutex::default() }
    }

    /// A ticket, and the second since 1970 at which it ends.
    ///
    /// # Panics
    /// If the system has no entropy.
    pub fn ticket(&self, grant: Grant) -> (String, u64) {
        let mut random = [0; 24];
        getrandom::fill(&mut random).expect("the system has entropy");
        let (ticket, end) = (hex(&random), now() + TICKET.as_secs());
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        let now = now();
        tickets.retain(|_, (_, end)| *end > now);
        if tickets.len() >= MOST {
            let oldest = tickets.iter().min_by_key(|(_, (_, end))| *end).map(|(ticket, _)| ticket.clone());
            oldest.map(|ticket| tickets.remove(&ticket));
        }
        tickets.insert(ticket.clone(), (grant, end));
        (ticket, end)
    }

    /// The value of the cookie for whoever shows a ticket of this port first, and how many seconds it is good.
    pub fn redeem(&self, ticket: &str, id: &SandboxId, port: u16) -> Option<(String, u64)> {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = tickets.get(ticket).is_some_and(|(grant, _)| grant.id == *id && grant.port == port);
        let (grant, end) = if fits { tickets.remove(ticket)? } else { return None };
        (end > now()).then(|| (self.cookie(&grant, now() + LASTS.as_secs()), LASTS.as_secs()))
    }

    fn mac(&self, grant: &Grant, end: u64) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).expect("a key of any length");
        mac.update(format!("{}\n{}\n{}\n{end}", grant.id, grant.port, grant.by).as_bytes());
        mac
    }

    pub(crate) fn cookie(&self, grant: &Grant, end: u64) -> String {
        format!("{end}.{}.{}", grant.by, hex(&self.mac(grant, end).finalize().into_bytes()))
    }

    /// Whose word a cookie for this port is; `None` if it is none, or too old.
    #[must_use]
    pub fn check(&self, cookie: &str, id: &SandboxId, port: u16) -> Option<Grant> {
        let mut parts = cookie.splitn(3, '.');
        let (end, by, signature) = (parts.next()?, parts.next()?, parts.next()?);
        let end: u64 = end.parse().ok()?;
        let grant = Grant { id: id.clone(), port, by: by.to_owned() };
        let signature = unhex(signature)?;
        self.mac(&grant, end).verify_slice(&signature).ok()?;
        (end > now()).then_some(grant)
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || text.len() != 64 {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant() -> Grant {
        Grant { id: SandboxId::random(), port: 3000, by: "key_x".into() }
    }

    #[test]
    fn a_ticket_is_good_once_and_for_its_port() {
        let (sessions, grant) = (Sessions::new(None), grant());
        let (ticket, _) = sessions.ticket(grant.clone());
        assert_eq!(sessions.redeem(&ticket, &grant.id, 3001), None);
        assert_eq!(sessions.redeem(&ticket, &SandboxId::random(), 3000), None);
        let (cookie, seconds) = sessions.redeem(&ticket, &grant.id, 3000).unwrap();
        assert_eq!(seconds, 12 * 3600);
        assert_eq!(sessions.redeem(&ticket, &grant.id, 3000), None);
        assert_eq!(sessions.check(&cookie, &grant.id, 3000), Some(grant));
    }

    #[test]
    fn cookies_are_signed_and_end() {
        let (sessions, grant) = (Sessions::new(Some(b"secret")), grant());
        let good = sessions.cookie(&grant, now() + 60);
        assert_eq!(
            Sessions::new(Some(b"secret")).check(&good, &grant.id, 3000),
            Some(grant.clone()),
            "after a restart"
        );
        assert_eq!(Sessions::new(Some(b"other")).check(&good, &grant.id, 3000), None);
        assert_eq!(sessions.check(&good, &grant.id, 3001), None);
        assert_eq!(sessions.check(&good, &SandboxId::random(), 3000), None);
        assert_eq!(sessions.check(&good.replace("key_x", "admin"), &grant.id, 3000), None);
        assert_eq!(sessions.check(&sessions.cookie(&grant, now() - 1), &grant.id, 3000), None);
        for bad in ["", ".", "..", "x.y.z", &good[..good.len() - 1], &format!("{good}0"), "9999999999.key_x."] {
            assert_eq!(sessions.check(bad, &grant.id, 3000), None, "{bad}");
        }
    }
}
