//! Whose files, and which.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use percent_encoding::percent_decode_str;
use wakeful_guest_proto::connect_rpc::{Code, ErrorBody, WakefulCode};
use wakeful_guest_proto::filesystem::MAX_PATH;

use crate::context::Context;
use crate::process::{Accounts, User, unknown_user};

/// The user that a request works for.
pub(super) struct Owner {
    pub(super) user: User,
    pub(super) accounts: Accounts,
}

impl Owner {
    /// The named user, else the default one. Blocks on the disk.
    pub(super) fn find(context: &Context, name: Option<&str>) -> Result<Self, ErrorBody> {
        let accounts = Accounts::load();
        let default = context.default_user();
        let name = name.filter(|name| !name.is_empty()).unwrap_or(&default);
        let user = accounts.find(name).ok_or_else(|| unknown_user(name))?;
        Ok(Self { user, accounts })
    }

    /// A path of a request: absolute, relative to the home, or beginning with `~`.
    pub(super) fn resolve(&self, path: &str) -> Result<PathBuf, ErrorBody> {
        let refuse = |why: &str| {
            Err(ErrorBody::new(Code::InvalidArgument, format!("invalid path: {why}")).because(WakefulCode::InvalidPath))
        };
        if path.contains('\0') {
            return refuse("it contains a NUL");
        }
        let home = Path::new(&self.user.home);
        let resolved = match path.strip_prefix('~') {
            Some("") => home.to_owned(),
            Some(rest) if rest.starts_with('/') => home.join(rest.trim_start_matches('/')),
            _ => home.join(path),
        };
        // Without `.` and doubled slashes; `..` stays, since only the kernel knows what it means behind a symlink.
        let resolved: PathBuf = resolved.components().collect();
        if resolved.as_os_str().len() >= MAX_PATH {
            return refuse("it is too long");
        }
        Ok(resolved)
    }
}

/// A query, percent-decoded.
pub(crate) fn query(query: Option<&str>) -> Result<HashMap<String, String>, ErrorBody> {
    let decode = |text: &str| {
        let spaced = text.replace('+', " ");
        let decoded = percent_decode_str(&spaced).decode_utf8().map(std::borrow::Cow::into_owned);
        decoded
            .map_err(|_| ErrorBody::new(Code::InvalidArgument, "query is not UTF-8").because(WakefulCode::InvalidPath))
    };
    let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok((decode(key)?, decode(value)?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> Owner {
        let user = User { name: "u".into(), uid: 1, gid: 1, groups: vec![1], home: "/home/u".into() };
        Owner { user, accounts: Accounts::default() }
    }

    #[test]
    fn paths() {
        let resolve = |path: &str| owner().resolve(path).map(|path| path.to_string_lossy().into_owned());
        for (asked, meant) in [
            ("/a//b/./c/", "/a/b/c"),
            ("a/b", "/home/u/a/b"),
            ("", "/home/u"),
            ("~", "/home/u"),
            ("~/x", "/home/u/x"),
            ("~other", "/home/u/~other"),
            ("/a/../b", "/a/../b"),
        ] {
            assert_eq!(resolve(asked).unwrap(), meant);
        }
        for bad in ["/a\0b".to_owned(), format!("/{}", "x/".repeat(3000))] {
            assert_eq!(resolve(&bad).unwrap_err().wakeful_code, Some(WakefulCode::InvalidPath));
        }
    }

    #[test]
    fn queries() {
        let parsed = query(Some("path=%2Fa%20b+c%2B&username=&flag")).unwrap();
        assert_eq!(parsed["path"], "/a b c+");
        assert_eq!((parsed["username"].as_str(), parsed["flag"].as_str()), ("", ""));
        assert!(query(Some("path=%ff")).is_err());
        assert!(query(None).unwrap().is_empty());
    }
}
