//! Templates.

use std::sync::Arc;

use tokio::task::JoinSet;
use wakeful_model::{Bootable, DEFAULT_TENANT, Memory, State, TemplateId, TemplateStatus};
use wakeful_store::{Store, Swap};

use super::{Fixture, fresh};
use crate::rows::{at, sandbox, template};

pub(crate) async fn template_names_are_unique_while_alive<F: Fixture>() {
    let (_fixture, store) = fresh::<F>().await;
    let mut first = template("python");
    assert!(store.insert_template(&first).await.expect("insert"));
    assert!(!store.insert_template(&template("python")).await.expect("insert"), "taken");
    let mut foreign = template("python");
    foreign.tenant = "other".into();
    assert!(store.insert_template(&foreign).await.expect("insert"), "another tenant's names are its own");
    assert_eq!(store.template_by_name(DEFAULT_TENANT, "python").await.expect("read").as_ref(), Some(&first));

    first.status = TemplateStatus::Deleted;
    assert!(matches!(store.swap_template(&first).await.expect("swap"), Swap::Swapped(2)));
    first.version = 2;
    assert_eq!(store.template_by_name(DEFAULT_TENANT, "python").await.expect("read"), None);
    let second = template("python");
    assert!(store.insert_template(&second).await.expect("insert"), "free again");
    assert_eq!(store.template(&first.id).await.expect("read").as_ref(), Some(&first), "deleted ones are there by id");
    let alpine = template("alpine");
    assert!(store.insert_template(&alpine).await.expect("insert"));
    assert_eq!(store.templates(Some(DEFAULT_TENANT)).await.expect("list"), [alpine, second]);
    assert_eq!(store.templates(None).await.expect("list").len(), 4);

    // Many at once: one has the name.
    let store = Arc::new(store);
    let mut contest = JoinSet::new();
    for _ in 0..16 {
        let store = Arc::clone(&store);
        contest.spawn(async move { store.insert_template(&template("node")).await.expect("insert") });
    }
    assert_eq!(contest.join_all().await.into_iter().filter(|won| *won).count(), 1);
}

pub(crate) async fn templates_swap_and_go<F: Fixture>() {
    let (_fixture, store) = fresh::<F>().await;
    let mut row = template("python");
    assert!(matches!(store.swap_template(&row).await.expect("swap"), Swap::NotFound));
    assert!(store.insert_template(&row).await.expect("insert"));
    let old = row.clone();
    row.status = TemplateStatus::Ready;
    row.base = Some("b3:11".into());
    row.built_at = Some(at(9));
    assert!(matches!(store.swap_template(&row).await.expect("swap"), Swap::Swapped(2)));
    row.version = 2;
    match store.swap_template(&old).await.expect("swap") {
        Swap::Stale(now) => assert_eq!(*now, row),
        other => panic!("{other:?}"),
    }

    assert_eq!(store.template_users(&row.id).await.expect("users"), 0);
    for state in [State::Running, State::Suspended(Memory::None), State::Failed(Bootable::No), State::Destroyed] {
        let mut user = sandbox();
        user.template_id = row.id.clone();
        user.state = state;
        store.insert_sandbox(&user, None).await.expect("insert");
    }
    assert_eq!(store.template_users(&row.id).await.expect("users"), 3);
    let mut on_another = sandbox();
    on_another.template_id = row.id.clone();
    on_another.base = "b3:another".into();
    store.insert_sandbox(&on_another, None).await.expect("insert");
    let mut bases: Vec<String> = store.bases_in_use().await.expect("bases").into_iter().map(|(_, base)| base).collect();
    bases.sort_unstable();
    assert_eq!(bases, ["b3:00", "b3:another"]);
    assert_eq!(store.template_users(&TemplateId::random()).await.expect("users"), 0);
    store.remove_template(&row.id).await.expect("remove");
    store.remove_template(&row.id).await.expect("twice is no error");
    assert_eq!(store.template(&row.id).await.expect("read"), None);
}
