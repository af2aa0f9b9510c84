//! What must happen, written down once more and as simply as possible: one sandbox, one operation at a time, seconds.
//!
//! An operation is a walk past the points at which an engine can be held or fail. The model stands still where a test
//! holds it; everything else happens at once.

use std::collections::{BTreeMap, BTreeSet};

use wakeful_driver_sim::{Fault, Point};
use wakeful_model::Code;

/// Automatic operations are left alone for so long after one that failed.
const RETRY: u64 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    Kept,
    None,
    Spent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Creating,
    Running,
    Suspended(Memory),
    Failed,
    Destroyed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    Create,
    Access,
    Suspend { memory: bool },
    Wake { join: bool },
    Keepalive,
    Patch { auto_resume: Option<bool>, hard_ttl: Option<Option<u64>> },
    Destroy,
}

/// What an asker is told.
pub(crate) type Said = Result<(), Code>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Create,
    Suspend { memory: bool },
    Wake,
    Destroy,
}

/// An operation under way.
#[derive(Clone, Debug)]
pub(crate) struct Doing {
    pub(crate) op: Op,
    /// What it comes to next.
    pub(crate) at: Point,
    /// Idleness alone is its cause.
    yields: bool,
    off: bool,
    /// It is on its way back; this is why. `None` in it: called off.
    back: Option<Option<Code>>,
    /// The engine is lost on that way.
    lost: bool,
    /// A wake that loads no memory.
    boots: bool,
    committed: bool,
}

impl Doing {
    /// Whether the journal has it: a suspend is taken out of it by the write that commits it.
    pub(crate) fn is_journalled(&self) -> bool {
        !self.committed
    }
}

/// How a sandbox is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct New {
    pub(crate) persistent: bool,
    pub(crate) auto_resume: bool,
    pub(crate) lease: u64,
    pub(crate) hard_ttl: Option<u64>,
}

/// Idleness before a persistent one sleeps.
pub(crate) const IDLE: u64 = 105;
/// The cap on running.
pub(crate) const MOST_AWAKE: u64 = 605;

#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) now: u64,
    pub(crate) state: State,
    pub(crate) doing: Option<Doing>,
    pub(crate) generation: u64,
    pub(crate) restored: Option<bool>,
    pub(crate) ticks: u64,
    /// An engine is alive.
    pub(crate) engine: bool,
    pub(crate) persistent: bool,
    pub(crate) auto_resume: bool,
    lease: u64,
    pub(crate) expires_at: Option<u64>,
    pub(crate) hard_at: Option<u64>,
    pub(crate) started_at: u64,
    pub(crate) active_at: u64,
    quiet_until: u64,
    /// How many hold it awake by being there.
    pub(crate) uses: usize,
    /// The checkpoint's files were spoiled.
    pub(crate) damaged: bool,
    pub(crate) held: BTreeSet<Point>,
    pub(crate) faults: BTreeMap<Point, Fault>,
    /// Who waits, for what, and whether the end of what is under way is the answer.
    waiting: Vec<(usize, Ask, bool)>,
    pub(crate) said: BTreeMap<usize, Said>,
}

enum Next {
    At(Point),
    /// `Err(None)`: called off.
    Over(Result<(), Option<Code>>),
}

impl Model {
    /// Before the create, which is ask number 0.
    pub(crate) fn new(now: u64, new: New) -> Self {
        Self {
            now,
            state: State::Creating,
            doing: None,
            generation: 1,
            restored: None,
            ticks: 0,
            engine: false,
            persistent: new.persistent,
            auto_resume: new.auto_resume,
            lease: new.lease,
            expires_at: (!new.persistent).then_some(now + new.lease),
            hard_at: new.hard_ttl.map(|ttl| now + ttl),
            started_at: now,
            active_at: now,
            quiet_until: 0,
            uses: 0,
            damaged: false,
            held: BTreeSet::new(),
            faults: BTreeMap::new(),
            waiting: Vec::new(),
            said: BTreeMap::new(),
        }
    }

    // ---- asks

    /// Somebody asks. What follows from it comes with [`settle`](Self::settle).
    pub(crate) fn ask(&mut self, number: usize, ask: Ask) {
        if self.state == State::Destroyed && self.doing.is_none() {
            return self.say(number, self.gone(ask));
        }
        if ask == Ask::Keepalive && self.persistent {
            return self.say(number, Err(Code::NotEphemeral));
        }
        if let Some(doing) = &mut self.doing {
            // Whoever needs it calls a sleep of idleness off; whoever asks for sleep makes it his own.
            doing.off |= doing.yields && matches!(ask, Ask::Access | Ask::Wake { .. }) && !doing.committed;
            doing.yields &= !matches!(ask, Ask::Suspend { .. });
            let shares = match (doing.op, ask) {
                (Op::Destroy, Ask::Destroy) => true,
                (Op::Destroy, _) => return self.say(number, self.gone(ask)),
                (Op::Wake, Ask::Wake { join: false }) => return self.say(number, Err(Code::WakeInProgress)),
                (Op::Wake, Ask::Wake { join: true } | Ask::Access) => true,
                (Op::Suspend { .. }, Ask::Suspend { .. }) => true,
                _ => false,
            };
            self.waiting.push((number, ask, shares));
            return;
        }
        let refused = |state| match state {
            State::Creating => Code::NotRunning,
            _ => Code::SandboxFailed,
        };
        match (ask, self.state) {
            (Ask::Create, _) => self.begin_for(number, ask, Op::Create),
            (Ask::Destroy, _) => self.begin_for(number, ask, Op::Destroy),
            (Ask::Patch { auto_resume, hard_ttl }, _) => {
                self.auto_resume = auto_resume.unwrap_or(self.auto_resume);
                if let Some(ttl) = hard_ttl {
                    self.hard_at = ttl.map(|ttl| self.now + ttl);
                }
                self.say(number, Ok(()));
            }
            (Ask::Keepalive, State::Running) => {
                self.expires_at = Some(self.now + self.lease);
                self.active_at = self.now;
                self.say(number, Ok(()));
            }
            (Ask::Keepalive, _) => self.say(number, Err(Code::NotRunning)),
            (Ask::Access | Ask::Wake { .. }, State::Running) => {
                self.active_at = self.now;
                self.say(number, Ok(()));
            }
            (Ask::Access, State::Suspended(_)) if !self.auto_resume => self.say(number, Err(Code::SandboxSuspended)),
            (Ask::Access | Ask::Wake { .. }, State::Suspended(_)) | (Ask::Wake { .. }, State::Failed) => {
                self.begin_for(number, ask, Op::Wake);
            }
            (Ask::Suspend { memory }, State::Running) => self.begin_for(number, ask, Op::Suspend { memory }),
            (Ask::Suspend { .. }, State::Suspended(_)) => self.say(number, Ok(())),
            (Ask::Access | Ask::Wake { .. } | Ask::Suspend { .. }, state) => self.say(number, Err(refused(state))),
        }
    }

    /// What is said of one that is gone, or about to be.
    fn gone(&self, ask: Ask) -> Said {
        match ask {
            Ask::Destroy => Ok(()),
            Ask::Wake { .. } => Err(Code::NotWakeable),
            Ask::Keepalive => Err(Code::NotRunning),
            Ask::Create | Ask::Access | Ask::Suspend { .. } | Ask::Patch { .. } => Err(Code::SandboxDestroyed),
        }
    }

    fn say(&mut self, number: usize, said: Said) {
        self.said.insert(number, said);
    }

    fn begin_for(&mut self, number: usize, ask: Ask, op: Op) {
        self.waiting.push((number, ask, true));
        self.begin(op, false);
    }

    fn begin(&mut self, op: Op, yields: bool) {
        let at = match op {
            Op::Create | Op::Wake => Point::Launch,
            Op::Suspend { memory: true } => Point::Save,
            Op::Suspend { memory: false } => {
                // The guest switches itself off.
                self.engine = false;
                Point::Kill
            }
            Op::Destroy if self.state == State::Running => Point::Kill,
            Op::Destroy => Point::Reap,
        };
        self.doing = Some(Doing {
            op,
            at,
            yields,
            off: false,
            back: None,
            lost: false,
            boots: self.state != State::Suspended(Memory::Kept),
            committed: false,
        });
    }

    // ---- what follows

    /// Everything that happens by itself now.
    pub(crate) fn settle(&mut self) {
        loop {
            let Some(doing) = &self.doing else {
                if self.due() {
                    continue;
                }
                return;
            };
            let at = doing.at;
            if self.held.contains(&at) {
                return;
            }
            let fault = self.faults.remove(&at);
            match self.pass(at, fault) {
                Next::At(point) => self.doing.as_mut().expect("under way").at = point,
                Next::Over(result) => self.over(result),
            }
        }
    }

    fn pass(&mut self, at: Point, fault: Option<Fault>) -> Next {
        let doing = self.doing.as_mut().expect("under way");
        match (doing.op, at) {
            (Op::Create | Op::Wake, Point::Launch) => match fault {
                Some(fault) => self.turn_back(driver(fault)),
                None if doing.op == Op::Wake && !doing.boots && self.damaged => {
                    // What cannot be loaded is worth nothing: it boots.
                    doing.boots = true;
                    self.damaged = false;
                    self.state = State::Suspended(Memory::Spent);
                    Next::At(Point::Launch)
                }
                None => {
                    self.engine = true;
                    Next::At(Point::Launched)
                }
            },
            (Op::Create | Op::Wake, Point::Launched) => {
                if doing.op == Op::Wake && !doing.boots {
                    self.state = State::Suspended(Memory::Spent);
                }
                Next::At(Point::Connect)
            }
            (Op::Create | Op::Wake, Point::Connect) => match fault {
                Some(fault) => self.turn_back(driver(fault)),
                None if doing.op == Op::Wake && doing.boots => self.contact(),
                None => Next::At(Point::Resume),
            },
            // An engine that cannot run ends.
            (Op::Create | Op::Wake, Point::Resume) => match fault {
                Some(_) => {
                    self.engine = false;
                    self.turn_back(Code::SandboxFailed)
                }
                None => self.contact(),
            },
            (Op::Suspend { memory: true }, Point::Save) => match fault {
                Some(fault) => self.go_on(Some(driver(fault))),
                None if doing.off => self.go_on(None),
                None => {
                    doing.committed = true;
                    self.state = State::Suspended(Memory::Kept);
                    self.damaged = false;
                    Next::At(Point::Kill)
                }
            },
            (Op::Suspend { .. }, Point::Connect) => match fault {
                Some(_) => self.lose(),
                None => Next::At(Point::Resume),
            },
            (Op::Suspend { .. }, Point::Resume) => match fault {
                Some(_) => {
                    self.engine = false;
                    self.lose()
                }
                None => self.contact(),
            },
            (Op::Suspend { memory: false }, Point::Kill) if !doing.committed => {
                doing.committed = true;
                self.state = State::Suspended(Memory::None);
                Next::At(Point::Kill)
            }
            (Op::Suspend { .. } | Op::Destroy, Point::Kill) => {
                self.engine = false;
                Next::At(Point::Reap)
            }
            (_, Point::Reap) => self.reaped(fault),
            (op, point) => unreachable!("{op:?} never comes to {point:?}"),
        }
    }

    /// The agent confirms, or not.
    fn contact(&mut self) -> Next {
        let refuses = self.faults.remove(&Point::Contact).is_some();
        let doing = self.doing.as_mut().expect("under way");
        match (doing.op, refuses) {
            (Op::Create, true) => self.turn_back(Code::GuestUnresponsive),
            (Op::Create, false) => {
                self.state = State::Running;
                (self.started_at, self.active_at) = (self.now, self.now);
                Next::Over(Ok(()))
            }
            (Op::Wake, true) => self.turn_back(Code::WakeTimeout),
            (Op::Wake, false) => {
                let boots = doing.boots;
                self.woken(boots);
                Next::Over(Ok(()))
            }
            (Op::Suspend { .. }, true) => self.lose(),
            (Op::Suspend { .. }, false) => Next::Over(Err(doing.back.expect("it goes back"))),
            (Op::Destroy, _) => unreachable!("nobody talks to what is destroyed"),
        }
    }

    fn woken(&mut self, boots: bool) {
        self.state = State::Running;
        self.generation += 1;
        self.restored = Some(!boots);
        if boots {
            self.ticks = 0;
        }
        (self.started_at, self.active_at) = (self.now, self.now);
    }

    /// A create is undone, a wake given up.
    fn turn_back(&mut self, code: Code) -> Next {
        let doing = self.doing.as_mut().expect("under way");
        doing.back = Some(Some(if doing.op == Op::Wake { Code::WakeTimeout } else { code }));
        Next::At(Point::Reap)
    }

    /// A suspend that was not committed: the stopped engine continues.
    fn go_on(&mut self, why: Option<Code>) -> Next {
        self.doing.as_mut().expect("under way").back = Some(why);
        if self.engine { Next::At(Point::Connect) } else { self.lose() }
    }

    /// It cannot even continue.
    fn lose(&mut self) -> Next {
        let doing = self.doing.as_mut().expect("under way");
        doing.lost = true;
        doing.back = Some(Some(Code::SandboxFailed));
        Next::At(Point::Reap)
    }

    fn reaped(&mut self, fault: Option<Fault>) -> Next {
        let doing = self.doing.as_mut().expect("under way");
        if fault.is_some() {
            assert_eq!(doing.op, Op::Create, "only an undone create is reaped in vain");
            return Next::Over(Err(doing.back.expect("it goes back")));
        }
        self.engine = false;
        match (doing.op, doing.back) {
            (Op::Create, Some(code)) => {
                self.state = State::Destroyed;
                Next::Over(Err(code))
            }
            (Op::Wake, Some(code)) => Next::Over(Err(code)),
            (Op::Suspend { .. }, Some(code)) => {
                self.state = State::Failed;
                Next::Over(Err(code))
            }
            (Op::Suspend { .. }, None) => Next::Over(Ok(())),
            (Op::Destroy, _) => {
                self.state = State::Destroyed;
                Next::Over(Ok(()))
            }
            (Op::Create | Op::Wake, None) => unreachable!("what works is not reaped"),
        }
    }

    fn over(&mut self, result: Result<(), Option<Code>>) {
        let op = self.doing.take().expect("under way").op;
        match result {
            Ok(()) if matches!(op, Op::Create | Op::Wake) => self.active_at = self.now,
            Err(Some(_)) => self.quiet_until = self.now + RETRY,
            Ok(()) | Err(None) => {}
        }
        // Those whose wish it was are answered, then everyone else is asked again what he wants.
        let mut again = Vec::new();
        for (number, ask, shares) in std::mem::take(&mut self.waiting) {
            match result {
                Err(Some(code)) if shares => self.say(number, Err(code)),
                Ok(())
                    if shares && matches!((op, ask), (Op::Create, _) | (Op::Suspend { .. }, Ask::Suspend { .. })) =>
                {
                    self.say(number, Ok(()));
                }
                _ => again.push((number, ask)),
            }
        }
        for (number, ask) in again {
            self.ask(number, ask);
        }
    }

    /// Begins what is due, if anything is.
    fn due(&mut self) -> bool {
        if self.state == State::Destroyed {
            return false;
        }
        let running = self.state == State::Running;
        let sleep = Op::Suspend { memory: true };
        let due = [
            self.expires_at.map(|at| (at, Op::Destroy, false)),
            self.hard_at.map(|at| (at, Op::Destroy, false)),
            (running && self.persistent && self.uses == 0).then_some((self.active_at + IDLE, sleep, true)),
            running.then_some((self.started_at + MOST_AWAKE, sleep, false)),
        ];
        let Some((at, op, yields)) = due.into_iter().flatten().min_by_key(|(at, ..)| *at) else { return false };
        let due = at.max(self.quiet_until) <= self.now;
        if due {
            self.begin(op, yields);
        }
        due
    }

    // ---- what happens to it

    /// The engine is killed.
    pub(crate) fn kill(&mut self) {
        if !std::mem::take(&mut self.engine) {
            return;
        }
        let Some(doing) = &self.doing else {
            if self.state == State::Running {
                self.state = State::Failed;
            }
            return;
        };
        let next = match (doing.op, doing.at) {
            (Op::Create, Point::Launched) => self.turn_back(Code::Internal),
            (Op::Create | Op::Wake, Point::Launched | Point::Connect | Point::Resume) => {
                self.turn_back(Code::SandboxFailed)
            }
            (Op::Suspend { .. }, Point::Save | Point::Connect | Point::Resume) => self.lose(),
            (_, _) => return,
        };
        let Next::At(point) = next else { unreachable!("there is always something to clear up") };
        self.doing.as_mut().expect("under way").at = point;
    }

    /// The daemon ends as by a power cut and starts again. The table is that of `recover.rs`.
    pub(crate) fn restart(&mut self) {
        self.waiting.clear();
        self.held.clear();
        self.faults.clear();
        (self.uses, self.quiet_until) = (0, 0);
        let was = self.doing.take();
        let op = was.as_ref().map(|doing| doing.op);
        match (self.state, op) {
            (State::Destroyed, _) => {}
            (State::Creating, _) | (_, Some(Op::Destroy)) => self.recover_by_destroying(),
            (State::Running, _) if self.engine => {}
            // Whoever is about to sleep is not ended.
            (State::Running, _) if self.persistent || matches!(op, Some(Op::Suspend { .. })) => {
                self.state = State::Suspended(Memory::Spent);
            }
            (State::Running, _) => self.recover_by_destroying(),
            (State::Suspended(Memory::Spent), Some(Op::Wake)) if self.engine => {
                self.woken(was.is_some_and(|doing| doing.boots));
            }
            (State::Suspended(_) | State::Failed, _) => self.engine = false,
        }
    }

    fn recover_by_destroying(&mut self) {
        self.begin(Op::Destroy, false);
        self.doing.as_mut().expect("just begun").at = Point::Reap;
    }
}

/// What a driver's error is to whoever waits for it.
fn driver(fault: Fault) -> Code {
    match fault {
        Fault::Refused => Code::Internal,
        Fault::DiskFull => Code::DiskFull,
    }
}
