//! One at a time at the host's package lists.
//!
//! `apt-get install` can wait for dpkg's own lock, `apt-get update` cannot wait for that of the lists, and a reader
//! that meets an update half way sees no packages. So all of ours agree by a lock file.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::time::Duration;

use tokio::time::Instant;

use crate::Error;

const PATH: &str = "/run/wakeful-apt.lock";
const DEADLINE: Duration = Duration::from_secs(600);
const PAUSE: Duration = Duration::from_millis(100);

/// Held until dropped.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "closing it is what unlocks")] File);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reads lists; others may too.
    Shared,
    /// Changes lists or packages.
    Exclusive,
}

/// Takes the lock, waiting for others.
pub(crate) async fn take(access: Access) -> Result<Lock, Error> {
    take_at(Path::new(PATH), access, DEADLINE).await
}

async fn take_at(path: &Path, access: Access, deadline: Duration) -> Result<Lock, Error> {
    let file =
        OpenOptions::new().create(true).truncate(false).write(true).open(path).map_err(Error::io("open", path))?;
    let until = Instant::now() + deadline;
    loop {
        let taken = match access {
            Access::Shared => file.try_lock_shared(),
            Access::Exclusive => file.try_lock(),
        };
        match taken {
            Ok(()) => return Ok(Lock(file)),
            Err(TryLockError::WouldBlock) if Instant::now() < until => tokio::time::sleep(PAUSE).await,
            Err(TryLockError::WouldBlock) => return Err(Error::Locked { path: path.to_owned(), after: deadline }),
            Err(TryLockError::Error(source)) => return Err(Error::io("lock", path)(source)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_changes_or_many_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let short = Duration::from_millis(150);
        let first = take_at(&path, Access::Shared, short).await.unwrap();
        let second = take_at(&path, Access::Shared, short).await.unwrap();
        assert!(matches!(take_at(&path, Access::Exclusive, short).await, Err(Error::Locked { .. })));
        drop((first, second));
        let alone = take_at(&path, Access::Exclusive, short).await.unwrap();
        assert!(matches!(take_at(&path, Access::Shared, short).await, Err(Error::Locked { .. })));
        let (waited, ()) = tokio::join!(take_at(&path, Access::Shared, Duration::from_secs(20)), async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            drop(alone);
        });
        waited.unwrap();
    }
}
