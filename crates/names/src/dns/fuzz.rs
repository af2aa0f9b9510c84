//! A hostile guest's question, and a hostile resolver's answer to it.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hickory_proto::op::{Message, MessageType};
use hickory_proto::rr::{RData, RecordType};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use wakeful_model::{Destination, EgressVerdict, Rule, Rules};

use super::{LONGEST_TCP_ANSWER, Upstream, answer};
use crate::book::Book;
use crate::gatekeeper::{Gate, Limits, Shared};
use crate::policy::Policy;
use crate::refusals::Refusals;

/// Largest answer in one packet.
const PACKET: usize = 1232;

/// Remembers what it has opened.
#[derive(Default)]
struct Opened(Mutex<Vec<Ipv4Addr>>);

#[async_trait::async_trait]
impl Gate for Opened {
    async fn admit(&self, _name: &str, address: Ipv4Addr, _lifetime: Duration) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(address);
        Ok(())
    }

    fn socket(&self) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

fn shared(gate: Arc<Opened>) -> Shared {
    let allow =
        Rule { verdict: EgressVerdict::Allow, to: Destination::Name("*.allowed.example".into()), ports: Vec::new() };
    let policy = Policy::new(Rules { list: vec![allow], otherwise: EgressVerdict::Deny });
    Shared {
        policy: watch::Sender::new(Arc::new(policy)),
        gate,
        // Nobody to ask: what would be answered is given below.
        upstream: Arc::new(Upstream::new(Vec::new(), Duration::from_secs(1))),
        book: Book::new(Duration::from_secs(60)),
        refusals: Refusals::default(),
        limits: Limits::default(),
        tasks: TaskTracker::new(),
        end: CancellationToken::new(),
    }
}

/// A question and what the resolver beyond says to it, with the question's length before both in two bytes.
///
/// # Panics
/// If an answer does not fit its question or its packet, or gives out an address that was not opened for an allowed name.
pub fn dns(bytes: &[u8]) {
    let [high, low, rest @ ..] = bytes else { return };
    let (question, found) = rest.split_at(rest.len().min(usize::from(*high) * 256 + usize::from(*low)));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let gate = Arc::new(Opened::default());
        let shared = shared(Arc::clone(&gate));
        if let Some(answer) = answer::to(&shared, question).await {
            assert!(question.len() >= 12 && question[2] & 0x80 == 0, "an answer was answered");
            assert!(answer.message.answers.is_empty(), "an answer out of nothing");
            for bytes in [answer.for_udp(), answer.encode(LONGEST_TCP_ANSWER)].into_iter().flatten() {
                assert!(bytes.len() <= PACKET && bytes[..2] == question[..2] && bytes[2] & 0x80 != 0);
                Message::from_vec(&bytes).expect("what we say can be read");
            }
        }
        let (Ok(asked), Ok(found)) = (Message::from_vec(question), Message::from_vec(found)) else { return };
        let [query] = asked.queries.as_slice() else { return };
        let Some(name) = answer::plain(query.name()).filter(|_| query.query_type() == RecordType::A) else { return };
        let mut reply = Message::response(0, asked.metadata.op_code);
        answer::addresses(&shared, query, &name, found, &mut reply).await;
        let opened = gate.0.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(name.ends_with(".allowed.example") || reply.answers.is_empty(), "{name} was not to be asked for");
        assert!(opened.len() <= 32 && reply.metadata.message_type == MessageType::Response);
        for record in &reply.answers {
            match &record.data {
                RData::A(address) => {
                    assert!(opened.contains(&address.0) && !address.0.is_private(), "{address} was given out");
                    assert!(record.ttl <= 3600, "for longer than it is open");
                }
                RData::CNAME(_) => {}
                other => panic!("{other:?} came along"),
            }
        }
    });
}
