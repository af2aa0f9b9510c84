//! Golden snapshots that nobody waits for.
//!
//! A size that is used for the first time has none yet. Making it takes longer than a boot, so the first sandbox boots from
//! the base, and the snapshot is made beside it, from which all later ones are cloned.
//!
//! ```text
//!   create ─▶ is there one? ── yes ─▶ clone
//!                 └ no ─▶ boot from the base     ┌ fails: one line in the log, the next create asks again
//!                          └ and ask for one ─▶ one after the other, when no create is under way
//! ```
//!
//! What a stop or a crash interrupts leaves nothing: a snapshot has its place only when it is whole.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Semaphore;
use tracing::warn;
use wakeful_driver::Driver;

use crate::golden::{self, Golden, Recipe};
use crate::lifecycle::{Inner, error_chain};
use crate::{Error, files};

/// How long it gives way to creates.
const GIVES_WAY: Duration = Duration::from_secs(60);

/// What is to be made, or is being made.
pub(crate) struct Goldsmith {
    wanted: Mutex<HashSet<PathBuf>>,
    turn: Semaphore,
}

impl Default for Goldsmith {
    fn default() -> Self {
        Self { wanted: Mutex::default(), turn: Semaphore::new(1) }
    }
}

/// Wanted until it is made, or could not be.
struct Wish {
    inner: Arc<Inner>,
    dir: PathBuf,
}

impl Drop for Wish {
    fn drop(&mut self) {
        self.inner.goldsmith.wanted.lock().expect("no panic while it is held").remove(&self.dir);
    }
}

impl Inner {
    /// The golden snapshot of this recipe, if there is one now. One that is being made is none.
    pub(crate) async fn golden_at_hand(
        &self,
        driver: &Arc<dyn Driver>,
        recipe: &Recipe,
    ) -> Result<Option<Arc<Golden>>, Error> {
        let dir = recipe.dir(&self.layout, &driver.engine().golden_key);
        if let Some(golden) = self.goldens.known(&dir) {
            return Ok(Some(golden));
        }
        let Some(golden) = golden::read(&dir).await? else { return Ok(None) };
        // Its first use here: one that nobody uses for long is removed.
        let used = dir.clone();
        let _ = files::blocking("note the use of a golden snapshot", move || golden::note_use(&used)).await;
        Ok(Some(self.goldens.remember(&dir, golden)))
    }

    /// The golden snapshot of this recipe; made now if there is none, when no create is under way and no other is being made
    /// here.
    pub(crate) async fn golden_in_turn(&self, driver: &Arc<dyn Driver>, recipe: &Recipe) -> Result<Arc<Golden>, Error> {
        if let Some(golden) = self.golden_at_hand(driver, recipe).await? {
            return Ok(golden);
        }
        let turn = async {
            let turn = self.goldsmith.turn.acquire().await;
            self.creates.quiet(GIVES_WAY).await;
            turn
        };
        let Some(Ok(_turn)) = self.draining.run_until_cancelled(turn).await else { return Err(Error::ShuttingDown) };
        // Ends by itself when the daemon drains, and clears up.
        self.golden(driver, recipe).await
    }

    /// Has the golden snapshot made from which the next sandbox of this recipe will be cloned.
    pub(crate) fn golden_later(self: &Arc<Self>, driver: &Arc<dyn Driver>, recipe: Recipe) {
        let dir = recipe.dir(&self.layout, &driver.engine().golden_key);
        if !self.goldsmith.wanted.lock().expect("no panic while it is held").insert(dir.clone()) {
            return;
        }
        let (wish, driver) = (Wish { inner: Arc::clone(self), dir }, Arc::clone(driver));
        self.tasks.spawn(async move {
            match wish.inner.golden_in_turn(&driver, &recipe).await {
                Ok(_) | Err(Error::ShuttingDown) => {}
                Err(error) => {
                    let (template, machine) = (&recipe.template, recipe.machine);
                    warn!(template_id = %template, %machine, error = error_chain(&error), "could not make a golden snapshot; sandboxes of this size boot");
                }
            }
        });
    }
}
