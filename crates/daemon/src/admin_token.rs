//! `DATA/admin.token`: who can read it is admin, whatever keys there are.
//!
//! Made at the first start, readable by the owner of the data directory alone, and found by the command line by itself. So
//! root on this host can always make and delete keys, and nobody else can.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use secrecy::SecretString;

use crate::paths::Error;

const PREFIX: &str = "wka_";
const DIGITS: usize = 40;
/// More than a token has; what is longer is none.
const LONGEST: u64 = 256;

fn path(data: &Path) -> PathBuf {
    data.join("admin.token")
}

fn no_follow() -> i32 {
    rustix::fs::OFlags::NOFOLLOW.bits().cast_signed()
}

/// The token of a data directory, made if there is none. Whoever calls holds the directory.
///
/// # Errors
/// If it cannot be read or made, or the file holds something else.
pub fn ensure(data: &Path) -> Result<SecretString, Error> {
    let file = path(data);
    match read(data) {
        Ok(Some(token)) => Ok(token),
        Ok(None) => make(data).map_err(Error::io("make", &file)),
        Err(error) => Err(Error::io("read", &file)(error)),
    }
}

/// The token of a data directory; `None` if none was made yet.
///
/// # Errors
/// If it cannot be read, or the file holds something else.
pub fn read(data: &Path) -> io::Result<Option<SecretString>> {
    let mut file = match OpenOptions::new().read(true).custom_flags(no_follow()).open(path(data)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let about = file.metadata()?;
    if about.permissions().mode() & 0o077 != 0 {
        file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    }
    let mut text = String::new();
    (&mut file).take(LONGEST).read_to_string(&mut text)?;
    let token = text.trim_end();
    let digits = token.strip_prefix(PREFIX).unwrap_or_default();
    if digits.len() != DIGITS || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "it holds no token; remove it, and the next start makes another",
        ));
    }
    Ok(Some(SecretString::from(token)))
}

/// Written whole and then named: a crash leaves all of it or nothing.
fn make(data: &Path) -> io::Result<SecretString> {
    let mut bytes = [0u8; DIGITS / 2];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    let token = bytes.iter().fold(PREFIX.to_owned(), |mut text, byte| {
        text.push_str(&format!("{byte:02x}"));
        text
    });
    let new = data.join("admin.token.new");
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).custom_flags(no_follow()).open(&new)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    file.write_all(format!("{token}\n").as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, path(data))?;
    File::open(data)?.sync_all()?;
    Ok(SecretString::from(token))
}

#[cfg(test)]
mod tests {
    use super::*;
    use secrecy::ExposeSecret;

    #[test]
    fn made_once_and_private() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read(dir.path()).unwrap().is_none());
        let token = ensure(dir.path()).unwrap();
        assert_eq!(token.expose_secret().len(), 44);
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        let file = path(dir.path());
        assert_eq!(mode(&file), 0o600);
        assert_eq!(ensure(dir.path()).unwrap().expose_secret(), token.expose_secret());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(read(dir.path()).unwrap().unwrap().expose_secret(), token.expose_secret());
        assert_eq!(mode(&file), 0o600);
        let other = tempfile::tempdir().unwrap();
        assert_ne!(ensure(other.path()).unwrap().expose_secret(), token.expose_secret());
    }

    #[test]
    fn what_is_no_token_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for bad in ["", "\n", "wka_", "wkf_0011", &"x".repeat(10_000)] {
            std::fs::write(path(dir.path()), bad).unwrap();
            let error = ensure(dir.path()).unwrap_err();
            assert!(matches!(&error, Error::Io { doing: "read", .. }), "{error:?}");
        }
        let elsewhere = dir.path().join("elsewhere");
        std::fs::rename(path(dir.path()), &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, path(dir.path())).unwrap();
        assert!(read(dir.path()).is_err(), "no link is followed");
    }
}
