//! Who uses a sandbox at the moment, and when the last byte went through one of its streams.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::mpsc;

use crate::access::Use;
use crate::activity::Activity;
use crate::clock::Clock;
use crate::view::Awake;

/// What uses tell their owner.
#[derive(Debug)]
pub(crate) enum News {
    /// The one of this number has ended.
    Ended(u64),
    /// More about the one of this number.
    Detail(u64, String),
    /// A byte went through a stream.
    Touched,
}

struct Using {
    why: Use,
    since: Timestamp,
    detail: Option<String>,
}

/// Tells the owner when a use ends, however it ends.
pub(crate) struct UseGuard {
    number: u64,
    news: mpsc::UnboundedSender<News>,
}

impl UseGuard {
    pub(crate) fn detail(&self, detail: String) {
        // An owner that is gone needs no telling.
        let _ = self.news.send(News::Detail(self.number, detail));
    }
}

impl Drop for UseGuard {
    fn drop(&mut self) {
        let _ = self.news.send(News::Ended(self.number));
    }
}

/// The uses of one sandbox, as its owner knows them.
pub(crate) struct Uses {
    current: HashMap<u64, Using>,
    next: u64,
    activity: Arc<Activity>,
    clock: Clock,
    news: mpsc::UnboundedSender<News>,
}

impl Uses {
    pub(crate) fn new(clock: Clock) -> (Self, mpsc::UnboundedReceiver<News>) {
        let (news, inbox) = mpsc::unbounded_channel();
        let activity = Arc::new(Activity::new(clock.clone(), news.clone()));
        (Self { current: HashMap::new(), next: 0, activity, clock, news }, inbox)
    }

    /// Notes a use that lasts; one that counts by its bytes is none.
    pub(crate) fn begin(&mut self, why: Use, now: Timestamp) -> Option<UseGuard> {
        why.holds().then(|| {
            let number = self.next;
            self.next += 1;
            self.current.insert(number, Using { why, since: now, detail: None });
            UseGuard { number, news: self.news.clone() }
        })
    }

    /// Takes news in; the instant of the activity that they tell of.
    pub(crate) fn heard(&mut self, news: News) -> Option<Timestamp> {
        match news {
            News::Ended(number) => {
                self.current.remove(&number);
                Some(self.clock.now())
            }
            News::Detail(number, detail) => {
                if let Some(using) = self.current.get_mut(&number) {
                    using.detail = Some(detail);
                }
                None
            }
            News::Touched => self.activity.last(),
        }
    }

    /// What streams touch.
    pub(crate) fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }

    /// Whether nobody keeps it awake by being there.
    pub(crate) fn is_empty(&self) -> bool {
        self.current.is_empty()
    }

    /// Why it is awake as far as uses go, the oldest first.
    pub(crate) fn awake_because(&self) -> Vec<Awake> {
        let awake = |using: &Using| Awake {
            reason: using.why.awake_reason(),
            since: using.since,
            detail: using.detail.clone(),
        };
        let mut awake: Vec<Awake> = self.current.values().map(awake).collect();
        awake.sort_by_key(|awake| awake.since);
        awake
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::AwakeReason;

    #[test]
    fn a_stream_is_not_a_use_and_a_command_is_until_its_end() {
        let (mut uses, mut inbox) = Uses::new(Clock::default());
        let now = Timestamp::now();
        assert!(uses.begin(Use::Stream, now).is_none() && uses.is_empty());
        let guard = uses.begin(Use::Exec, now).expect("it lasts");
        guard.detail("pid 7".into());
        assert_eq!(uses.heard(inbox.try_recv().unwrap()), None);
        let told = Awake { reason: AwakeReason::Exec, since: now, detail: Some("pid 7".into()) };
        assert_eq!((uses.is_empty(), uses.awake_because()), (false, vec![told]));
        uses.activity().touch();
        assert_eq!(uses.heard(inbox.try_recv().unwrap()), uses.activity().last());
        drop(guard);
        assert!(uses.heard(inbox.try_recv().unwrap()).is_some_and(|at| at >= now));
        assert!(uses.is_empty());
    }
}
