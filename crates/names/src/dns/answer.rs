//! What a question is answered with.

use std::io;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::opt::EdnsOption;
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};

use crate::gatekeeper::Shared;
use crate::refusals::What;
use crate::sniff::clean_name;

/// What fits into one packet nearly everywhere.
const PAYLOAD: u16 = 1232;
const SMALLEST_PAYLOAD: u16 = 512;
/// More addresses than this in one answer are cut off.
const MOST_ADDRESSES: usize = 32;
const SHORTEST_ADMISSION: Duration = Duration::from_mins(1);
/// For connections at the last moment; and the next answer, whose lifetime is rounded, needs no new admission.
const GRACE: Duration = Duration::from_secs(10);
const LONGEST_TTL: u32 = 3600;
/// For the packet filter to open an address.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

const EXTENDED_ERROR: u16 = 15;
const BLOCKED: u16 = 15;

/// An answer, and how large it may be.
pub(super) struct Answer {
    pub(super) message: Message,
    limit: u16,
}

impl Answer {
    pub(super) fn for_udp(&self) -> Option<Vec<u8>> {
        self.encode(usize::from(self.limit))
    }

    /// Without its records and marked as cut if they do not fit.
    pub(super) fn encode(&self, limit: usize) -> Option<Vec<u8>> {
        let bytes = self.message.to_vec().ok().filter(|bytes| bytes.len() <= limit);
        bytes.or_else(|| {
            let mut cut = self.message.clone();
            cut.answers.clear();
            cut.authorities.clear();
            cut.additionals.clear();
            cut.metadata.truncation = true;
            cut.to_vec().ok()
        })
    }
}

/// Answers a packet. `None` if it deserves no answer.
pub(super) async fn to(shared: &Shared, packet: &[u8]) -> Option<Answer> {
    let Ok(asked) = Message::from_vec(packet) else { return unreadable(packet) };
    if asked.metadata.message_type != MessageType::Query {
        return None;
    }
    let mut reply = Message::response(asked.metadata.id, asked.metadata.op_code);
    reply.metadata.recursion_desired = asked.metadata.recursion_desired;
    reply.metadata.recursion_available = true;
    let mut limit = SMALLEST_PAYLOAD;
    if let Some(edns) = &asked.edns {
        limit = edns.max_payload().clamp(SMALLEST_PAYLOAD, PAYLOAD);
        let mut ours = Edns::new();
        ours.set_max_payload(PAYLOAD);
        reply.set_edns(ours);
    }
    let code = fill(shared, &asked, &mut reply).await;
    reply.metadata.response_code = code;
    if code == ResponseCode::Refused
        && let Some(edns) = &mut reply.edns
    {
        edns.options_mut().insert(EdnsOption::Unknown(EXTENDED_ERROR, BLOCKED.to_be_bytes().to_vec()));
    }
    Some(Answer { message: reply, limit })
}

/// A broken question gets its number back, an answer (broken or not) nothing: two resolvers must not talk in circles.
fn unreadable(packet: &[u8]) -> Option<Answer> {
    let [high, low, flags, ..] = packet else { return None };
    if packet.len() < 12 || flags & 0x80 != 0 {
        return None;
    }
    let id = u16::from_be_bytes([*high, *low]);
    let message = Message::error_msg(id, OpCode::Query, ResponseCode::FormErr);
    Some(Answer { message, limit: SMALLEST_PAYLOAD })
}

async fn fill(shared: &Shared, asked: &Message, reply: &mut Message) -> ResponseCode {
    if asked.metadata.op_code != OpCode::Query {
        return ResponseCode::NotImp;
    }
    let [query] = asked.queries.as_slice() else { return ResponseCode::FormErr };
    reply.add_query(query.clone());
    if !asked.answers.is_empty() || !asked.authorities.is_empty() {
        return ResponseCode::FormErr;
    }
    if asked.edns.as_ref().is_some_and(|edns| edns.version() > 0) {
        return ResponseCode::BADVERS;
    }
    let name = plain(query.name());
    let policy = shared.policy();
    let allowed = match &name {
        Some(name) => policy.may_ask(name),
        // Bytes that no host name has could only match a rule by accident.
        None => !policy.listed(),
    };
    let refuse = || {
        shared.refusals.note(name.as_deref().unwrap_or(&query.name().to_ascii()), What::Dns);
        ResponseCode::Refused
    };
    if !allowed || query.query_class() != DNSClass::IN {
        return refuse();
    }
    match query.query_type() {
        RecordType::A => {}
        // Guests have no IPv6.
        RecordType::AAAA => return ResponseCode::NoError,
        // They would hand out addresses past the filter, and keys to hide a name with.
        RecordType::HTTPS | RecordType::SVCB if policy.listed() => return ResponseCode::NoError,
        RecordType::AXFR | RecordType::IXFR => return refuse(),
        _ if policy.listed() => return refuse(),
        _ => {}
    }
    let found = match shared.upstream.ask(query).await {
        Ok(found) => found,
        Err(e) => {
            tracing::debug!(error = %e, "no upstream resolver answered");
            return ResponseCode::ServFail;
        }
    };
    match (name, query.query_type()) {
        (Some(name), RecordType::A) => addresses(shared, query, &name, found, reply).await,
        _ => {
            reply.answers = found.answers;
            reply.authorities = found.authorities;
            reply.additionals = found.additionals;
            found.metadata.response_code
        }
    }
}

/// Takes over the addresses of an answer, opens them, and writes down whose they are.
pub(super) async fn addresses(
    shared: &Shared,
    query: &Query,
    name: &str,
    found: Message,
    reply: &mut Message,
) -> ResponseCode {
    // The rules may have changed while the question was under way.
    let policy = shared.policy();
    if !policy.may_ask(name) {
        shared.refusals.note(name, What::Dns);
        return ResponseCode::Refused;
    }
    let code = found.metadata.response_code;
    let mut dropped = false;
    let mut given: Vec<(Ipv4Addr, u32)> = Vec::new();
    for mut record in chain(query.name(), found.answers) {
        record.ttl = record.ttl.min(LONGEST_TTL);
        if let RData::A(address) = &record.data {
            if policy.listed() && !policy.may_learn(name, address.0) {
                dropped = true;
                continue;
            }
            if given.len() >= MOST_ADDRESSES {
                continue;
            }
            given.push((address.0, record.ttl));
        }
        reply.add_answer(record);
    }
    if dropped {
        shared.refusals.note(name, What::Address);
    }
    for (address, ttl) in &given {
        let admitted = if policy.listed() {
            match admit(shared, name, *address, *ttl).await {
                Ok(until) => Some(until),
                Err(e) => {
                    tracing::warn!(%address, error = %e, "could not admit an address");
                    reply.answers.clear();
                    return ResponseCode::ServFail;
                }
            }
        } else {
            None
        };
        shared.book.learn(*address, name, admitted, Instant::now());
    }
    if given.is_empty() {
        // Says how long there is nothing.
        let nothing = found.authorities.into_iter().filter(|record| record.record_type() == RecordType::SOA);
        reply.authorities = nothing.take(1).collect();
    }
    code
}

async fn admit(shared: &Shared, name: &str, address: Ipv4Addr, ttl: u32) -> io::Result<Instant> {
    let lifetime = Duration::from_secs(u64::from(ttl)).max(SHORTEST_ADMISSION);
    // Taken before the call, so that we never believe in an admission that is over.
    let now = Instant::now();
    if shared.book.admitted(address, now + lifetime) {
        return Ok(now + lifetime);
    }
    tokio::time::timeout(LONGEST_WAIT, shared.gate.admit(name, address, lifetime + GRACE)).await??;
    Ok(now + lifetime + GRACE)
}

/// The aliases that lead from a name to addresses, and the addresses; nothing that came along.
fn chain(name: &Name, answers: Vec<Record>) -> Vec<Record> {
    let mut names = vec![name.clone()];
    // Servers need not send aliases in order, so look until nothing new is found.
    loop {
        let before = names.len();
        for record in &answers {
            if let RData::CNAME(alias) = &record.data
                && names.contains(&record.name)
                && !names.contains(&alias.0)
                && names.len() < 16
            {
                names.push(alias.0.clone());
            }
        }
        if names.len() == before {
            break;
        }
    }
    let wanted = |record: &Record| {
        record.dns_class == DNSClass::IN
            && names.contains(&record.name)
            && matches!(record.data, RData::A(_) | RData::CNAME(_))
    };
    answers.into_iter().filter(wanted).collect()
}

/// A name of labels that hosts have. Dots inside a label would match rules that they should not.
pub(super) fn plain(name: &Name) -> Option<String> {
    let labels: Vec<&[u8]> = name.iter().collect();
    let no_dots = labels.iter().all(|label| !label.contains(&b'.'));
    clean_name(&labels.join(&b'.')).filter(|_| no_dots)
}
