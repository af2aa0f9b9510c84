//! One member: made, and taken away.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tracing::debug;
use wakeful_driver::Source;
use wakeful_guest_client::Exec;
use wakeful_model::{SandboxId, Template};

use super::{Kind, Member, Name};
use crate::golden::Recipe;
use crate::guest::{self, Identity, Vcpus};
use crate::lifecycle::Inner;
use crate::{Error, files};

/// How long a clone may take to answer.
const FIRST_ANSWER: Duration = Duration::from_secs(20);
/// How long a first start may take.
const BOOTED: Duration = Duration::from_secs(90);
const QUIESCE: Duration = Duration::from_secs(20);
/// One command, so that the first one of a sandbox finds its way trodden.
const WARM: Duration = Duration::from_secs(10);

impl Inner {
    /// Clones a template, or starts it where nothing is cloned, runs it to its first answer, and stops it. What fails half-way is for the caller to clear away.
    pub(super) async fn make_member(
        self: &Arc<Self>,
        id: &SandboxId,
        name: &Name,
        template: &Template,
        kind: Kind,
    ) -> Result<Member, Error> {
        let driver = self.drivers.named(&kind.runtime).await?;
        let (user, workdir, machine) = (&template.user, &template.workdir, kind.machine);
        let recipe = Recipe::of_template(template, &kind.base, machine);
        let golden = if driver.capabilities().golden || recipe.warm.is_some() {
            Some(self.golden_in_turn(&driver, &recipe).await?)
        } else {
            None
        };
        let base = self.base_for(&*driver, &kind.base).await?;
        let place = self.layout.place(id);
        let dir = place.data.clone();
        files::blocking("make a member's directory", move || files::make_private_dir(&dir)).await?;
        let mut secret = [0u8; 32];
        getrandom::fill(&mut secret).map_err(|error| Error::Internal(format!("no random bytes: {error}")))?;
        let card = self.uplinks.plug_shut(id, &template.egress, &*driver).await?;
        let (source, known, vcpus, patience) = match &golden {
            Some(golden) => {
                let source = Source::Clone { golden: &golden.dir, image: &golden.image };
                (source, golden.secret, Vcpus::Stopped, FIRST_ANSWER)
            }
            None => (Source::First { secret }, secret, Vcpus::Running, BOOTED),
        };
        let engine = driver.launch(&place, machine, &base, card, source).await?;
        self.uplinks.settled(id).await?;
        let nothing = BTreeMap::new();
        // Generation 0: it is nobody yet. Its hooks run when it is claimed, and its agent forgets the command below.
        let who = Identity { id, hostname: id.bare(), env: &nothing, user, workdir, generation: 0, secret: &secret };
        let guest = guest::revive(&engine, &known, vcpus, patience, &who).await?;
        let mut exec = Exec::new("true", std::iter::empty::<&str>());
        exec.timeout = Some(WARM);
        if let Err(error) = guest.exec(&exec).await {
            debug!(sandbox_id = %id, %error, "not in this image, or not now");
        }
        let quiesced = guest.quiesce(QUIESCE).await;
        guest.close().await;
        if let Err(error) = quiesced {
            return Err(Error::Unresponsive { id: id.clone(), detail: format!("it did not quiesce: {error}") });
        }
        engine.disconnected().await?;
        engine.pause().await?;
        Ok(Member { name: name.clone(), kind, engine, secret })
    }

    /// Removes whatever is in a sandbox's place: engine, network, files. Fine if there is nothing.
    pub(crate) async fn clear_place(&self, id: &SandboxId, runtime: Option<&str>) -> Result<(), Error> {
        self.reap(id, runtime).await?;
        self.uplinks.forget(id);
        let (dir, trash) = (self.layout.sandbox(id), self.layout.trash());
        files::blocking("remove a member's files", move || files::discard_dir(&dir, &trash)).await
    }
}
