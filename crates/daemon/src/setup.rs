//! Makes a fresh machine ready: packages, engines, first templates.
//!
//! ```text
//!   packages ─▶ QEMU, kernel, KVM probe ─▶ runsc, and a try ─▶ templates, each with what its sandboxes begin from
//!               (unless gvisor)            (gvisor, or no KVM)
//! ```
//!
//! Every step looks first whether it was done, so that running it again costs seconds and repairs what is missing. The
//! templates need the data directory for themselves; if a daemon has it, they are left to that one, and the caller is
//! told which.

use std::path::PathBuf;
use std::time::Duration;

use tokio_stream::StreamExt;
use wakeful_api_types::RuntimeInfo;
use wakeful_driver_gvisor::Gvisor;
use wakeful_lifecycle::{Lifecycle, NewTemplate};
use wakeful_model::{DEFAULT_TENANT, TemplateSource, TemplateStatus};

use crate::config::{Config, RuntimeChoice};
use crate::paths::{Holder, Paths};
use crate::runtimes::{self, gvisor_config};
use crate::{doctor, wire};

/// How long what is under way may take when all is done.
const GRACE: Duration = Duration::from_secs(10);
/// A build that says nothing for so long has hung.
const SILENCE: Duration = Duration::from_secs(600);

/// Names of the templates that come with this program.
pub const BUILTINS: &[&str] = &wakeful_images::BUILTINS;
/// Those that are built unless others are named.
pub const FIRST: &[&str] = &["base", "python"];

/// What the templates that come with this program are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// Packages of the archive that this host has.
    OfPackages,
    /// The official images of a registry.
    OfImages,
}

/// What is under way.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The step.
    pub step: &'a str,
    /// How much of it is done, from 0 to 1, where that is known.
    pub fraction: Option<f32>,
    /// What a program said.
    pub line: Option<&'a str>,
}

/// Where [`Progress`] goes.
pub type Listener<'a> = &'a (dyn Fn(Progress<'_>) + Send + Sync);

/// Why a machine could not be made ready.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Packages and engines' users need it.
    #[error("setup must run as root")]
    NotRoot,
    /// No such template comes with this program.
    #[error("there is no built-in template {0:?}")]
    NoBuiltin(String),
    /// A directory could not be made.
    #[error(transparent)]
    Paths(#[from] crate::paths::Error),
    /// Packages could not be installed.
    #[error("could not install packages")]
    Packages(#[source] wakeful_debian::Error),
    /// The guest kernel could not be prepared.
    #[error("could not prepare the guest kernel")]
    Kernel(#[source] wakeful_driver::Error),
    /// A hardened QEMU could not be had.
    #[error("could not get a QEMU that maps golden memory read-only")]
    Hardened(#[source] wakeful_driver::Error),
    /// There is no driver for it.
    #[error("runtime firecracker: only qemu and gvisor are there yet")]
    Unsupported,
    /// runsc could not be had.
    #[error("could not get runsc")]
    Runsc(#[source] wakeful_driver::Error),
    /// runsc is there, and no sandbox ran, slept and woke on it.
    #[error("gVisor cannot be used on this machine")]
    Gvisor(#[source] wakeful_driver::Error),
    /// Nothing here can run a guest.
    #[error("no runtime is usable: {0}")]
    NoRuntime(String),
    /// The data directory could not be opened.
    #[error(transparent)]
    Wire(#[from] wire::Error),
    /// A template could not be asked for.
    #[error("could not build template {name}")]
    Template {
        /// Which.
        name: String,
        /// Why not.
        source: wakeful_lifecycle::Error,
    },
    /// A build failed.
    #[error("template {name} was not built: {detail}")]
    Build {
        /// Which.
        name: String,
        /// At which step, and why.
        detail: String,
    },
}

/// What a machine has now.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The data directory.
    pub data_dir: PathBuf,
    /// The guest kernel's package, if one is needed.
    pub kernel: Option<String>,
    /// What was prepared, and whether it can run guests.
    pub runtimes: Vec<RuntimeInfo>,
    /// What would have been better, and why it is not so.
    pub warnings: Vec<String>,
    /// What became of the templates.
    pub templates: Templates,
}

/// What became of the templates.
#[derive(Clone, Debug)]
pub enum Templates {
    /// All that were asked for are ready.
    Ready,
    /// A daemon has the data directory, and can build these.
    LeftTo {
        /// Who.
        holder: Holder,
        /// Name and source of each that was asked for.
        templates: Vec<(String, TemplateSource)>,
    },
}

/// Whether a newer QEMU is fetched if the installed one lets engines write to golden memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hardened {
    /// It is.
    Yes,
    /// What is installed is used.
    No,
}

/// Does all of it, for the runtime of the configuration; `auto` is QEMU, and gVisor as well where KVM is not proven.
/// `templates` names the built-in templates that are wanted.
///
/// # Errors
/// At the first step that fails; what was done before stays done. With `auto`, a gVisor that cannot be had is a warning.
///
/// # Cancel safety
/// It can be dropped between any two steps and run again. An installation of packages is left to finish.
pub async fn setup(
    config: &Config,
    templates: &[String],
    made: Made,
    hardened: Hardened,
    progress: Listener<'_>,
) -> Result<Outcome, Error> {
    if !rustix::process::geteuid().is_root() {
        return Err(Error::NotRoot);
    }
    if config.runtime == RuntimeChoice::Firecracker {
        return Err(Error::Unsupported);
    }
    let wanted = templates.iter().map(|name| source(name, made)).collect::<Result<Vec<_>, _>>()?;
    let paths = Paths::open(&config.data_dir)?;

    progress(Progress { step: "packages", fraction: None, line: None });
    let told = |from: wakeful_debian::Progress<'_>| {
        progress(Progress { step: "packages", fraction: from.fraction, line: Some(from.line) });
    };
    wakeful_debian::ensure_installed(wakeful_debian::RUNTIME_PACKAGES, &told).await.map_err(Error::Packages)?;

    let (mut kernel, mut found, mut warnings) = (None, Vec::new(), Vec::new());
    if config.runtime != RuntimeChoice::Gvisor {
        kernel = Some(prepare_qemu(config, &paths, hardened, progress).await?);
        let line = Some("trying whether a guest runs under KVM");
        progress(Progress { step: "runtimes", fraction: None, line });
        found = runtimes::survey_qemu(config, &paths).await;
    }
    let gvisor = match config.runtime {
        RuntimeChoice::Gvisor => Some(prepare_gvisor(config, &paths, progress).await?),
        RuntimeChoice::Auto if !runtimes::usable(&found).kvm => {
            let prepared = prepare_gvisor(config, &paths, progress).await;
            let warn = |error: &Error| {
                warnings.push(format!("{}; sandboxes run on QEMU, emulated", runtimes::chain(error)));
            };
            prepared.inspect_err(warn).ok()
        }
        _ => None,
    };
    // What first sandboxes will run on comes first.
    let mut ready = Vec::new();
    if let Some(gvisor) = gvisor {
        found.insert(found.len().min(1), gvisor);
        ready.push(RuntimeChoice::Gvisor);
    }
    let usable = runtimes::usable(&found);
    if usable.kvm || usable.emulated {
        ready.push(RuntimeChoice::Qemu);
    }
    if ready.is_empty() {
        let why = found.into_iter().filter_map(|runtime| runtime.reason).chain(warnings);
        return Err(Error::NoRuntime(why.collect::<Vec<_>>().join("; ")));
    }

    let mut templates = Templates::Ready;
    for runtime in ready {
        if matches!(templates, Templates::Ready) && !wanted.is_empty() {
            let config = Config { runtime, ..config.clone() };
            templates = build(&config, wanted.clone(), progress).await?;
        }
    }
    let runtimes = found.into_iter().map(doctor::in_words).collect();
    Ok(Outcome { data_dir: paths.data, kernel, runtimes, warnings, templates })
}

/// QEMU and the kernel of its guests; tells which kernel.
async fn prepare_qemu(
    config: &Config,
    paths: &Paths,
    hardened: Hardened,
    progress: Listener<'_>,
) -> Result<String, Error> {
    if config.qemu.binary.is_none() {
        let told = |from: wakeful_debian::Progress<'_>| {
            progress(Progress { step: "packages", fraction: from.fraction, line: Some(from.line) });
        };
        wakeful_driver_qemu::ensure_qemu(&told).await.map_err(Error::Packages)?;
    }
    if hardened == Hardened::Yes && !doctor::maps_read_only(config, paths).await {
        progress(Progress { step: "hardened engine", fraction: None, line: None });
        wakeful_driver_qemu::fetch_hardened(&paths.data).await.map_err(Error::Hardened)?;
    }
    progress(Progress { step: "guest kernel", fraction: None, line: None });
    match &config.qemu.kernel {
        Some(path) => Ok(path.display().to_string()),
        None => {
            let told = |line: &str| progress(Progress { step: "guest kernel", fraction: None, line: Some(line) });
            let kernel = wakeful_driver_qemu::prepare_kernel(&paths.data, &told).await.map_err(Error::Kernel)?;
            Ok(kernel.version)
        }
    }
}

/// A runsc on which a sandbox ran, slept and woke.
async fn prepare_gvisor(
    config: &Config,
    paths: &Paths,
    progress: Listener<'_>,
) -> Result<wakeful_lifecycle::RuntimeInfo, Error> {
    const STEP: &str = "gVisor";
    let tell = |line| progress(Progress { step: STEP, fraction: None, line: Some(line) });
    if config.gvisor.binary.is_none() {
        let data = paths.data.clone();
        // It asks a program for its version.
        let there = tokio::task::spawn_blocking(move || wakeful_driver_gvisor::find_runsc(&data, None).is_ok()).await;
        if !there.unwrap_or_default() {
            tell("getting runsc");
            wakeful_driver_gvisor::fetch(&paths.data).await.map_err(Error::Runsc)?;
        }
    }
    tell("trying whether a sandbox runs, sleeps and wakes");
    let gvisor = Gvisor::open(gvisor_config(config, &paths.data, &paths.run)).await.map_err(Error::Gvisor)?;
    Ok(runtimes::opened(&gvisor))
}

fn source(name: &str, made: Made) -> Result<(String, TemplateSource), Error> {
    let builtin = wakeful_images::builtin(name).ok_or_else(|| Error::NoBuiltin(name.to_owned()))?;
    let source = match made {
        Made::OfPackages => TemplateSource::Debian { suite: builtin.debian.suite, packages: builtin.debian.packages },
        Made::OfImages => TemplateSource::Image { reference: Some(builtin.image), upload: None },
    };
    Ok((name.to_owned(), source))
}

async fn build(
    config: &Config,
    templates: Vec<(String, TemplateSource)>,
    progress: Listener<'_>,
) -> Result<Templates, Error> {
    let wired = match wire::open(config, "wakeful setup").await {
        Ok(wired) => wired,
        Err(wire::Error::Paths(crate::paths::Error::Held { holder, .. })) => {
            return Ok(Templates::LeftTo { holder, templates });
        }
        Err(error) => return Err(error.into()),
    };
    wired.lifecycle.warm_up();
    let begun_from = if config.runtime == RuntimeChoice::Gvisor { "tree" } else { "golden snapshot" };
    let mut built = Ok(());
    for (name, source) in templates {
        built = ensure(&wired.lifecycle, &name, source, begun_from, progress).await;
        if built.is_err() {
            break;
        }
    }
    wired.lifecycle.drain(GRACE).await;
    wired.close().await;
    built.map(|()| Templates::Ready)
}

/// Builds a template unless it is there. One that failed before gets another try.
async fn ensure(
    lifecycle: &Lifecycle,
    name: &str,
    source: TemplateSource,
    begun_from: &str,
    progress: Listener<'_>,
) -> Result<(), Error> {
    let failed = |source| Error::Template { name: name.to_owned(), source };
    let there = match lifecycle.template(DEFAULT_TENANT, name).await {
        Ok(template) => Some(template.status),
        Err(wakeful_lifecycle::Error::TemplateNotFound(_)) => None,
        Err(error) => return Err(failed(error)),
    };
    match there {
        // A new engine, kernel or agent wants a new golden snapshot, and another runtime what its sandboxes begin from.
        Some(TemplateStatus::Ready) => {
            let step = format!("template {name}: {begun_from}");
            progress(Progress { step: &step, fraction: None, line: None });
            return lifecycle.prepare_template(DEFAULT_TENANT, name).await.map_err(failed);
        }
        Some(TemplateStatus::Pending | TemplateStatus::Building) => {}
        Some(TemplateStatus::Failed | TemplateStatus::Deleted) => {
            lifecycle.delete_template(DEFAULT_TENANT, name).await.map_err(failed)?;
            lifecycle.create_template(new(name, source)).await.map_err(failed)?;
        }
        None => {
            lifecycle.create_template(new(name, source)).await.map_err(failed)?;
        }
    }
    let mut log = lifecycle.template_log(DEFAULT_TENANT, name, true).await.map_err(failed)?;
    loop {
        match tokio::time::timeout(SILENCE, log.next()).await {
            Ok(Some(line)) => {
                let step = format!("template {name}: {}", line.step);
                progress(Progress { step: &step, fraction: line.fraction, line: line.line.as_deref() });
            }
            Ok(None) => break,
            Err(_) => {
                let detail = format!("the build said nothing for {SILENCE:?}");
                return Err(Error::Build { name: name.to_owned(), detail });
            }
        }
    }
    let template = lifecycle.template(DEFAULT_TENANT, name).await.map_err(failed)?;
    match (template.status, template.build_error) {
        (TemplateStatus::Ready, _) => Ok(()),
        (_, Some(error)) => {
            Err(Error::Build { name: name.to_owned(), detail: format!("{}: {}", error.step, error.detail) })
        }
        (status, None) => Err(Error::Build { name: name.to_owned(), detail: format!("it is {status}") }),
    }
}

/// A sandbox of these is for its caller's commands: the shell or interpreter that an official image starts is not.
fn new(name: &str, source: TemplateSource) -> NewTemplate {
    let description = wakeful_images::builtin(name).map(|builtin| builtin.description).unwrap_or_default();
    let asked = wakeful_model::Asked { start: Some(Vec::new()), ..wakeful_model::Asked::default() };
    NewTemplate { description, asked, ..NewTemplate::new(DEFAULT_TENANT, name, source) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_builtin_has_a_source() {
        for name in BUILTINS {
            assert_eq!(source(name, Made::OfPackages).unwrap().0, *name);
            assert!(matches!(source(name, Made::OfImages).unwrap().1, TemplateSource::Image { .. }));
        }
        assert!(FIRST.iter().all(|name| BUILTINS.contains(name)));
        assert!(matches!(source("nosuch", Made::OfPackages), Err(Error::NoBuiltin(name)) if name == "nosuch"));
    }
}
