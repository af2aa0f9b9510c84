//! The build from Debian packages: a list of steps, each of which can be repeated.

use std::path::Path;
use std::sync::Mutex;

use crate::draft::{Base, Draft};
use crate::{DebianSpec, Error, Event, Log, bootstrap};

/// Where a build works and where its result goes. `work` and `bases` must be on one file system.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a> {
    /// Gets a directory of the build's own, which is gone at its end.
    pub work: &'a Path,
    /// Gets `<digest>/base.ext4`.
    pub bases: &'a Path,
    /// Keeps downloaded packages and package lists for the next build. Builds may share it.
    pub cache: &'a Path,
}

/// Builds the image of `spec`.
///
/// # Errors
/// [`Error::InvalidPackage`], [`Error::InvalidSuite`] and [`Error::InvalidUser`] before anything is done;
/// [`Error::Step`] when a step failed, a package that does not exist included; [`Error::DiskFull`]; [`Error::Io`].
/// Nothing is left in `work` then; after a success it is removed in the background, on a thread for blocking work, for
/// which the end of the runtime waits.
///
/// # Cancel safety
/// Dropping the future kills what runs, and removes what it made in `work` in the background as well.
pub async fn build(spec: &DebianSpec, places: &Places<'_>, log: &dyn Log) -> Result<Base, Error> {
    spec.check()?;
    let reporter = Reporter::new(log);
    let sources = check(spec, &reporter).await?;
    let draft = Draft::begin(places.work)?;
    reporter.step(bootstrap::STEP, 0.05, 0.85);
    let built = match bootstrap::run(spec, &sources, draft.dir(), places.cache, &reporter).await {
        Ok(()) => draft.seal(places.bases, &reporter, (0.85, 0.95)).await,
        Err(error) => Err(error),
    };
    match built {
        // thousands of files may take seconds to unlink on a busy disk, and nobody waits for them
        Ok(_) => {
            drop(draft);
            reporter.done();
        }
        Err(_) => draft.abandon().await,
    }
    built
}

/// Asks the archive for what the spec names.
async fn check(spec: &DebianSpec, reporter: &Reporter<'_>) -> Result<Vec<String>, Error> {
    const STEP: &str = "check";
    reporter.step(STEP, 0.0, 0.05);
    let packages = spec.all_packages();
    let (sources, installable) = tokio::join!(wakeful_debian::sources(), wakeful_debian::check_installable(&packages));
    let sources = sources.map_err(Error::step_of(STEP))?;
    let chosen = for_suite(&sources, &spec.suite)?;
    installable.map_err(Error::step_of(STEP))?;
    Ok(chosen)
}

/// The archives of a release and of its updates.
fn for_suite(sources: &[String], suite: &str) -> Result<Vec<String>, Error> {
    let release = |source: &String| wakeful_debian::release(source).to_owned();
    let updates = format!("{suite}-");
    let chosen: Vec<String> =
        sources.iter().filter(|s| release(s) == suite || release(s).starts_with(&updates)).cloned().collect();
    if chosen.iter().any(|source| release(source) == suite) {
        return Ok(chosen);
    }
    let mut available: Vec<String> = sources.iter().map(release).filter(|name| !name.contains('-')).collect();
    available.dedup();
    Err(Error::InvalidSuite { suite: suite.to_owned(), available })
}

/// Tells the log where the build is: a step has a share of the whole, and may tell how far it is itself.
pub(crate) struct Reporter<'a> {
    log: &'a dyn Log,
    now: Mutex<(&'static str, f32, f32)>,
}

impl<'a> Reporter<'a> {
    pub(crate) fn new(log: &'a dyn Log) -> Self {
        Self { log, now: Mutex::new(("check", 0.0, 0.0)) }
    }

    fn at(&self) -> (&'static str, f32, f32) {
        *self.now.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn step(&self, step: &'static str, from: f32, to: f32) {
        *self.now.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = (step, from, to);
        self.log.event(Event { step, fraction: Some(from), line: "" });
    }

    /// One line of output, and how much of the step is done if it tells that.
    pub(crate) fn line(&self, share: Option<f32>, line: &str) {
        let (step, from, to) = self.at();
        let fraction = share.map(|share| (to - from).mul_add(share, from));
        self.log.event(Event { step, fraction, line });
    }

    pub(crate) fn done(&self) {
        self.log.event(Event { step: self.at().0, fraction: Some(1.0), line: "" });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suite_takes_its_updates_along() {
        let line = |release: &str| format!("deb http://one.example.invalid/debian/ {release} main");
        let sources = ["bookworm", "trixie", "bookworm-updates", "trixie-updates"].map(line);
        assert_eq!(for_suite(&sources, "bookworm").unwrap(), [line("bookworm"), line("bookworm-updates")]);
        let error = for_suite(&sources, "sid").unwrap_err();
        assert_eq!(error.to_string(), "unknown Debian release \"sid\", this host has bookworm, trixie");
    }

    #[test]
    fn a_line_tells_the_share_of_its_step() {
        let seen = Mutex::new(Vec::new());
        let log = |event: Event<'_>| seen.lock().unwrap().push((event.step, event.fraction, event.line.to_owned()));
        let reporter = Reporter::new(&log);
        reporter.step("image", 0.5, 1.0);
        reporter.line(Some(0.5), "half");
        reporter.line(None, "words");
        let seen = seen.into_inner().unwrap();
        assert_eq!(seen[0], ("image", Some(0.5), String::new()));
        assert_eq!(seen[1], ("image", Some(0.75), "half".to_owned()));
        assert_eq!(seen[2], ("image", None, "words".to_owned()));
    }
}
