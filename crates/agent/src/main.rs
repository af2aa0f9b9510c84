//! In-guest init and agent: one static file that any unmodified image can be started with.
//!
//! ```text
//!   pid 1 of a virtual machine     init, then the channel on the virtio port, then the inner surface on loopback
//!   wakeful-agent container        pid 1 of a container: the secret by standard input, the channel on TCP 49982
//!   wakeful-agent serve …          an ordinary process: the same channel on a socket, the machine left alone
//!   wakeful-agent lease …          for people inside: keeps the sandbox awake while a command runs
//! ```

mod awake;
mod body;
mod channel;
mod container;
mod context;
mod control;
mod disk;
mod files;
mod init;
mod lease;
mod metrics;
mod network;
mod obstacles;
mod process;
mod reaper;
mod routes;
mod serve;
mod session;
mod tcp;
mod tree;
mod tunnel;

use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use wakeful_guest_proto::card;

use crate::channel::{Accepted, Port};
use crate::context::{Context, Powers};
use crate::reaper::Reaper;
use crate::serve::Door;

const USAGE: &str = "usage: wakeful-agent serve (--unix PATH | --tcp ADDRESS) --secret-file FILE [--inside ADDRESS] [--clone-hooks DIR] [--lease-socket PATH]\n       wakeful-agent lease TTL [--name NAME] -- COMMAND [ARGUMENT…]";
/// Where programs inside expect the surface.
const INSIDE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 49983);
const CLONE_HOOKS: &str = "/etc/wakeful/clone.d";
/// How long the driver of the port may take.
const PORT: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let words: Vec<std::ffi::OsString> = std::env::args_os().skip(1).collect();
    if std::process::id() != 1 && words.first().is_some_and(|word| word == "lease") {
        return lease::command::main(&words[1..]);
    }
    let arguments: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    // The kernel hands init what it does not understand of its own command line, so only our own word counts.
    let serving = arguments.first().is_some_and(|word| word == "serve");
    if std::process::id() == 1 && arguments.first().is_some_and(|word| word == "container") {
        let error = match container_main() {
            Ok(never) => match never {},
            Err(error) => error,
        };
        container::give_up(&format!("{error:#}"));
    }
    if std::process::id() == 1 && !serving {
        let error = match init_main() {
            Ok(never) => match never {},
            Err(error) => error,
        };
        init::give_up(&format!("{error:#}"));
    }
    let served = parse(&arguments).and_then(|options| serve_main(&options));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// One thread for everything that waits: guests mostly have one processor, and an emulated one at that.
fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().max_blocking_threads(16).thread_stack_size(512 * 1024).build()
}

fn init_main() -> anyhow::Result<std::convert::Infallible> {
    let secret = init::prepare()?;
    let reaper = Reaper::start().context("could not start the reaper")?;
    let context = Arc::new(Context::new(Powers::Machine, secret, reaper, Some(CLONE_HOOKS.into())));
    let port = init::await_ready(PORT, || match Port::open() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    });
    let port = port.context("could not open the port")?;
    // One at a time: a host is accepted when the last session's pump is over, its hyper side at most one wake later.
    let (sessions, accepted) = mpsc::channel(1);
    let runtime = runtime().context("could not start the runtime")?;
    let pump = {
        let (context, handle) = (Arc::clone(&context), runtime.handle().clone());
        move || {
            let end = port.run(&context, &handle, &sessions);
            init::give_up(&format!("the port failed: {end:?}"));
        }
    };
    std::thread::Builder::new().name("port".to_owned()).spawn(pump).context("could not start the port's thread")?;
    runtime.block_on(machine(context, accepted))
}

fn container_main() -> anyhow::Result<std::convert::Infallible> {
    let secret = container::prepare().context("could not take the secret")?;
    let listener =
        TcpListener::bind((Ipv4Addr::UNSPECIFIED, card::CHANNEL)).context("could not listen for the host")?;
    let reaper = Reaper::start().context("could not start the reaper")?;
    let context = Arc::new(Context::new(Powers::Container, secret, reaper, Some(CLONE_HOOKS.into())));
    let (sessions, accepted) = mpsc::channel(1);
    let runtime = runtime().context("could not start the runtime")?;
    let door = tcp::Door::new(Arc::clone(&context), runtime.handle().clone(), sessions);
    let accept = move || door.run(&listener);
    std::thread::Builder::new().name("door".to_owned()).spawn(accept).context("could not start the door's thread")?;
    runtime.block_on(machine(context, accepted))
}

/// Serves the port's sessions and the inner surface.
async fn machine(
    context: Arc<Context>,
    mut accepted: mpsc::Receiver<Accepted>,
) -> anyhow::Result<std::convert::Infallible> {
    let inner = Arc::clone(&context);
    context.tasks.spawn(async move {
        // A convenience for programs inside: the sandbox works without it.
        if let Err(error) = serve::inside(inner, INSIDE).await {
            init::say(&format!("could not listen on {INSIDE}: {error}"));
        }
    });
    let leasing = Arc::clone(&context);
    context.tasks.spawn(async move {
        if let Err(error) = lease::socket::serve(leasing, lease::socket::PATH.as_ref()).await {
            init::say(&format!("could not listen on {}: {error}", lease::socket::PATH));
        }
    });
    while let Some(Accepted { stream, session }) = accepted.recv().await {
        let stream = UnixStream::from_std(stream).context("could not take a session")?;
        let context = Arc::clone(&context);
        context.tasks.clone().spawn(session::serve(stream, context, session));
    }
    bail!("the port's thread is gone")
}

#[derive(Debug, PartialEq, Eq)]
struct Options {
    door: Door,
    secret_file: PathBuf,
    inside: Option<SocketAddr>,
    clone_hooks: Option<PathBuf>,
    lease_socket: Option<PathBuf>,
}

fn parse(arguments: &[String]) -> anyhow::Result<Options> {
    let mut words = arguments.iter();
    if words.next().is_none_or(|word| word != "serve") {
        bail!("{USAGE}");
    }
    let (mut door, mut secret_file, mut inside, mut clone_hooks, mut lease_socket) = (None, None, None, None, None);
    while let Some(flag) = words.next() {
        let value = words.next().with_context(|| format!("{flag} needs a value\n{USAGE}"))?;
        match flag.as_str() {
            "--unix" => door = Some(Door::Unix(value.into())),
            "--tcp" => door = Some(Door::Tcp(value.parse().with_context(|| format!("{value} is not an address"))?)),
            "--secret-file" => secret_file = Some(value.into()),
            "--inside" => inside = Some(value.parse().with_context(|| format!("{value} is not an address"))?),
            "--clone-hooks" => clone_hooks = Some(value.into()),
            "--lease-socket" => lease_socket = Some(value.into()),
            _ => bail!("unknown option {flag}\n{USAGE}"),
        }
    }
    let (Some(door), Some(secret_file)) = (door, secret_file) else { bail!("{USAGE}") };
    Ok(Options { door, secret_file, inside, clone_hooks, lease_socket })
}

fn serve_main(options: &Options) -> anyhow::Result<()> {
    let secret = std::fs::read(&options.secret_file)
        .with_context(|| format!("could not read {}", options.secret_file.display()))?
        .try_into()
        .map_err(|_| anyhow::anyhow!("{} does not have 32 bytes", options.secret_file.display()))?;
    // Orphans of what is run here stay ours, as they would for an init: killing a tree must find them.
    let _ = rustix::process::set_child_subreaper(rustix::process::Pid::from_raw(1));
    let reaper = Reaper::start().context("could not start the reaper")?;
    let context = Arc::new(Context::new(Powers::Process, secret, reaper, options.clone_hooks.clone()));
    runtime().context("could not start the runtime")?.block_on(async {
        if let Some(address) = options.inside {
            let inner = Arc::clone(&context);
            context.tasks.spawn(async move {
                if let Err(error) = serve::inside(inner, address).await {
                    let _ = writeln!(io::stderr(), "error: could not listen on {address}: {error}");
                }
            });
        }
        if let Some(path) = options.lease_socket.clone() {
            let leasing = Arc::clone(&context);
            context.tasks.spawn(async move {
                if let Err(error) = lease::socket::serve(leasing, &path).await {
                    let _ = writeln!(io::stderr(), "error: could not listen on {}: {error}", path.display());
                }
            });
        }
        serve::door(Arc::clone(&context), &options.door).await.context("could not listen")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> anyhow::Result<Options> {
        parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_taken_or_refused() {
        let options = parsed("serve --unix /run/a --secret-file /s").expect("complete");
        assert_eq!(options.door, Door::Unix("/run/a".into()));
        assert_eq!(options.inside, None);
        let options = parsed("serve --secret-file /s --tcp 127.0.0.1:7 --inside [::1]:8").expect("complete");
        assert_eq!(options.door, Door::Tcp(([127, 0, 0, 1], 7).into()));
        for bad in
            ["", "init", "serve", "serve --unix /a", "serve --unix", "serve --tcp x --secret-file /s", "serve --x y"]
        {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }
}
