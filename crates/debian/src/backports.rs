//! Packages that are newer than the release: from its backports, without touching the host's own sources.

use std::path::Path;
use std::time::Duration;

use crate::{Error, Program, check_name, package, release, sources};

/// Downloads `packages` from the backports of the release that this host is configured for, and unpacks them together to
/// the directory `into`, whole or not at all. Nothing is installed, and the host's lists stay as they are: apt works on
/// lists of its own, which are checked against the host's keys. An `into` that exists is left as it is.
///
/// # Errors
/// [`Error::NoSources`] when the host has no Debian archive; [`Error::InvalidName`]; otherwise what failed.
///
/// # Cancel safety
/// Dropping the future kills what runs and removes the temporary directory.
pub async fn fetch_backports(packages: &[&str], into: &Path) -> Result<(), Error> {
    for name in packages {
        check_name(name)?;
    }
    if into.is_dir() {
        return Ok(());
    }
    let line = backports(&sources().await?).ok_or(Error::NoSources)?;
    let parent = into.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent).map_err(Error::io("make", parent))?;
    let parent = parent.canonicalize().map_err(Error::io("find", parent))?;
    let temporary = tempfile::Builder::new()
        .prefix(".fetch-")
        .tempdir_in(&parent)
        .map_err(Error::io("make a directory in", &parent))?;
    let dir = temporary.path();
    for name in ["lists/partial", "archives/partial", "debs"] {
        std::fs::create_dir_all(dir.join(name)).map_err(Error::io("make", &dir.join(name)))?;
    }
    let list = dir.join("sources.list");
    std::fs::write(&list, format!("{line}\n")).map_err(Error::io("write", &list))?;

    let apt = || {
        let place = |option: &str, path: &Path| format!("{option}={}", path.display());
        let options = [
            place("Dir::Etc::SourceList", &list),
            "Dir::Etc::SourceParts=/dev/null".to_owned(),
            place("Dir::State::Lists", &dir.join("lists")),
            place("Dir::Cache::Archives", &dir.join("archives")),
            "Dir::Cache::PkgCache=".to_owned(),
            "Dir::Cache::SrcPkgCache=".to_owned(),
            "APT::Sandbox::User=root".to_owned(),
            "Acquire::Retries=3".to_owned(),
        ];
        options.into_iter().fold(Program::new("apt-get").arg("-q"), |program, option| program.args(["-o", &option]))
    };
    apt().arg("update").deadline(Duration::from_secs(300)).text().await?;
    let debs = dir.join("debs");
    apt().args(["download", "--"]).args(packages).current_dir(&debs).deadline(Duration::from_secs(600)).text().await?;

    let root = dir.join("root");
    for entry in std::fs::read_dir(&debs).map_err(Error::io("read", &debs))?.flatten() {
        let unpack = Program::new("dpkg-deb").arg("-x").arg(entry.path()).arg(&root);
        unpack.deadline(Duration::from_secs(180)).text().await?;
    }
    package::place_unpacked(&root, into).await
}

/// The line of the release's backports, beside the release itself.
fn backports(sources: &[String]) -> Option<String> {
    let line = sources.iter().find(|line| !release(line).contains('-'))?;
    let fields: Vec<&str> = line.split(' ').collect();
    let [kind, uri, name, component] = fields[..] else { return None };
    Some(format!("{kind} {uri} {name}-backports {component}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_derived_from_what_is_configured() {
        let lines = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let found = backports(&lines(&[
            "deb http://one.example.invalid/debian bookworm-security main",
            "deb http://two.example.invalid/debian bookworm main",
        ]));
        assert_eq!(found.as_deref(), Some("deb http://two.example.invalid/debian bookworm-backports main"));
        assert_eq!(backports(&lines(&["deb http://one.example.invalid/debian x-security main"])), None);
    }
}
