//! A build to its end.
//!
//! ```text
//!   log ──► screen       a log that breaks off is read again; what was shown is not shown twice
//!    │                   one that is silent is no reason to leave: a build waits for its turn, and steps take their time
//!    └─ end ──► the row has the last word
//! ```

use std::time::Duration;

use futures_util::StreamExt;
use wakeful_client::Client;
use wakeful_client::types::{BuildEvent, CreateTemplate, Instant, Template};
use wakeful_model::TemplateStatus;

use super::screen::Screen;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::output;
use crate::patience::{Patience, passes};
use crate::progress::Verbose;
use crate::table::plain_text;

/// How long a server may be away.
const AWAY: Duration = Duration::from_secs(120);
/// After so much silence somebody asks whether the build goes on.
const SILENCE: Duration = Duration::from_secs(60);

/// Has a template built, and shows how it goes.
pub(crate) async fn build(client: &Client, new: &CreateTemplate, verbose: Verbose) -> Result<Template, Failure> {
    let begun = client.create_template(new).await?;
    follow(client, begun.id.as_str(), verbose).await
}

/// Shows a build, by its template's name or id, until its end.
pub(crate) async fn follow(client: &Client, name: &str, verbose: Verbose) -> Result<Template, Failure> {
    let mut screen = Screen::new(verbose);
    let template = watch(client, name, &mut screen).await?;
    match &template.build_error {
        None if template.status == TemplateStatus::Ready => {
            screen.done(&format!("template {} is ready", template.name));
            Ok(template)
        }
        _ => {
            screen.failed(tail(&template));
            Err(failure(&template))
        }
    }
}

/// Runs `work`, which only looks at a build: ^C ends the look, and says what becomes of the build.
pub(super) async fn or_leave<T>(name: &str, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let mut interrupt = Interrupt::listen()?;
    tokio::select! {
        ended = work => ended,
        code = interrupt.came() => {
            output::say(&format!("\nthe build of {name} goes on in the server"));
            output::hint(&format!("`wakeful template logs -f {name}` shows it, `wakeful template cancel {name}` ends it"));
            Err(Failure::interrupted(code))
        }
    }
}

/// Where we are in a log.
#[derive(Default)]
struct Seen {
    /// When the log began: another one began at another time.
    begun: Option<Instant>,
    shown: usize,
    at: usize,
}

impl Seen {
    /// Begins to read from the first line again.
    fn rewind(&mut self) {
        self.at = 0;
    }

    /// Whether a line is new.
    fn is_new(&mut self, at: Instant) -> bool {
        if self.at == 0 && self.begun != Some(at) {
            // After a restart the build begins again, and its log with it.
            (self.begun, self.shown) = (Some(at), 0);
        }
        self.at += 1;
        let new = self.at > self.shown;
        self.shown = self.shown.max(self.at);
        new
    }
}

/// The template when its build has ended.
async fn watch(client: &Client, name: &str, screen: &mut Screen) -> Result<Template, Failure> {
    let (mut seen, mut patience) = (Seen::default(), Patience::new(AWAY));
    loop {
        let lost = match client.template_log(name, true).await {
            Ok(mut events) => {
                seen.rewind();
                loop {
                    match tokio::time::timeout(SILENCE, events.next()).await {
                        Ok(Some(Ok(BuildEvent::Progress { at, step, fraction, line, layer }))) => {
                            patience.reset();
                            if seen.is_new(at) {
                                screen.event(&step, fraction, line.as_deref(), layer.as_ref());
                            }
                        }
                        // A server that goes down ends the log of a build that it will begin again.
                        Ok(Some(Ok(BuildEvent::End { .. })) | None) => break None,
                        Ok(Some(Err(error))) => break Some(error),
                        Err(_) => match client.template(name).await {
                            Ok(template) if is_under_way(&template) => patience.reset(),
                            Ok(_) => break None,
                            Err(error) => break Some(error),
                        },
                    }
                }
            }
            Err(error) => Some(error),
        };
        let lost = match lost {
            None => match client.template(name).await {
                Ok(template) if !is_under_way(&template) => return Ok(template),
                Ok(_) => None,
                Err(error) => Some(error),
            },
            lost => lost,
        };
        if let Some(error) = &lost
            && !passes(error)
        {
            return Err(Failure::of(error));
        }
        match (patience.next(), lost) {
            (Some(wait), _) => tokio::time::sleep(wait).await,
            (None, Some(error)) => return Err(Failure::of(&error)),
            (None, None) => {
                return Err(Failure::refused(format!("the build of {name} goes on, but its log ends again and again"))
                    .hint(format!("`wakeful template show {name}` tells how far it is")));
            }
        }
    }
}

fn is_under_way(template: &Template) -> bool {
    matches!(template.status, TemplateStatus::Pending | TemplateStatus::Building)
}

/// What the step that failed said last, as far as the error has it.
fn tail(template: &Template) -> Vec<&str> {
    let detail = template.build_error.as_ref().map_or("", |error| &error.detail);
    detail.lines().skip(1).collect()
}

/// Why there is no new base.
fn failure(template: &Template) -> Failure {
    let name = &template.name;
    let Some(error) = &template.build_error else {
        return Failure::refused(format!("template {name} was not built: it is {}", template.status));
    };
    let usable = template.status == TemplateStatus::Ready;
    let again = if usable { " again" } else { "" };
    let line = error.line.map(|line| format!(" (line {line})")).unwrap_or_default();
    let why = plain_text(error.detail.lines().next().unwrap_or_default());
    let message = format!("template {name} was not built{again}: {}: {why}{line}", plain_text(&error.step));
    Failure::refused(message).hint(if usable {
        format!("`wakeful template logs {name}` shows all of it; until a build succeeds, sandboxes get what it was before")
    } else {
        format!(
            "`wakeful template logs {name}` shows all of it; `wakeful template rebuild {name}` tries again, `wakeful template delete {name}` frees the name"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;

    #[test]
    fn nothing_is_shown_twice() {
        let at = |second| Instant(Timestamp::from_second(second).unwrap());
        let mut seen = Seen::default();
        let mut read = |lines: &[i64]| {
            seen.rewind();
            lines.iter().map(|second| seen.is_new(at(*second))).collect::<Vec<_>>()
        };
        assert_eq!(read(&[1, 1, 2]), [true, true, true]);
        assert_eq!(read(&[1]), [false], "it broke off earlier");
        assert_eq!(read(&[1, 1, 2, 2]), [false, false, false, true]);
        assert_eq!(read(&[9, 9]), [true, true], "another log");
        assert_eq!(read(&[9, 9, 9]), [false, false, true]);
    }
}
