//! The control routes: what the host does to the machine as a whole.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use rustix::process::{Pid, Signal, kill_process_group};
use rustix::time::{ClockId, Timespec, clock_settime};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout, timeout_at};
use wakeful_guest_proto::contact::Repair;
use wakeful_guest_proto::control::{
    self, Busy, BusyProcess, Grow, Grown, MAX_BUSY, QuiesceAnswer, Restore, RestoreAnswer, Version,
};
use wakeful_guest_proto::hello::PROTOCOL;

use crate::body::{self, Body};
use crate::context::{Context, Powers};
use crate::session::Session;
use crate::{container, disk, init, obstacles, tree};

/// A restore carries the sandbox's whole environment; nothing else comes near this.
const REQUEST_LIMIT: usize = 1024 * 1024;
/// All clone hooks together.
const HOOKS: Duration = Duration::from_secs(5);
/// More is not a hook directory but a mistake.
const HOOKS_LIMIT: usize = 64;
/// The host gives up earlier; this only bounds the task.
const SYNC: Duration = Duration::from_secs(30);

pub(crate) async fn handle(context: Arc<Context>, session: &Session, request: Request<Incoming>) -> Response<Body> {
    match (request.method(), request.uri().path()) {
        (&Method::POST, control::RESTORE) => match read_json::<Restore>(request).await {
            Ok(ask) => restore(&context, &ask).await,
            Err(refusal) => refusal,
        },
        (&Method::POST, control::QUIESCE) => quiesce(&context, session).await,
        (&Method::POST, control::POWEROFF) => power_off(&context),
        (&Method::GET, control::VERSION) => {
            let version = Version { agent: env!("CARGO_PKG_VERSION").to_owned(), protocol: PROTOCOL };
            body::json(StatusCode::OK, &version)
        }
        (&Method::GET, control::BUSY) => body::json(StatusCode::OK, &busy(&context)),
        (&Method::GET, control::OBSTACLES) => obstacles().await,
        (&Method::GET, control::TREE) => tree::pack(request.uri().query()).await,
        (&Method::PUT, control::TREE) => tree::unpack(request).await,
        (&Method::POST, control::GROW) => match read_json::<Grow>(request).await {
            Ok(ask) => grow(&context, ask).await,
            Err(refusal) => refusal,
        },
        (
            _,
            control::RESTORE
            | control::QUIESCE
            | control::POWEROFF
            | control::VERSION
            | control::BUSY
            | control::OBSTACLES
            | control::TREE
            | control::GROW,
        ) => body::error(StatusCode::METHOD_NOT_ALLOWED, "method not allowed"),
        _ => body::error(StatusCode::NOT_FOUND, "no such control route"),
    }
}

async fn read_json<T: serde::de::DeserializeOwned>(request: Request<Incoming>) -> Result<T, Response<Body>> {
    let bytes = Limited::new(request.into_body(), REQUEST_LIMIT).collect().await;
    let bytes = bytes.map_err(|error| body::error(StatusCode::BAD_REQUEST, &format!("body: {error}")))?.to_bytes();
    serde_json::from_slice(&bytes).map_err(|error| body::error(StatusCode::BAD_REQUEST, &format!("body: {error}")))
}

/// The JSON form of a restore.
async fn restore(context: &Context, ask: &Restore) -> Response<Body> {
    let ask = match Repair::try_from(ask) {
        Ok(ask) => ask,
        Err(error) => return body::error(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    match repair(context, &ask).await {
        Ok(answer) => {
            if let Some(name) = ask.hostname {
                context.tasks.spawn_blocking(settle(context, name));
            }
            body::json(StatusCode::OK, &answer)
        }
        Err(Refusal::Invalid(why)) => body::error(StatusCode::BAD_REQUEST, &why),
        Err(Refusal::Failed(why)) => body::error(StatusCode::INTERNAL_SERVER_ERROR, &why),
    }
}

/// What is left to do after a restore that gave it this name, and nobody waits for.
pub(crate) fn settle(context: &Context, name: String) -> impl FnOnce() + Send + 'static {
    let (powers, woken) = (context.powers, context.has_woken());
    move || match powers {
        Powers::Machine => init::settle(&name, woken),
        Powers::Container => init::publish_hostname(&name),
        Powers::Process => {}
    }
}

/// Why a restore did not happen.
pub(crate) enum Refusal {
    /// It makes no sense; nothing was changed.
    Invalid(String),
    /// The kernel would not have it.
    Failed(String),
}

impl Refusal {
    pub(crate) fn text(self) -> String {
        match self {
            Self::Invalid(why) | Self::Failed(why) => why,
        }
    }
}

/// Repairs what froze with the memory, hooks included.
pub(crate) async fn repair(context: &Context, ask: &Repair) -> Result<RestoreAnswer, Refusal> {
    let (clock_error_us, hooks) = begin_repair(context, ask)?;
    let failed_hooks = match hooks {
        Some((directory, generation)) => run_hooks(context, directory, generation).await,
        None => Vec::new(),
    };
    end_repair(context, ask);
    Ok(RestoreAnswer { clock_error_us, failed_hooks })
}

/// The same for a thread outside the runtime, which is asked only if there are hooks to run.
pub(crate) fn repair_here(context: &Context, runtime: &Handle, ask: &Repair) -> Result<RestoreAnswer, Refusal> {
    let (clock_error_us, hooks) = begin_repair(context, ask)?;
    let failed_hooks = match hooks {
        Some((directory, generation)) => runtime.block_on(run_hooks(context, directory, generation)),
        None => Vec::new(),
    };
    end_repair(context, ask);
    Ok(RestoreAnswer { clock_error_us, failed_hooks })
}

/// The secret comes last, because only an answer that says yes may rotate it.
fn end_repair(context: &Context, ask: &Repair) {
    if let Some(secret) = ask.secret {
        context.set_secret(secret);
    }
}

/// Everything but hooks and secret: the clock's error, and where hooks are to be run for which generation. Everything is
/// checked before anything is changed; the clock comes first, because the time asked for is right only now.
fn begin_repair(context: &Context, ask: &Repair) -> Result<(i64, Option<(PathBuf, u64)>), Refusal> {
    if let Some(name) = &ask.hostname
        && !is_hostname(name)
    {
        return Err(Refusal::Invalid("hostname is not a host name".to_owned()));
    }
    if context.powers == Powers::Machine {
        let (sec, nsec) = (ask.time_unix_ns / 1_000_000_000, ask.time_unix_ns % 1_000_000_000);
        let time = Timespec { tv_sec: sec.cast_signed(), tv_nsec: nsec.cast_signed() };
        clock_settime(ClockId::Realtime, time).map_err(|error| not_done("set the clock", &error.into()))?;
    }
    let clock_error_us = clock_error_us(ask.time_unix_ns);
    if context.powers == Powers::Machine {
        wakeful_sys::guest::reseed_random(&ask.entropy).map_err(|error| not_done("reseed the random pool", &error))?;
    }
    if let Some(name) = &ask.hostname {
        match context.powers {
            Powers::Machine => init::set_hostname(name).map_err(|error| not_done("set the host name", &error))?,
            // An engine may not allow it; then the name in /etc/hosts is all there is.
            Powers::Container => drop(init::set_hostname(name)),
            Powers::Process => {}
        }
    }
    if let Some(env) = &ask.env {
        context.replace_env(env.clone());
    }
    if let Some(user) = &ask.default_user {
        context.set_default_user(user.clone());
    }
    if let Some(workdir) = &ask.default_workdir {
        context.set_default_workdir(workdir.clone());
    }
    let Some(generation) = ask.clone_generation else { return Ok((clock_error_us, None)) };
    let changed = context.set_clone_generation(generation);
    // Most images have none, and the first thread of a restored guest is dear.
    let hooks = if changed { context.hooks_to_run() } else { None };
    Ok((clock_error_us, hooks.map(|directory| (directory.clone(), generation))))
}

fn not_done(what: &str, error: &std::io::Error) -> Refusal {
    Refusal::Failed(format!("could not {what}: {error}"))
}

fn failed(what: &str, error: &std::io::Error) -> Response<Body> {
    body::error(StatusCode::INTERNAL_SERVER_ERROR, &format!("could not {what}: {error}"))
}

fn is_hostname(name: &str) -> bool {
    (1..=63).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.')
        && !name.starts_with(['-', '.'])
}

fn clock_error_us(asked_ns: u64) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let difference = (i128::try_from(now).unwrap_or(i128::MAX) - i128::from(asked_ns)) / 1000;
    i64::try_from(difference).unwrap_or(i64::MAX)
}

/// Runs the executables of the directory in the order of their names, and names those that failed or were late.
async fn run_hooks(context: &Context, directory: PathBuf, generation: u64) -> Vec<String> {
    let deadline = Instant::now() + HOOKS;
    let hooks = tokio::task::spawn_blocking(move || list_hooks(&directory)).await.unwrap_or_default();
    let mut failures = Vec::new();
    for hook in hooks {
        let name = hook.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let mut command = Command::new(&hook);
        command.env("CLONE_GENERATION", generation.to_string()).current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let reaper = context.reaper.clone();
        let spawned = tokio::task::spawn_blocking(move || reaper.spawn(&mut command)).await;
        let Ok(Ok((child, exit))) = spawned else {
            failures.push(name);
            continue;
        };
        match timeout_at(deadline, exit).await {
            Ok(Ok(status)) if status.success() => {}
            Ok(_) => failures.push(name),
            Err(_) => {
                if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                    let _ = kill_process_group(group, Signal::KILL);
                }
                failures.push(name);
            }
        }
    }
    failures
}

fn list_hooks(directory: &Path) -> Vec<PathBuf> {
    use std::os::unix::fs::PermissionsExt as _;

    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut hooks: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0))
        .take(HOOKS_LIMIT)
        .collect();
    hooks.sort_unstable();
    hooks
}

/// Flushes the file systems. The answer is this session's last: it is over before the host can have read it.
async fn quiesce(context: &Arc<Context>, session: &Session) -> Response<Body> {
    let looking = Arc::clone(context);
    let flush = tokio::task::spawn_blocking(move || {
        looking.look_for_hooks();
        if looking.is_nobody() {
            looking.processes.forget_ended();
        }
        rustix::fs::sync();
    });
    let (synced, ()) = tokio::join!(timeout(SYNC, flush), session.park());
    let synced = matches!(synced, Ok(Ok(())));
    session.call_last();
    body::json(StatusCode::OK, &QuiesceAnswer { synced })
}

/// Who would be disturbed by a sleep.
fn busy(context: &Context) -> Busy {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let now = i64::try_from(now).unwrap_or(i64::MAX);
    let mut processes = context.processes.keep_awake_pids();
    processes.sort_unstable_by_key(|(_, started)| *started);
    let age = |started: i64| u64::try_from(now.saturating_sub(started)).unwrap_or(0);
    let keep_awake = processes.into_iter().take(MAX_BUSY);
    let keep_awake = keep_awake.map(|(pid, started)| BusyProcess { pid, since_ms: age(started) }).collect();
    Busy { leases: context.leases.list(), keep_awake }
}

/// What could not be saved. Work that outlives its session: the walk cannot be called off.
async fn obstacles() -> Response<Body> {
    match tokio::task::spawn_blocking(obstacles::find).await {
        Ok(found) => body::json(StatusCode::OK, &found),
        Err(_) => body::error(StatusCode::INTERNAL_SERVER_ERROR, "could not look for what cannot be saved"),
    }
}

fn not_ours() -> Response<Body> {
    body::error(StatusCode::NOT_IMPLEMENTED, "this agent does not own its machine")
}

/// The file system follows its disk.
async fn grow(context: &Context, Grow { bytes }: Grow) -> Response<Body> {
    let grow = match context.powers {
        Powers::Machine => disk::grow_to,
        Powers::Container => |_| container::disk_bytes(),
        Powers::Process => return not_ours(),
    };
    match tokio::task::spawn_blocking(move || grow(bytes)).await.map_err(std::io::Error::other).flatten() {
        Ok(bytes) => body::json(StatusCode::OK, &Grown { bytes }),
        Err(error) => failed("grow the file system", &error),
    }
}

fn power_off(context: &Context) -> Response<Body> {
    let power_off = match context.powers {
        Powers::Machine => init::power_off,
        Powers::Container => container::power_off,
        Powers::Process => return not_ours(),
    };
    // In a thread of its own: it must come to its end whatever happens to the session and the runtime.
    match std::thread::Builder::new().name("poweroff".to_owned()).spawn(power_off) {
        Ok(_) => body::json(StatusCode::ACCEPTED, &serde_json::json!({})),
        Err(error) => failed("power off", &error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_are_checked() {
        for good in ["a", "sbx-1", "k3v7q2m5x6a4b2c7d5ef", "a.b"] {
            assert!(is_hostname(good), "{good}");
        }
        for bad in ["", "-a", "a b", "a\n", "a/b", &"x".repeat(64)] {
            assert!(!is_hostname(bad), "{bad}");
        }
    }

    #[test]
    fn the_clock_error_has_a_sign() {
        let now =
            u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos()).expect("fits");
        assert!((0..10_000_000).contains(&clock_error_us(now)));
        assert!(clock_error_us(now + 3_600_000_000_000) < -3_500_000_000);
    }
}
