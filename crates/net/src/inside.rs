//! Work in a network namespace. A namespace belongs to a thread, and a thread of the runtime must never change it; so
//! each piece of work gets a thread of its own, which ends with it (some 50 microseconds).

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;

use tokio::sync::oneshot;

use crate::Error;

/// Does `work` in `namespace` and waits for it, blocking.
pub(crate) fn inside<T: Send>(
    namespace: BorrowedFd<'_>,
    work: impl FnOnce() -> Result<T, Error> + Send,
) -> Result<T, Error> {
    apart_now(|| {
        wakeful_sys::net::enter_network(namespace).map_err(|source| Error::Namespace { source })?;
        work()
    })
}

/// Does `work` on a thread of its own, which may change its namespaces, and waits for it, blocking.
pub(crate) fn apart_now<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("wakeful-net".into())
            .spawn_scoped(scope, work)
            .map_err(|source| Error::Namespace { source })?;
        thread.join().unwrap_or_else(|_| Err(Error::Namespace { source: io::Error::other("the thread panicked") }))
    })
}

/// Does `work` in `namespace`.
///
/// # Cancel safety
/// The work goes on to its end; only its result is lost.
pub(crate) async fn within<T: Send + 'static>(
    namespace: Arc<OwnedFd>,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    apart(move || {
        wakeful_sys::net::enter_network(namespace.as_fd()).map_err(|source| Error::Namespace { source })?;
        work()
    })
    .await
}

/// Does `work` on a thread of its own, which may change its namespaces.
///
/// # Cancel safety
/// As [`within`].
pub(crate) async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let (done, result) = oneshot::channel();
    thread::Builder::new()
        .name("wakeful-net".into())
        .spawn(move || {
            // Nobody waits any more: what was done is found again by its directory.
            let _ = done.send(work());
        })
        .map_err(|source| Error::Namespace { source })?;
    result.await.unwrap_or_else(|_| Err(Error::Namespace { source: io::Error::other("the thread panicked") }))
}
