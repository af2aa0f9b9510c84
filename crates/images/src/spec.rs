//! What to build of Debian packages.

use serde::{Deserialize, Serialize};

use crate::Error;

/// What every image has beside Debian's essential packages, since commands and users count on it. `mount` and `tzdata`
/// belong to Debian's own minimal system; `usr-is-merged` stands in for `usrmerge`, which would bring all of perl.
pub(crate) const COMMON: &[&str] = &["usr-is-merged", "ca-certificates", "mount", "procps", "sudo", "tzdata"];

/// Most packages that one template may name.
const PACKAGES: usize = 1000;

/// Variables of every command on Debian.
pub const DEBIAN_ENV: [(&str, &str); 2] =
    [("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), ("LANG", "C.UTF-8")];

/// A template made of Debian packages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DebianSpec {
    /// The release, like `bookworm`.
    pub suite: String,
    /// Packages beside the essential ones.
    pub packages: Vec<String>,
    /// Who runs commands: uid 1000 with passwordless sudo; `root` makes no such user.
    pub user: String,
}

impl DebianSpec {
    /// A spec with the usual user.
    #[must_use]
    pub fn new(suite: &str, packages: &[&str]) -> Self {
        let packages = packages.iter().map(|&name| name.to_owned()).collect();
        Self { suite: suite.to_owned(), packages, user: "user".to_owned() }
    }

    /// Checks everything that can be known without asking the archive.
    ///
    /// # Errors
    /// [`Error::InvalidPackage`], [`Error::InvalidUser`], [`Error::InvalidSuite`].
    pub fn check(&self) -> Result<(), Error> {
        for name in &self.packages {
            wakeful_debian::check_name(name).map_err(Error::step_of("check"))?;
        }
        if self.packages.len() > PACKAGES {
            return Err(Error::InvalidPackage { name: format!("… and more than {PACKAGES} others") });
        }
        let word = |text: &str, first: fn(u8) -> bool, rest: fn(u8) -> bool| match text.as_bytes() {
            [head, tail @ ..] => first(*head) && tail.iter().copied().all(rest) && text.len() <= 32,
            [] => false,
        };
        let lower = |c: u8| c.is_ascii_lowercase();
        if !word(&self.user, lower, |c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, b'_' | b'-')) {
            return Err(Error::InvalidUser { name: self.user.chars().take(32).collect() });
        }
        if !word(&self.suite, lower, |c| c.is_ascii_lowercase() || c.is_ascii_digit()) {
            return Err(Error::InvalidSuite { suite: self.suite.chars().take(32).collect(), available: Vec::new() });
        }
        Ok(())
    }

    /// Where commands run.
    #[must_use]
    pub fn workdir(&self) -> String {
        if self.user == "root" { "/root".to_owned() } else { format!("/home/{}", self.user) }
    }

    /// All packages beside the essential ones, each once, in a fixed order.
    pub(crate) fn all_packages(&self) -> Vec<&str> {
        let mut all: Vec<&str> = COMMON.iter().copied().chain(self.packages.iter().map(String::as_str)).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_names_are_refused() {
        let with = |change: fn(&mut DebianSpec)| {
            let mut spec = DebianSpec::new("bookworm", &["curl"]);
            change(&mut spec);
            spec.check().unwrap_err()
        };
        assert!(matches!(with(|s| s.packages.push("--x".into())), Error::InvalidPackage { name } if name == "--x"));
        assert!(matches!(with(|s| s.packages = vec!["aa".into(); 1001]), Error::InvalidPackage { .. }));
        for bad in ["", "9to5", "a b", "a:b", "A", "../x", "a\n"] {
            let mut spec = DebianSpec::new("bookworm", &[]);
            spec.user = bad.into();
            assert!(matches!(spec.check(), Err(Error::InvalidUser { .. })), "{bad:?}");
            let mut spec = DebianSpec::new(bad, &[]);
            spec.user = "root".into();
            assert!(matches!(spec.check(), Err(Error::InvalidSuite { .. })), "{bad:?}");
        }
    }

    #[test]
    fn each_package_is_asked_for_once() {
        let all = DebianSpec::new("bookworm", &["sudo", "curl", "curl"]);
        assert_eq!(
            all.all_packages(),
            ["ca-certificates", "curl", "mount", "procps", "sudo", "tzdata", "usr-is-merged"]
        );
    }
}
