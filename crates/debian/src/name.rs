//! Package names, checked before they reach a command line.

use crate::Error;

/// Longest name accepted; the archive's longest has about 80 characters.
const MAX: usize = 128;

/// Checks that `name` can be a package's: `[a-z0-9][a-z0-9+.-]+`. So it is never taken for an option, a path, a
/// version (`name=1.0`) or a release (`name/sid`).
///
/// # Errors
/// [`Error::InvalidName`].
pub fn check_name(name: &str) -> Result<(), Error> {
    let first = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let rest = |c: u8| first(c) || matches!(c, b'+' | b'.' | b'-');
    let good = match name.as_bytes() {
        [head, tail @ ..] => first(*head) && !tail.is_empty() && tail.iter().copied().all(rest) && name.len() <= MAX,
        [] => false,
    };
    // apt takes a trailing "-" as "remove it" and a trailing "+" as "install it", which g++ survives since apt looks
    // for a package of the whole name first; no package's name ends in "-".
    if good && !name.ends_with('-') {
        Ok(())
    } else {
        Err(Error::InvalidName { name: name.chars().take(MAX).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::check_name;

    #[test]
    fn names_of_packages_pass() {
        for name in ["python3", "g++", "libstdc++6", "0ad", "linux-image-6.1.0-1-cloud-amd64", "x2goclient"] {
            check_name(name).unwrap();
        }
    }

    #[test]
    fn everything_else_is_refused() {
        let long = "a".repeat(129);
        for name in [
            "", "a", "-y", "--purge", "Python3", "a b", "a;b", "a\nb", "a\0b", "../x", "./x.deb", "a=1", "a/sid", "é2",
            "python3-", "a:i386", &long,
        ] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
    }
}
