//! First contact: what a restored guest is told between the hello and HTTP/2 (protocol 2).
//!
//! A guest that was just loaded runs cold code, and under emulation every new instruction is dear: the first request
//! through HTTP/2 and JSON costs more than all the rest of a create. So what must be said before the guest counts
//! (clock, entropy, identity, secret) is one plain message each way, as often as the host likes:
//!
//! ```text
//!   host  -> agent   kind(1) = 1   length(4)   time_unix_ns(8) entropy(64)   fields
//!   agent -> host    kind(1) = 2   length(4)   0  clock_error_us(8)  fields      done
//!                                              1  text                           refused, nothing was changed
//!   field            tag(1) length(4) bytes
//! ```
//!
//! Numbers are little-endian. HTTP/2 begins with `P`, a hello with `w`: whatever comes next is known by its first byte.
//! Unknown tags are skipped, so that fields can be added.

use std::collections::BTreeMap;
use std::fmt;

use crate::control::{ENTROPY, Invalid, Restore, RestoreAnswer};

/// First byte of what the host tells.
pub const ASK: u8 = 1;
/// First byte of the agent's answer.
pub const ANSWER: u8 = 2;
/// The protocol that has this message.
pub const SINCE: u8 = 2;
/// The longest message that is believed: a restore carries the sandbox's whole environment.
pub const LONGEST: usize = 1024 * 1024;

const HEAD: usize = 5;

const HOSTNAME: u8 = 1;
/// The environment is replaced; the variables follow.
const ENV: u8 = 2;
/// `NAME=value`.
const VARIABLE: u8 = 3;
const GENERATION: u8 = 4;
const SECRET: u8 = 5;
const USER: u8 = 6;
const WORKDIR: u8 = 7;
const FAILED_HOOK: u8 = 1;

/// Everything that a restore may change, in the form in which it is used.
#[derive(Clone, PartialEq, Eq)]
pub struct Repair {
    /// The host's clock when it sent this.
    pub time_unix_ns: u64,
    /// For the kernel's pool.
    pub entropy: [u8; ENTROPY],
    /// The name that the guest has from now on.
    pub hostname: Option<String>,
    /// Replaces the sandbox's whole environment.
    pub env: Option<BTreeMap<String, String>>,
    /// Clone hooks run when this differs from the last one.
    pub clone_generation: Option<u64>,
    /// What hellos are signed with after this.
    pub secret: Option<[u8; 32]>,
    /// Who runs a command that names nobody.
    pub default_user: Option<String>,
    /// Where a command runs that names no directory; empty means the user's home.
    pub default_workdir: Option<String>,
}

impl Repair {
    /// Clock and entropy only, which is what every restore needs.
    #[must_use]
    pub fn new(time_unix_ns: u64, entropy: [u8; ENTROPY]) -> Self {
        Self {
            time_unix_ns,
            entropy,
            hostname: None,
            env: None,
            clone_generation: None,
            secret: None,
            default_user: None,
            default_workdir: None,
        }
    }

    /// As the JSON route of protocol 1 takes it.
    #[must_use]
    pub fn to_restore(&self) -> Restore {
        let restore = Restore {
            hostname: self.hostname.clone(),
            env: self.env.clone(),
            clone_generation: self.clone_generation,
            default_user: self.default_user.clone(),
            default_workdir: self.default_workdir.clone(),
            ..Restore::new(self.time_unix_ns, &self.entropy)
        };
        match &self.secret {
            Some(secret) => restore.with_secret(secret),
            None => restore,
        }
    }

    /// The message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(512);
        out.extend_from_slice(&[ASK, 0, 0, 0, 0]);
        out.extend_from_slice(&self.time_unix_ns.to_le_bytes());
        out.extend_from_slice(&self.entropy);
        if let Some(name) = &self.hostname {
            field(&mut out, HOSTNAME, name.as_bytes());
        }
        if let Some(env) = &self.env {
            field(&mut out, ENV, &[]);
            for (name, value) in env {
                field(&mut out, VARIABLE, format!("{name}={value}").as_bytes());
            }
        }
        if let Some(generation) = self.clone_generation {
            field(&mut out, GENERATION, &generation.to_le_bytes());
        }
        if let Some(secret) = &self.secret {
            field(&mut out, SECRET, secret);
        }
        if let Some(user) = &self.default_user {
            field(&mut out, USER, user.as_bytes());
        }
        if let Some(workdir) = &self.default_workdir {
            field(&mut out, WORKDIR, workdir.as_bytes());
        }
        finish(out)
    }

    /// What the body of an [`ASK`] says.
    ///
    /// # Errors
    /// [`Garbled`]: nothing of it is to be done.
    pub fn decode(body: &[u8]) -> Result<Self, Garbled> {
        let (time, rest) = body.split_first_chunk::<8>().ok_or(Garbled)?;
        let (entropy, rest) = rest.split_first_chunk::<ENTROPY>().ok_or(Garbled)?;
        let mut repair = Self::new(u64::from_le_bytes(*time), *entropy);
        for piece in Fields(rest) {
            let (tag, bytes) = piece?;
            match tag {
                HOSTNAME => repair.hostname = Some(text(bytes)?),
                ENV => repair.env = Some(BTreeMap::new()),
                VARIABLE => {
                    let variable = text(bytes)?;
                    let (name, value) = variable.split_once('=').ok_or(Garbled)?;
                    let env = repair.env.as_mut().ok_or(Garbled)?;
                    env.insert(name.to_owned(), value.to_owned());
                }
                GENERATION => {
                    repair.clone_generation = Some(u64::from_le_bytes(bytes.try_into().map_err(|_| Garbled)?));
                }
                SECRET => repair.secret = Some(bytes.try_into().map_err(|_| Garbled)?),
                USER => repair.default_user = Some(text(bytes)?),
                WORKDIR => repair.default_workdir = Some(text(bytes)?),
                _ => {}
            }
        }
        Ok(repair)
    }
}

impl TryFrom<&Restore> for Repair {
    type Error = Invalid;

    fn try_from(restore: &Restore) -> Result<Self, Invalid> {
        Ok(Self {
            hostname: restore.hostname.clone(),
            env: restore.env.clone(),
            clone_generation: restore.clone_generation,
            secret: restore.new_secret()?,
            default_user: restore.default_user.clone(),
            default_workdir: restore.default_workdir.clone(),
            ..Self::new(restore.time_unix_ns, restore.entropy()?)
        })
    }
}

/// Without secret, entropy and the values of the environment: those must never reach a log.
impl fmt::Debug for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Repair")
            .field("time_unix_ns", &self.time_unix_ns)
            .field("hostname", &self.hostname)
            .field("env_keys", &self.env.as_ref().map(|env| env.keys().collect::<Vec<_>>()))
            .field("clone_generation", &self.clone_generation)
            .field("rotates_secret", &self.secret.is_some())
            .field("default_user", &self.default_user)
            .field("default_workdir", &self.default_workdir)
            .finish_non_exhaustive()
    }
}

/// What the agent says to an [`ASK`]: what it did, or why it did nothing.
pub type Outcome = Result<RestoreAnswer, String>;

/// The agent's message.
#[must_use]
pub fn encode_outcome(outcome: &Outcome) -> Vec<u8> {
    let mut out = vec![ANSWER, 0, 0, 0, 0];
    match outcome {
        Ok(answer) => {
            out.push(0);
            out.extend_from_slice(&answer.clock_error_us.to_le_bytes());
            for hook in &answer.failed_hooks {
                field(&mut out, FAILED_HOOK, hook.as_bytes());
            }
        }
        Err(why) => {
            out.push(1);
            out.extend_from_slice(why.as_bytes());
        }
    }
    finish(out)
}

/// What the body of an [`ANSWER`] says.
///
/// # Errors
/// [`Garbled`].
pub fn decode_outcome(body: &[u8]) -> Result<Outcome, Garbled> {
    match body.split_first() {
        Some((0, rest)) => {
            let (error, rest) = rest.split_first_chunk::<8>().ok_or(Garbled)?;
            let mut answer = RestoreAnswer { clock_error_us: i64::from_le_bytes(*error), failed_hooks: Vec::new() };
            for piece in Fields(rest) {
                if let (FAILED_HOOK, name) = piece? {
                    answer.failed_hooks.push(text(name)?);
                }
            }
            Ok(Ok(answer))
        }
        Some((1, why)) => Ok(Err(String::from_utf8_lossy(why).into_owned())),
        _ => Err(Garbled),
    }
}

/// The other side does not speak this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of the first contact makes no sense")]
pub struct Garbled;

/// A message that comes in pieces.
#[derive(Debug, Default)]
pub struct Reader {
    kept: Vec<u8>,
}

impl Reader {
    /// Takes bytes of a message that begins with `kind`; its body, and how many of these bytes belong to it, once it is
    /// whole. The reader is empty again then.
    ///
    /// # Errors
    /// [`Garbled`] if it is another message, or too long.
    pub fn feed(&mut self, kind: u8, bytes: &[u8]) -> Result<Option<(Vec<u8>, usize)>, Garbled> {
        let before = self.kept.len();
        self.kept.extend_from_slice(bytes);
        if self.kept.first().is_some_and(|first| *first != kind) {
            return Err(Garbled);
        }
        let Some(head) = self.kept.first_chunk::<HEAD>() else { return Ok(None) };
        let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if length > LONGEST {
            return Err(Garbled);
        }
        if self.kept.len() < HEAD + length {
            return Ok(None);
        }
        let body = self.kept[HEAD..HEAD + length].to_vec();
        self.kept.clear();
        Ok(Some((body, HEAD + length - before)))
    }
}

fn field(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    out.push(tag);
    out.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Puts the length where it belongs.
fn finish(mut out: Vec<u8>) -> Vec<u8> {
    let length = u32::try_from(out.len() - HEAD).unwrap_or(u32::MAX);
    out[1..HEAD].copy_from_slice(&length.to_le_bytes());
    out
}

fn text(bytes: &[u8]) -> Result<String, Garbled> {
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| Garbled)
}

struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u8, &'a [u8]), Garbled>;

    fn next(&mut self) -> Option<Self::Item> {
        let (head, rest) = match self.0.split_first_chunk::<HEAD>() {
            Some(split) => split,
            None if self.0.is_empty() => return None,
            None => {
                self.0 = &[];
                return Some(Err(Garbled));
            }
        };
        let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let Some((bytes, rest)) = rest.split_at_checked(length) else {
            self.0 = &[];
            return Some(Err(Garbled));
        };
        self.0 = rest;
        Some(Ok((head[0], bytes)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        fn repairs()(
            time: u64, entropy: [u8; 32], hostname: Option<String>, clone_generation: Option<u64>, secret: Option<[u8; 32]>,
            env in proptest::option::of(proptest::collection::btree_map("[A-Z_]{1,8}", ".*", 0..8)),
            default_user: Option<String>, default_workdir: Option<String>,
        ) -> Repair {
            let mut whole = [0; ENTROPY];
            whole[..32].copy_from_slice(&entropy);
            Repair { hostname, env, clone_generation, secret, default_user, default_workdir, ..Repair::new(time, whole) }
        }
    }

    proptest! {
        #[test]
        fn a_repair_arrives_as_it_was_sent(repair in repairs(), cut in any::<usize>(), behind in any::<Vec<u8>>()) {
            let message = repair.encode();
            let cut = cut % message.len();
            let mut reader = Reader::default();
            prop_assert_eq!(reader.feed(ASK, &message[..cut]), Ok(None));
            let rest = [&message[cut..], &behind].concat();
            let (body, used) = reader.feed(ASK, &rest).expect("sound").expect("whole");
            prop_assert_eq!(used, message.len() - cut);
            prop_assert_eq!(Repair::decode(&body), Ok(repair.clone()));
            prop_assert_eq!(Repair::try_from(&repair.to_restore()), Ok(repair));
        }

        #[test]
        fn an_outcome_arrives_as_it_was_sent(clock_error_us: i64, failed_hooks: Vec<String>, why: String) {
            for outcome in [Ok(RestoreAnswer { clock_error_us, failed_hooks }), Err(why)] {
                let message = encode_outcome(&outcome);
                let (body, used) = Reader::default().feed(ANSWER, &message).expect("sound").expect("whole");
                prop_assert_eq!(used, message.len());
                prop_assert_eq!(decode_outcome(&body), Ok(outcome));
            }
        }

        #[test]
        fn any_bytes_are_survived(bytes: Vec<u8>, kind in 0u8..3) {
            let _ = Repair::decode(&bytes);
            let _ = decode_outcome(&bytes);
            let mut reader = Reader::default();
            if let Ok(Some((body, used))) = reader.feed(kind, &bytes) {
                prop_assert!(used <= bytes.len() && body.len() < bytes.len());
            }
        }
    }

    #[test]
    fn lengths_are_bounded_before_anything_is_kept_for_them() {
        let mut long = vec![ASK];
        long.extend_from_slice(&(u32::try_from(LONGEST).expect("fits") + 1).to_le_bytes());
        assert_eq!(Reader::default().feed(ASK, &long), Err(Garbled));
        assert_eq!(Reader::default().feed(ASK, b"PRI * HTTP/2.0"), Err(Garbled));
        let secret = Repair { secret: Some([9; 32]), ..Repair::new(1, [7; ENTROPY]) };
        assert!(!format!("{secret:?}").contains("9, 9"));
        let mut unknown = secret.encode();
        field(&mut unknown, 200, b"from the future");
        assert_eq!(Repair::decode(&unknown[HEAD..]), Ok(secret));
    }
}
