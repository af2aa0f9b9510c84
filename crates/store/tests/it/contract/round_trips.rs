//! What goes in comes out.

use std::future::Future;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use wakeful_model::{Sandbox, Template};
use wakeful_store::{Store, Swap};

use super::{Fixture, fresh, swapped};
use crate::rows::{any_sandbox, any_template, sandbox};

pub(crate) async fn what_is_inserted_is_read<F: Fixture>() {
    let (_fixture, store) = fresh::<F>().await;
    let row = sandbox();
    assert_eq!(store.sandbox(&row.id).await.expect("read"), None);
    store.insert_sandbox(&row, None).await.expect("insert");
    assert_eq!(store.sandbox(&row.id).await.expect("read"), Some(row.clone()));
    assert!(store.insert_sandbox(&row, None).await.is_err(), "an id is given out once");
    assert_eq!(store.events(&row.id, 0, 10).await.expect("events"), []);
}

/// Runs an asynchronous property; the store's own runtime goes on beside it.
fn any_of<S, T, Fut>(strategy: &S, property: impl Fn(T) -> Fut)
where
    S: Strategy<Value = T>,
    T: std::fmt::Debug,
    Fut: Future<Output = Result<(), TestCaseError>>,
{
    let runtime = tokio::runtime::Handle::current();
    let mut runner = TestRunner::new(Config { cases: 150, failure_persistence: None, ..Config::default() });
    tokio::task::block_in_place(|| runner.run(strategy, |value| runtime.block_on(property(value)))).expect("holds");
}

pub(crate) async fn any_sandbox_round_trips<F: Fixture>() {
    let (_fixture, store) = fresh::<F>().await;
    let strategy = (any_sandbox(), any_sandbox());
    any_of(&strategy, async |(first, second)| {
        store.insert_sandbox(&first, None).await.expect("insert");
        assert!(store.sandbox(&first.id).await.expect("read") == Some(first.clone()), "{first:?}");
        // The same by a swap, save that use does not go back.
        let mut next = Sandbox { id: first.id.clone(), version: first.version, ..second };
        swapped(&store, &mut next, None).await;
        assert_eq!(next.version, first.version + 1);
        next.last_activity_at = next.last_activity_at.max(first.last_activity_at);
        assert!(store.sandbox(&first.id).await.expect("read") == Some(next.clone()), "{next:?}");
        Ok(())
    });
}

pub(crate) async fn any_template_round_trips<F: Fixture>() {
    let (_fixture, store) = fresh::<F>().await;
    let strategy = (any_template(), any_template());
    any_of(&strategy, async |(first, second)| {
        assert!(store.insert_template(&first).await.expect("insert"));
        assert_eq!(store.template(&first.id).await.expect("read"), Some(first.clone()));
        let mut next = Template { id: first.id.clone(), version: first.version, ..second };
        assert!(matches!(store.swap_template(&next).await.expect("swap"), Swap::Swapped(_)));
        next.version += 1;
        assert_eq!(store.template(&first.id).await.expect("read"), Some(next));
        Ok(())
    });
}
