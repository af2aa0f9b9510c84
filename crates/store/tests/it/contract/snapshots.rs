//! Copies of sandboxes.

use wakeful_model::{Content, DEFAULT_TENANT, Snapshot, SnapshotId};
use wakeful_store::Store as _;

use super::{Fixture, fresh};
use crate::rows::{at, sandbox};

fn snapshot(tenant: &str, name: Option<&str>, second: i64) -> Snapshot {
    let row = sandbox();
    Snapshot {
        id: SnapshotId::random(),
        tenant: tenant.into(),
        name: name.map(str::to_owned),
        sandbox_id: row.id.clone(),
        created_at: at(second * 1_000_000),
        content: Content::of(&row, Some("{\"engine\":\"é\"}".into())),
    }
}

pub(crate) async fn snapshots_are_kept_and_go<F: Fixture>() {
    let (_fixture, store) = fresh::<F>().await;
    let (first, second) = (snapshot(DEFAULT_TENANT, Some("one"), 1), snapshot(DEFAULT_TENANT, Some("two"), 2));
    let (theirs, forks) = (snapshot("other", Some("one"), 3), [4, 5].map(|at| snapshot(DEFAULT_TENANT, None, at)));
    for row in [&first, &second, &theirs, &forks[0], &forks[1]] {
        assert!(store.insert_snapshot(row).await.expect("insert"), "{row:?}");
        assert_eq!(store.snapshot(&row.id).await.expect("read").as_ref(), Some(row));
    }
    let taken = snapshot(DEFAULT_TENANT, Some("one"), 9);
    assert!(!store.insert_snapshot(&taken).await.expect("no error"), "a tenant's names are unique");
    assert_eq!(store.snapshot(&taken.id).await.expect("read"), None);

    assert_eq!(store.snapshots(Some(DEFAULT_TENANT)).await.expect("list"), [second.clone(), first.clone()]);
    let all = store.snapshots(None).await.expect("list");
    assert_eq!(all.len(), 5);
    assert_eq!(all.iter().filter(|one| one.name.is_none()).count(), 2, "those of forks too");

    // They hold their template as a sandbox does.
    let template = &first.content.template_id;
    assert_eq!(store.template_users(template).await.expect("count"), 1);
    assert!(store.remove_snapshot(&first.id).await.expect("remove"));
    assert!(!store.remove_snapshot(&first.id).await.expect("twice is no error"));
    assert_eq!(store.template_users(template).await.expect("count"), 0);
    assert!(store.insert_snapshot(&taken).await.expect("insert"), "the name is free again");
}
