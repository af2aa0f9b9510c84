//! What no image of an engine can keep, found out before the engine is touched.
//!
//! Some engines refuse to save a guest that holds, for instance, a deleted file, and even the try costs its connections.
//! So the agent is asked first (`GET /_wakeful/obstacles`), and the caller is told which process holds what.

use std::sync::Arc;
use std::time::Duration;

use wakeful_driver::{Driver, Engine};
use wakeful_guest_proto::control::{Obstacle, ObstacleKind};
use wakeful_model::Sandbox;

use crate::owner::Held;
use crate::{Error, guest};

/// How long the agent may take to look at all processes.
const DEADLINE: Duration = Duration::from_secs(10);
/// How long a lost channel is tried again.
const REACHED: Duration = Duration::from_secs(5);
/// Obstacles that are named; of the rest, the number.
const NAMED: usize = 3;

/// Refuses if the guest holds something that its engine cannot keep. A guest that does not answer is refused too: what the
/// engine would make of it nobody knows.
pub(super) async fn look(
    driver: &dyn Driver,
    row: &Sandbox,
    held: &mut Held,
    engine: &Arc<dyn Engine>,
) -> Result<(), Error> {
    if !driver.capabilities().obstacles {
        return Ok(());
    }
    let guest = match held.guest.take() {
        Some(guest) if !guest.is_closed() => guest,
        Some(_) | None => guest::reach(&row.id, engine, &row.secret, REACHED).await?,
    };
    let found = guest.obstacles(DEADLINE).await;
    held.guest = Some(guest);
    match found {
        Ok(found) if found.obstacles.is_empty() => Ok(()),
        Ok(found) => Err(Error::NotSuspendable { id: row.id.clone(), detail: told(&found.obstacles) }),
        Err(error) => {
            let detail = format!("it did not tell what keeps it from being stopped: {error}");
            Err(Error::Unresponsive { id: row.id.clone(), detail })
        }
    }
}

/// Whether a suspend that nobody asked for should wait longer for its next try.
pub(crate) fn puts_off(problem: &Error) -> bool {
    matches!(problem, Error::NotSuspendable { .. } | Error::RuntimeUnavailable(_))
}

fn told(found: &[Obstacle]) -> String {
    let mut text = found.iter().take(NAMED).map(one).collect::<Vec<_>>().join("; ");
    if found.len() > NAMED {
        text.push_str(&format!("; and {} more", found.len() - NAMED));
    }
    text
}

fn one(obstacle: &Obstacle) -> String {
    let Obstacle { pid, process, kind, path } = obstacle;
    let holds = match kind {
        ObstacleKind::Program => format!("runs {path}"),
        ObstacleKind::Directory => format!("stands in {path}"),
        ObstacleKind::Library => format!("has {path} mapped"),
        ObstacleKind::File => format!("has {path} open"),
    };
    format!("{process} (pid {pid}) {holds}, which was deleted or replaced")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_what() {
        let held = |pid, kind, path: &str| Obstacle { pid, process: "tail".into(), kind, path: path.into() };
        let two = [held(12, ObstacleKind::File, "/var/log/a"), held(13, ObstacleKind::Library, "/lib/b.so")];
        assert_eq!(
            told(&two),
            "tail (pid 12) has /var/log/a open, which was deleted or replaced; \
             tail (pid 13) has /lib/b.so mapped, which was deleted or replaced"
        );
        let many = vec![held(1, ObstacleKind::Program, "/x"); 5];
        assert!(told(&many).ends_with("; and 2 more"), "{}", told(&many));
    }
}
