//! Every process that was started through the agent, the running ones and for an hour the ended ones.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use wakeful_guest_proto::process::{ListResponse, ProcessInfo, Selector};

use super::journal::TOTAL_LIMIT;
use super::record::Process;
use super::tree::Tree;

/// How long an ended process can be asked for.
const KEPT: Duration = Duration::from_secs(3600);
/// How many ended ones, so that a loop of short commands does not fill the memory within that hour.
const MAX_ENDED: usize = 1000;

#[derive(Default)]
pub(crate) struct Table {
    processes: Mutex<HashMap<u32, Arc<Process>>>,
    /// Trees of forgotten processes whose offspring still lives.
    lingering: Mutex<Vec<Arc<Tree>>>,
    /// What all journals hold.
    held: AtomicUsize,
}

impl Table {
    /// Takes a new process in. One that ended and had the same pid is forgotten.
    pub(crate) fn insert(&self, process: &Arc<Process>) {
        let old = self.lock().insert(process.pid, Arc::clone(process));
        old.into_iter().for_each(|old| self.forget(&old));
    }

    /// The running processes, as E2B lists them.
    pub(crate) fn list(&self) -> ListResponse {
        let mut processes: Vec<ProcessInfo> =
            self.all().iter().filter(|process| !process.ended()).map(|process| process.info()).collect();
        processes.sort_by_key(|process| process.pid);
        ListResponse { processes }
    }

    /// All of them, the ended ones of the last hour too, as the host sees them.
    pub(crate) fn list_all(&self) -> ListResponse {
        let mut processes: Vec<ProcessInfo> = self.all().iter().map(|process| process.described()).collect();
        processes.sort_by_key(|process| process.pid);
        ListResponse { processes }
    }

    /// The running processes that keep the sandbox awake, each with its start in milliseconds since 1970.
    #[allow(dead_code, reason = "for the route that tells whether the guest is busy")]
    pub(crate) fn keep_awake_pids(&self) -> Vec<(u32, i64)> {
        let awake = |process: &Arc<Process>| process.origin.keep_awake && !process.ended();
        self.all().iter().filter(|process| awake(process)).map(|process| (process.pid, process.started_at_ms)).collect()
    }

    /// By pid, or by tag: then rather a running one, and rather the latest.
    pub(crate) fn find(&self, selector: &Selector) -> Option<Arc<Process>> {
        match selector {
            Selector::Pid(pid) => self.lock().get(pid).cloned(),
            Selector::Tag(tag) => {
                let tagged = self.all().into_iter().filter(|process| process.origin.tag.as_ref() == Some(tag));
                tagged.max_by_key(|process| (!process.ended(), process.started))
            }
        }
    }

    /// To be told by how much a journal has grown or shrunk; keeps the sum of them within its bound.
    pub(crate) fn account(&self, before: usize, after: usize) {
        if after < before {
            self.held.fetch_sub(before - after, Ordering::Relaxed);
        } else if self.held.fetch_add(after - before, Ordering::Relaxed) + (after - before) > TOTAL_LIMIT {
            self.shrink();
        }
    }

    /// Lets old output fall out: first of what ended longest ago, then of whoever holds most.
    fn shrink(&self) {
        let mut all = self.all();
        all.sort_by_key(|process| process.ended_at().map_or((true, None), |at| (false, Some(at))));
        for process in all.iter().filter(|process| process.ended()) {
            while self.held.load(Ordering::Relaxed) > TOTAL_LIMIT {
                match process.drop_oldest() {
                    0 => break,
                    freed => self.held.fetch_sub(freed, Ordering::Relaxed),
                };
            }
        }
        while self.held.load(Ordering::Relaxed) > TOTAL_LIMIT {
            let freed = all.iter().max_by_key(|process| process.held()).map_or(0, |process| process.drop_oldest());
            if freed == 0 {
                break;
            }
            self.held.fetch_sub(freed, Ordering::Relaxed);
        }
    }

    /// Forgets what ended long ago and removes cgroups that have become empty. Blocks for a moment.
    pub(crate) fn sweep(&self) {
        self.forget_older(KEPT);
    }

    /// Forgets everything that has ended: what warmed a golden snapshot up is nothing to its clones.
    pub(crate) fn forget_ended(&self) {
        self.forget_older(Duration::ZERO);
    }

    fn forget_older(&self, kept: Duration) {
        let mut ended: Vec<(Instant, u32)> =
            self.all().iter().filter_map(|process| Some((process.ended_at()?, process.pid))).collect();
        ended.sort_unstable();
        let surplus = ended.len().saturating_sub(MAX_ENDED);
        for (nth, (at, pid)) in ended.into_iter().enumerate() {
            let mut processes = self.lock();
            let process = processes.get(&pid).filter(|process| process.ended_at() == Some(at)).cloned();
            let Some(process) = process else { continue };
            if nth < surplus || at.elapsed() > kept {
                processes.remove(&pid);
                drop(processes);
                self.forget(&process);
            } else {
                drop(processes);
                process.tree.try_remove();
            }
        }
        self.lingering.lock().unwrap_or_else(PoisonError::into_inner).retain(|tree| !tree.try_remove());
    }

    fn forget(&self, process: &Process) {
        self.held.fetch_sub(process.forget(), Ordering::Relaxed);
        if !process.tree.try_remove() {
            let mut lingering = self.lingering.lock().unwrap_or_else(PoisonError::into_inner);
            lingering.push(Arc::clone(&process.tree));
        }
    }

    fn all(&self) -> Vec<Arc<Process>> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Arc<Process>>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use wakeful_guest_proto::process::EndEvent;

    use super::super::journal::Stream;
    use super::*;

    #[tokio::test]
    async fn all_journals_together_are_bounded_and_the_dead_give_first() {
        let table = Table::default();
        let processes: Vec<_> = (1..=20).map(|pid| Arc::new(Process::for_test(pid))).collect();
        processes.iter().for_each(|process| table.insert(process));
        for (nth, process) in processes.iter().enumerate() {
            for _ in 0..40 {
                process.publish(&table, Stream::Stdout, Bytes::from(vec![0; 32 << 10])).await;
            }
            if nth == 0 {
                process.finish(EndEvent::default()).await;
            }
        }
        let sum: usize = processes.iter().map(|process| process.held()).sum();
        assert_eq!(sum, table.held.load(Ordering::Relaxed));
        assert!(sum <= TOTAL_LIMIT && sum > TOTAL_LIMIT - (1 << 20), "{sum}");
        assert_eq!(processes[0].held(), 0, "the ended one gives everything before a running one gives anything");
        assert_eq!(table.list().processes.len(), 19);
        // The same pid again: the old record and what it held are gone.
        let held = processes[5].held();
        table.insert(&Arc::new(Process::for_test(6)));
        assert_eq!(table.held.load(Ordering::Relaxed), sum - held);
    }

    #[tokio::test]
    async fn ended_ones_are_found_but_not_without_end() {
        let table = Table::default();
        for pid in 1..=1100 {
            let process = Arc::new(Process::for_test(pid));
            table.insert(&process);
            process.finish(EndEvent::default()).await;
        }
        table.sweep();
        assert_eq!(table.all().len(), MAX_ENDED);
        assert!(table.find(&Selector::Pid(100)).is_none() && table.find(&Selector::Pid(101)).is_some());
        assert!(table.list().processes.is_empty());
    }

    #[tokio::test]
    async fn whoever_keeps_it_awake_does_so_until_its_end() {
        let table = Table::default();
        let processes = [Process::for_test(1), Process::awake_for_test(2), Process::awake_for_test(3)].map(Arc::new);
        processes.iter().for_each(|process| table.insert(process));
        processes[2].finish(EndEvent::default()).await;
        assert_eq!(table.keep_awake_pids(), [(2, processes[1].started_at_ms)]);
        let told = table.list_all().processes;
        let ended: Vec<bool> = told.iter().map(|p| p.details.as_ref().is_some_and(|d| d.end.is_some())).collect();
        assert_eq!(ended, [false, false, true]);
    }
}
