//! The configured archives, as lines that another apt understands.

use std::time::Duration;

use crate::lock::{self, Access};
use crate::{Error, Program, install};

/// The Debian archives that this host is configured for, as one-line entries (`deb URI RELEASE COMPONENT`): the release
/// itself first, then its security and other updates, no backports, nothing that is not Debian's.
///
/// # Errors
/// [`Error::NoSources`] when there is none, also after the lists were refreshed; otherwise why `apt-get` failed.
pub async fn sources() -> Result<Vec<String>, Error> {
    for attempt in 0..2 {
        let lock = lock::take(Access::Shared).await?;
        let text = Program::new("apt-get")
            .args(["indextargets", "--format", "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(ORIGIN)", "Created-By: Packages"])
            .deadline(Duration::from_secs(60))
            .text()
            .await?;
        drop(lock);
        let found = parse(&text);
        if !found.is_empty() {
            return Ok(found);
        }
        if attempt == 0 {
            // without lists apt does not know whose archive it is
            let lock = lock::take(Access::Exclusive).await?;
            install::update(&lock, &|_| {}).await?;
        }
    }
    Err(Error::NoSources)
}

/// The release that a line of [`sources`] is for: `bookworm`, `bookworm-security`.
#[must_use]
pub fn release(source: &str) -> &str {
    source.split(' ').nth(2).unwrap_or_default()
}

fn parse(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text.lines().filter_map(entry).collect();
    // an update's name is its release's with a word behind it
    lines.sort_by(|a, b| {
        let words = |line: &str| release(line).matches('-').count();
        words(a).cmp(&words(b)).then_with(|| a.cmp(b))
    });
    lines.dedup();
    lines
}

fn entry(line: &str) -> Option<String> {
    let fields: Vec<&str> = line.split('|').collect();
    let [uri, release, component, "Debian"] = fields[..] else { return None };
    let plain = |field: &str| !field.is_empty() && !field.contains(char::is_whitespace);
    let wanted = plain(uri) && plain(release) && plain(component) && !release.contains("backports");
    wanted.then(|| format!("deb {uri} {release} {component}"))
}

#[cfg(test)]
mod tests {
    use super::{parse, release};

    const TEXT: &str = "\
http://one.example.invalid/debian/|bookworm-updates|main|Debian
http://one.example.invalid/debian/|bookworm|main|Debian
http://one.example.invalid/debian/|bookworm|contrib|Debian
http://one.example.invalid/debian/|bookworm|main|Debian
http://two.example.invalid/debian-security/|bookworm-security|main|Debian
http://one.example.invalid/debian/|bookworm-backports|main|Debian Backports
http://one.example.invalid/debian/|bookworm-backports|main|Debian
https://tools.example.invalid/apt/|stable|main|Someone
https://broken.example.invalid/|x
http://one.example.invalid/a b/|bookworm|main|Debian
||main|Debian

";

    #[test]
    fn the_release_comes_first_and_only_debian_counts() {
        assert_eq!(
            parse(TEXT),
            [
                "deb http://one.example.invalid/debian/ bookworm contrib",
                "deb http://one.example.invalid/debian/ bookworm main",
                "deb http://one.example.invalid/debian/ bookworm-updates main",
                "deb http://two.example.invalid/debian-security/ bookworm-security main",
            ]
        );
    }

    #[test]
    fn nothing_comes_of_nothing() {
        assert!(parse("").is_empty());
        assert!(parse("https://tools.example.invalid/apt/|stable|main|Someone\n").is_empty());
    }

    #[test]
    fn release_is_the_third_word() {
        assert_eq!(release("deb http://one.example.invalid/debian/ bookworm main"), "bookworm");
        assert_eq!(release("deb"), "");
    }
}
