//! What the resolver answers, and what it keeps from leaving.

use std::time::Duration;

use hickory_proto::op::{Edns, Message, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RData, RecordType};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use wakeful_names::What;

use crate::house::{ALONE, DNS, House, SHARED, addresses, allow, ask, client, code, exchange, inside, open, question};

#[test]
fn a_listed_name_is_resolved_and_admitted_first() {
    inside(|| async {
        let house = House::new(allow(&["*.example.org"], &[])).await;
        let answer = ask("A.Example.org.", RecordType::A).await;
        assert_eq!((answer.metadata.response_code, addresses(&answer)), (ResponseCode::NoError, vec![SHARED]));
        assert_eq!(answer.answers[0].ttl, 120);
        assert_eq!(*house.owner.admitted.lock().expect("is sound"), [(SHARED, Duration::from_secs(130))]);

        let alias = ask("alias.example.org.", RecordType::A).await;
        assert_eq!(addresses(&alias), [SHARED]);
        assert!(alias.answers.iter().any(|record| matches!(record.data, RData::CNAME(_))));

        assert_eq!(code("nobody.example.org.", RecordType::A).await, ResponseCode::ServFail, "dnsmasq refuses it");
        assert_eq!(house.owner.admitted.lock().expect("is sound").len(), 1, "the alias needs no second admission");
        assert!(house.asked_upstream("alias.example.org").await);
        *house.owner.admits.lock().expect("is sound") = false;
        let answer = ask("c.example.org.", RecordType::A).await;
        assert_eq!((answer.metadata.response_code, answer.answers.len()), (ResponseCode::ServFail, 0));
    });
}

#[test]
fn nothing_else_leaves() {
    inside(|| async {
        let house = House::new(allow(&["*.example.org", "a.test"], &[])).await;
        for name in ["other.net.", "example.org.", "x.a.test.", "dGhpcyBpcyBhIHNlY3JldA.tunnel.net.", "org.", "."] {
            assert_eq!(code(name, RecordType::A).await, ResponseCode::Refused, "{name}");
        }
        // One label with a dot in it, which reads like a name below the wildcard.
        let odd = Name::from_labels([&b"x.example"[..], b"org"]).expect("a name");
        let other = Name::from_labels([&b"x.example.org"[..]]).expect("a name");
        for name in [odd, other] {
            let mut message = Message::query();
            message.add_query(Query::query(name, RecordType::A));
            let answer = exchange(&message.to_vec().expect("encodes")).await.expect("is answered");
            assert_eq!(answer.metadata.response_code, ResponseCode::Refused);
        }
        for kind in [RecordType::TXT, RecordType::NULL, RecordType::ANY, RecordType::MX, RecordType::CNAME] {
            assert_eq!(code("secret.example.org.", kind).await, ResponseCode::Refused, "{kind}");
        }
        for kind in [RecordType::AAAA, RecordType::HTTPS, RecordType::SVCB] {
            let answer = ask("six.example.org.", kind).await;
            assert_eq!((answer.metadata.response_code, answer.answers.len()), (ResponseCode::NoError, 0), "{kind}");
        }
        let mut chaos = question("a.example.org.", RecordType::A);
        chaos.queries[0].set_query_class(DNSClass::CH);
        let answer = exchange(&chaos.to_vec().expect("encodes")).await.expect("is answered");
        assert_eq!(answer.metadata.response_code, ResponseCode::Refused);

        for text in ["other.net", "tunnel", "secret", "six", "a.test", "example.org from"] {
            assert!(!house.asked_upstream(text).await, "{text}");
        }
        assert!(house.refused(What::Dns).contains(&"secret.example.org".into()));
        assert_eq!(house.owner.admitted.lock().expect("is sound").len(), 0);

        let (_, said) = client("dig", &["@127.0.0.1", "-p", "5301", "tunnel.net", "TXT"]).await;
        assert!(said.contains("status: REFUSED") && said.contains("EDE: 15 (Blocked)"), "{said}");
    });
}

#[test]
fn an_empty_list_refuses_all() {
    inside(|| async {
        let house = House::new(allow(&[], &[])).await;
        assert_eq!(code("a.example.org.", RecordType::A).await, ResponseCode::Refused);
        assert!(!house.asked_upstream("a.example.org").await);
    });
}

#[test]
fn private_addresses_are_dropped_from_answers() {
    inside(|| async {
        let house = House::new(allow(&["*.example.org"], &[])).await;
        let answer = ask("inner.example.org.", RecordType::A).await;
        assert_eq!((answer.metadata.response_code, answer.answers.len()), (ResponseCode::NoError, 0));
        assert_eq!(house.resolve("mixed.example.org.").await, [ALONE]);
        assert_eq!(house.owner.admitted.lock().expect("is sound").len(), 1);
        assert_eq!(house.refused(What::Address).len(), 2);

        let mut rules = allow(&["*.example.org"], &[]);
        let private = wakeful_model::Destination::Range("10.0.0.0/8".parse().expect("a range"));
        rules.list.push(wakeful_model::Rule { to: private, ..rules.list[0].clone() });
        house.keeper.change(rules);
        assert_eq!(house.resolve("inner.example.org.").await.len(), 1);
    });
}

#[test]
fn without_a_list_all_kinds_are_asked_for() {
    inside(|| async {
        let house = House::new(open()).await;
        assert_eq!(house.resolve("other.net.").await, [SHARED]);
        assert_eq!(ask("example.org.", RecordType::MX).await.answers.len(), 1);
        assert_eq!(ask("example.org.", RecordType::TXT).await.answers.len(), 1);
        let six = ask("six.example.org.", RecordType::AAAA).await;
        assert_eq!((six.metadata.response_code, six.answers.len()), (ResponseCode::NoError, 0));
        assert_eq!(code("example.org.", RecordType::AXFR).await, ResponseCode::Refused);
        assert_eq!(house.owner.admitted.lock().expect("is sound").len(), 0);
    });
}

#[test]
fn long_answers_are_cut_for_datagrams_and_whole_by_tcp() {
    inside(|| async {
        let _house = House::new(open()).await;
        let mut asked = question("many.example.org.", RecordType::A);
        let answer = exchange(&asked.to_vec().expect("encodes")).await.expect("is answered");
        assert!(answer.metadata.truncation && answer.answers.is_empty());
        // Claims of great buffers are not believed.
        let mut edns = Edns::new();
        edns.set_max_payload(60000);
        asked.set_edns(edns);
        let answer = exchange(&asked.to_vec().expect("encodes")).await.expect("is answered");
        assert!(answer.to_vec().expect("encodes").len() <= 1232);

        let (_, said) = client("dig", &["@127.0.0.1", "-p", "5301", "+tcp", "+short", "many.example.org"]).await;
        assert_eq!(said.lines().count(), 32, "{said}");
    });
}

#[test]
fn broken_questions_are_answered_as_such_or_not_at_all() {
    inside(|| async {
        let _house = House::new(allow(&["a.example.org"], &[])).await;
        let sound = question("a.example.org.", RecordType::A);
        let coded = async |message: &Message| {
            exchange(&message.to_vec().expect("encodes")).await.map(|answer| answer.metadata.response_code)
        };
        let mut two = sound.clone();
        two.add_query(sound.queries[0].clone());
        assert_eq!(coded(&two).await, Some(ResponseCode::FormErr));
        let mut none = sound.clone();
        none.queries.clear();
        assert_eq!(coded(&none).await, Some(ResponseCode::FormErr));
        let mut update = sound.clone();
        update.metadata.op_code = OpCode::Update;
        assert!(matches!(coded(&update).await, Some(ResponseCode::NotImp | ResponseCode::FormErr)));
        let mut edns = Edns::new();
        edns.set_version(7);
        let mut newer = sound.clone();
        newer.set_edns(edns);
        let said = coded(&newer).await.map(u16::from);
        assert_eq!(said, Some(16));

        let mut cut = sound.to_vec().expect("encodes");
        cut.truncate(20);
        let answer = exchange(&cut).await.expect("is answered");
        assert_eq!((answer.metadata.id, answer.metadata.response_code), (sound.metadata.id, ResponseCode::FormErr));
        // A name that points at itself.
        let mut circle = sound.to_vec().expect("encodes")[..12].to_vec();
        circle.extend([0xc0, 12, 0, 1, 0, 1]);
        assert_eq!(exchange(&circle).await.map(|a| a.metadata.response_code), Some(ResponseCode::FormErr));

        let mut answer = sound.clone().into_response().to_vec().expect("encodes");
        assert!(exchange(&answer).await.is_none(), "answers are not answered");
        answer.truncate(20);
        assert!(exchange(&answer).await.is_none());
        assert_eq!(coded(&sound).await, Some(ResponseCode::NoError), "and it goes on");
    });
}

#[test]
fn connections_to_the_resolver_are_bounded() {
    inside(|| async {
        let _house = House::new(allow(&["a.example.org"], &[])).await;
        let mut silent = Vec::new();
        for _ in 0..16 {
            silent.push(TcpStream::connect(DNS).await.expect("connects"));
        }
        let mut late = TcpStream::connect(DNS).await.expect("the kernel accepts");
        assert!(late.read_u8().await.is_err(), "there is no seat");
        for mut stream in silent {
            assert!(stream.read_u8().await.is_err(), "silence has an end");
        }
        let mut stream = TcpStream::connect(DNS).await.expect("connects");
        let bytes = question("a.example.org.", RecordType::A).to_vec().expect("encodes");
        for _ in 0..2 {
            stream.write_u16(bytes.len() as u16).await.expect("writes");
            for byte in &bytes {
                stream.write_u8(*byte).await.expect("writes");
            }
            let length = stream.read_u16().await.expect("is answered");
            let mut answer = vec![0; usize::from(length)];
            stream.read_exact(&mut answer).await.expect("is whole");
            assert_eq!(addresses(&Message::from_vec(&answer).expect("is a message")), [SHARED]);
        }
        stream.write_u16(60000).await.expect("writes");
        assert!(stream.read_u8().await.is_err(), "too long a question");
    });
}
