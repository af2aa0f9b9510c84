//! `wakeful setup`.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use clap::Args;
use wakeful_client::types::CreateTemplate;
use wakeful_client::{Client, Error as ClientError};
use wakeful_daemon::config::{Config, DEFAULT_FILE, Loaded, Overrides};
use wakeful_daemon::paths::Holder;
use wakeful_daemon::setup::{self, Error, Outcome, Templates};
use wakeful_daemon::systemd::{self, Enabled, Service, Unit};
use wakeful_model::{TemplateSource, TemplateStatus};

use super::serve::Local;
use super::template;
use crate::args::Global;
use crate::failure::Failure;
use crate::interrupt::or_interrupt;
use crate::output;
use crate::progress::{Steps, Verbose};
use crate::server;

/// Prepare this machine: packages, engines, first templates
#[derive(Args, Debug)]
#[command(after_help = "\
Run it as root, once. Run again, it only repairs what is missing.

auto prepares QEMU, and gVisor too where no guest runs under KVM: then runsc is fetched, and a
sandbox is run, put to sleep and woken on it. With qemu or gvisor only that one is prepared, and
setup fails if it cannot be used. A runsc that [gvisor] binary names is tried and nothing fetched.

Examples:
  wakeful setup
  wakeful setup --runtime gvisor
  wakeful setup --template node --template go
  wakeful setup --no-templates --data-dir /srv/wakeful
  wakeful setup --systemd                    and run the daemon with the host
  wakeful setup --systemd --print            only show the units")]
pub(crate) struct Setup {
    #[command(flatten)]
    local: Local,
    /// Build no templates
    #[arg(long, conflicts_with = "template")]
    no_templates: bool,
    /// Build this template only (repeatable): base, python, node, go [default: base and python]
    #[arg(long, value_name = "NAME")]
    template: Vec<String>,
    /// Make them of the official images of the configured registry instead of Debian packages
    #[arg(long, conflicts_with = "no_templates")]
    images: bool,
    /// Fetch a newer QEMU from the release's backports if the installed one lets engines write to golden memory
    #[arg(long)]
    hardened: bool,
    /// Install units for systemd: the daemon, and what suspends all sandboxes before the host shuts down
    #[arg(long)]
    systemd: bool,
    /// Print the units and do nothing else
    #[arg(long, requires = "systemd")]
    print: bool,
    /// Where the units go
    #[arg(long, value_name = "DIR", requires = "systemd", default_value = systemd::UNITS, hide = true)]
    systemd_dir: PathBuf,
    /// Show all that programs say
    #[arg(short, long)]
    verbose: bool,
}

impl Setup {
    pub(crate) async fn run(self, global: &Global) -> Result<u8, Failure> {
        let loaded = self.local.load(Overrides::default())?;
        let units = if self.systemd { units(&loaded)? } else { Vec::new() };
        if self.print {
            let texts =
                units.iter().map(|unit| format!("# {}/{}\n{}", self.systemd_dir.display(), unit.name, unit.text));
            output::bytes(texts.collect::<Vec<_>>().join("\n").as_bytes())?;
            return Ok(0);
        }
        let verbose = if self.verbose { Verbose::Yes } else { Verbose::No };
        let templates = match (self.no_templates, self.template) {
            (true, _) => Vec::new(),
            (false, named) if named.is_empty() => setup::FIRST.iter().map(|&name| name.to_owned()).collect(),
            (false, named) => named,
        };
        let steps = Mutex::new(Steps::new(verbose));
        let told = |event: setup::Progress<'_>| {
            steps.lock().expect("no panic while it is held").event(event.step, event.fraction, event.line);
        };
        let work = async {
            let hardened = if self.hardened { setup::Hardened::Yes } else { setup::Hardened::No };
            let made = if self.images { setup::Made::OfImages } else { setup::Made::OfPackages };
            let done = setup::setup(&loaded.config, &templates, made, hardened, &told).await;
            let mut steps = steps.lock().expect("no panic while it is held");
            match &done {
                Ok(outcome) => steps.done(&describe(outcome)),
                Err(_) => steps.failed(),
            }
            drop(steps);
            done.map_err(|error| refused(&error))
        };
        let outcome = or_interrupt(work).await?;
        for warning in &outcome.warnings {
            output::warning(warning);
        }
        if let Templates::LeftTo { holder, templates } = &outcome.templates {
            or_interrupt(ask_daemon(global, holder, &outcome.data_dir, templates, verbose)).await?;
        }
        if self.systemd {
            output::say(&install(&self.systemd_dir, &units)?);
        } else {
            output::say("this machine is ready: `wakeful serve` runs the daemon");
        }
        Ok(0)
    }
}

/// The units for this program and this configuration.
fn units(loaded: &Loaded) -> Result<Vec<Unit>, Failure> {
    let absolute = |path: &Path| std::path::absolute(path).map_err(|error| Failure::file("find", path, &error));
    let binary =
        std::env::current_exe().map_err(|error| Failure::refused(format!("where is this program? {error}")))?;
    let config = match &loaded.file {
        Some(file) if file != Path::new(DEFAULT_FILE) => Some(absolute(file)?),
        Some(_) | None => None,
    };
    // What the file alone says need not be said again; what a flag or the environment said would be lost.
    let flags = Overrides { config: config.clone(), ..Overrides::default() };
    let by_file = Config::load_from(flags, |_| None, Path::new(DEFAULT_FILE));
    let same = by_file.is_ok_and(|alone| alone.config.data_dir == loaded.config.data_dir);
    let data_dir = if same { None } else { Some(absolute(&loaded.config.data_dir)?) };
    systemd::units(&Service { binary, config, data_dir }).map_err(|error| Failure::refused(Failure::chain(&error)))
}

/// Installs them; what is to be said about it.
fn install(into: &Path, units: &[Unit]) -> Result<String, Failure> {
    let refused = |error: systemd::Error| Failure::refused(Failure::chain(&error)).hint("setup must run as root");
    let written = systemd::install(into, units).map_err(refused)?;
    let shown = match written.len() {
        0 => format!("the units in {} are up to date", into.display()),
        _ => {
            format!("wrote {}", written.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and "))
        }
    };
    // Elsewhere systemd would not look for them.
    let enabled = if into == Path::new(systemd::UNITS) { systemd::enable(units) } else { Ok(Enabled::NotRunning) };
    Ok(match enabled.map_err(|error| Failure::refused(Failure::chain(&error)))? {
        Enabled::Yes => format!("{shown}; this machine is ready: `systemctl start wakeful` runs the daemon"),
        Enabled::NotRunning => format!(
            "{shown}; systemd does not run here: where it does, `systemctl daemon-reload` and `systemctl enable --now wakeful wakeful-suspend`"
        ),
    })
}

fn describe(outcome: &Outcome) -> String {
    let usable = outcome.runtimes.iter().filter(|runtime| runtime.available);
    let runtimes: Vec<String> = usable.map(|runtime| format!("{}/{}", runtime.name, runtime.accel)).collect();
    let kernel = outcome.kernel.as_ref().map(|kernel| format!("guest kernel {kernel}, ")).unwrap_or_default();
    format!("{}: {kernel}runtimes {}", outcome.data_dir.display(), runtimes.join(", "))
}

/// A daemon has the data directory: what it does not have yet, it builds itself.
async fn ask_daemon(
    global: &Global,
    holder: &Holder,
    data: &Path,
    templates: &[(String, TemplateSource)],
    verbose: Verbose,
) -> Result<(), Failure> {
    let Some(url) = &holder.url else {
        return Err(Failure::refused(format!(
            "the templates were not built: the data directory is in use by {holder}"
        ))
        .hint("stop it and run setup again, or give --no-templates"));
    };
    output::say(&format!("{holder} has the data directory, so it is asked to build the templates"));
    let client = server::client_of(url, global, data)?;
    for (name, source) in templates {
        if !is_ready(&client, name).await? {
            let start = Some(wakeful_client::types::Command::Argv(Vec::new()));
            let new = CreateTemplate { start, ..CreateTemplate::new(name, source.clone()) };
            template::build(&client, &new, verbose).await?;
        }
    }
    Ok(())
}

/// One whose build failed is deleted, to be built again.
async fn is_ready(client: &Client, name: &str) -> Result<bool, Failure> {
    match client.template(name).await {
        Ok(template) if template.status == TemplateStatus::Failed => {
            client.delete_template(name).await?;
            Ok(false)
        }
        Ok(template) if template.status == TemplateStatus::Ready => Ok(true),
        Ok(_) => {
            template::follow(client, name, Verbose::No).await?;
            Ok(true)
        }
        Err(ClientError::Problem(problem)) if problem.code == "template_not_found" => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn refused(error: &Error) -> Failure {
    let failure = Failure::refused(Failure::chain(error));
    match error {
        Error::NotRoot => failure.hint("sudo wakeful setup"),
        Error::NoBuiltin(_) => failure.hint(format!("there are {}", setup::BUILTINS.join(", "))),
        Error::Packages(_) | Error::Kernel(_) | Error::Hardened(_) | Error::Runsc(_) => {
            failure.hint("can `apt-get update` reach your package archive?")
        }
        Error::Unsupported | Error::Gvisor(_) => failure.hint("`wakeful setup --runtime qemu` prepares QEMU instead"),
        Error::NoRuntime(_) => failure.hint("`wakeful doctor` shows what is missing"),
        Error::Build { .. } => failure.hint("run setup again with --verbose to see all that the build says"),
        Error::Paths(_) | Error::Wire(_) | Error::Template { .. } => failure,
    }
}
