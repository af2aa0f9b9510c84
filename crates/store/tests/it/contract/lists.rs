//! Lists, pages, tombstones.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use wakeful_model::{Cause, DEFAULT_TENANT, EventType, Mode, Port, Sandbox, SandboxId, State};
use wakeful_store::{Error, Filter, Store};

use super::{Fixture, everyone, fresh, listed, swapped};
use crate::rows::{at, event, sandbox};

pub(crate) async fn lists_filter<F: Fixture>() {
    let (_fixture, store) = fresh::<F>().await;
    let mut rows = Vec::new();
    for (place, state) in State::ALL.into_iter().enumerate() {
        let mut row = sandbox();
        row.state = state;
        row.created_at = at(place.try_into().expect("few"));
        store.insert_sandbox(&row, None).await.expect("insert");
        rows.push(row);
    }
    let mut lease = sandbox();
    lease.policy.idle_timeout = None;
    lease.policy.timeout = Some(SignedDuration::from_mins(5));
    lease.template = "node".into();
    let mut foreign = sandbox();
    foreign.tenant = "other".into();
    for row in [&lease, &foreign] {
        store.insert_sandbox(row, None).await.expect("insert");
        rows.push(row.clone());
    }

    let ours = |wanted: &dyn Fn(&Sandbox) -> bool| -> BTreeSet<SandboxId> {
        rows.iter().filter(|row| row.tenant == DEFAULT_TENANT && wanted(row)).map(|row| row.id.clone()).collect()
    };
    assert_eq!(listed(&store, &everyone()).await, ours(&|row| row.state != State::Destroyed));
    for word in State::NAMES {
        let filter = Filter { status: Some(word.into()), ..everyone() };
        assert_eq!(listed(&store, &filter).await, ours(&|row| row.state.name() == word), "{word}");
    }
    assert!(listed(&store, &Filter { status: Some("asleep".into()), ..everyone() }).await.is_empty());
    for mode in [Mode::Ephemeral, Mode::Persistent] {
        let filter = Filter { mode: Some(mode), ..everyone() };
        let wanted = ours(&|row| row.policy.mode() == mode && row.state != State::Destroyed);
        assert_eq!(listed(&store, &filter).await, wanted, "{mode}");
    }
    let only_lease = BTreeSet::from([lease.id.clone()]);
    for text in ["node", lease.template_id.as_str(), lease.template_id.bare()] {
        assert_eq!(listed(&store, &Filter { template: Some(text.into()), ..everyone() }).await, only_lease, "{text}");
    }
    for text in ["", "nod", "Node", "sbx_node"] {
        assert!(listed(&store, &Filter { template: Some(text.into()), ..everyone() }).await.is_empty(), "{text}");
    }
    let all_of_it = Filter {
        status: Some("running".into()),
        mode: Some(Mode::Ephemeral),
        template: Some("node".into()),
        ..everyone()
    };
    assert_eq!(listed(&store, &all_of_it).await, only_lease);
    assert!(listed(&store, &Filter { tenant: "nobody".into(), ..everyone() }).await.is_empty());
    assert_eq!(store.live_sandboxes().await.expect("live").len(), rows.len() - 1, "of all tenants");
}

pub(crate) async fn labels_are_compared_whole<F: Fixture>() {
    let (_fixture, store) = fresh::<F>().await;
    let odd = [
        "",
        "a",
        "a.b",
        "$.a",
        "it's",
        "\"quoted\"",
        "back\\slash",
        "true",
        "1",
        "null",
        "ключ",
        "🦀",
        "a\nb",
        "a\0b",
        "A",
    ];
    let mut rows = Vec::new();
    for (place, key) in odd.iter().enumerate() {
        let mut row = sandbox();
        row.metadata.insert((*key).into(), odd[odd.len() - 1 - place].into());
        row.metadata.insert("shared".into(), "yes".into());
        store.insert_sandbox(&row, None).await.expect("insert");
        rows.push(row);
    }
    store.insert_sandbox(&sandbox(), None).await.expect("insert");
    let having = async |labels: &[(&str, &str)]| {
        let metadata = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        listed(&store, &Filter { metadata, ..everyone() }).await
    };
    for row in &rows {
        let labels: Vec<_> = row.metadata.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(having(&labels).await, BTreeSet::from([row.id.clone()]), "{labels:?}");
    }
    assert_eq!(having(&[("shared", "yes")]).await.len(), rows.len());
    assert!(having(&[("shared", "no")]).await.is_empty());
    assert!(having(&[("share", "yes")]).await.is_empty());
    assert!(having(&[("shared", "yes"), ("missing", "")]).await.is_empty());
    assert!(having(&[("shared", "yes"), ("shared", "no")]).await.is_empty(), "one label has one value");
    assert_eq!(having(&[]).await.len(), rows.len() + 1);
}

pub(crate) async fn lists_page<F: Fixture>() {
    const ROWS: u32 = 300;
    let (_fixture, store) = fresh::<F>().await;
    let mut rows = Vec::new();
    for place in 0..ROWS {
        let mut row = sandbox();
        // Several of one instant, so that pages end between them.
        row.created_at = at(i64::from(place / 7));
        row.metadata.insert("parity".into(), (place % 2).to_string());
        store.insert_sandbox(&row, None).await.expect("insert");
        rows.push(row);
    }
    rows.sort_by(|a, b| (b.created_at, &b.id).cmp(&(a.created_at, &a.id)));
    let read = async |filter: &Filter| {
        let (mut filter, mut pages) = (filter.clone(), Vec::new());
        loop {
            let page = store.sandboxes(&filter).await.expect("list");
            assert!(page.sandboxes.len() <= filter.limit as usize);
            assert!(
                page.next_cursor.is_none() || page.sandboxes.len() == filter.limit as usize,
                "a short page ends it"
            );
            pages.extend(page.sandboxes.into_iter().map(|row| row.id));
            match page.next_cursor {
                Some(next) => filter.cursor = Some(next),
                None => return pages,
            }
        }
    };
    let ids: Vec<_> = rows.iter().map(|row| row.id.clone()).collect();
    for limit in 1..=ROWS + 1 {
        assert_eq!(read(&Filter { limit, ..everyone() }).await, ids, "pages of {limit}");
    }
    let even: Vec<_> = rows.iter().filter(|row| row.metadata["parity"] == "0").map(|row| row.id.clone()).collect();
    for limit in [1, 7, 149, 150, 151] {
        let metadata = vec![("parity".into(), "0".into())];
        assert_eq!(read(&Filter { limit, metadata, status: Some("running".into()), ..everyone() }).await, even);
    }
    let none = store.sandboxes(&Filter { limit: 0, ..everyone() }).await.expect("list");
    assert!(none.sandboxes.is_empty() && none.next_cursor.is_none());

    // What comes or goes between two pages moves nothing else, the row that the cursor names included.
    let first = store.sandboxes(&Filter { limit: 100, ..everyone() }).await.expect("list");
    let mut newest = sandbox();
    newest.created_at = at(1000);
    store.insert_sandbox(&newest, None).await.expect("insert");
    let mut last = first.sandboxes.last().expect("a hundred").clone();
    last.state = State::Destroyed;
    swapped(&store, &mut last, None).await;
    let rest = Filter { cursor: first.next_cursor, ..everyone() };
    assert_eq!(read(&rest).await, ids[100..]);
}

pub(crate) async fn foreign_cursors_are_refused<F: Fixture>() {
    let (_fixture, store) = fresh::<F>().await;
    for cursor in ["", "x", "0", "' OR 1=1", "0000000000000001", "ffffffffffffffffsbx_aaaaaaaaaaaaaaaaaaaa"] {
        let answer = store.sandboxes(&Filter { cursor: Some(cursor.into()), ..everyone() }).await;
        match answer {
            Err(error @ Error::InvalidCursor(_)) => assert_eq!(error.kind(), wakeful_model::Kind::Invalid),
            other => panic!("{other:?} for {cursor:?}"),
        }
    }
}

pub(crate) async fn tombstones_are_kept_and_forgotten<F: Fixture>() {
    let (_fixture, store) = fresh::<F>().await;
    let mut rows = Vec::new();
    for hour in 0..3 {
        let mut row = sandbox();
        store.insert_sandbox(&row, Some(&event(EventType::Created, Cause::Api))).await.expect("insert");
        row.state = State::Destroyed;
        row.destroyed_at = Some(at(hour));
        swapped(&store, &mut row, Some(EventType::Destroyed)).await;
        rows.push(row);
    }
    let living = sandbox();
    store.insert_sandbox(&living, Some(&event(EventType::Created, Cause::Api))).await.expect("insert");
    // Something of it is still on the host.
    store.note_resource(&rows[0].id, "tap", "wk0").await.expect("note");

    for row in &rows {
        store.put_port(&row.id, Port { port: 80, public: true }).await.expect("put");
    }

    assert_eq!(listed(&store, &everyone()).await, BTreeSet::from([living.id.clone()]));
    assert_eq!(store.sandbox(&rows[1].id).await.expect("read").as_ref(), Some(&rows[1]));
    assert_eq!(store.forget_destroyed(at(0)).await.expect("forget"), 0);
    assert_eq!(store.forget_destroyed(at(2)).await.expect("forget"), 1);
    assert_eq!(store.sandbox(&rows[1].id).await.expect("read"), None);
    assert_eq!(store.events(&rows[1].id, 0, 10).await.expect("events"), []);
    assert_eq!(store.ports(&rows[1].id).await.expect("ports"), []);
    for row in [&rows[0], &rows[2]] {
        assert_eq!(store.ports(&row.id).await.expect("ports").len(), 1);
        assert_eq!(store.sandbox(&row.id).await.expect("read").as_ref(), Some(row));
        assert_eq!(store.events(&row.id, 0, 10).await.expect("events").len(), 2);
    }
    store.forget_resources(&rows[0].id).await.expect("forget");
    assert_eq!(store.forget_destroyed(at(1 << 40)).await.expect("forget"), 2);
    assert_eq!(store.live_sandboxes().await.expect("live"), [living]);
}
