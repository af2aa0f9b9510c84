//! Names and passwords, given by the caller or kept in Docker's `config.json`.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;

use crate::Error;

/// Who asks.
#[derive(Clone)]
pub struct Credentials {
    /// The account.
    pub username: String,
    /// Its password or access token.
    pub password: SecretString,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({})", self.username)
    }
}

impl Credentials {
    /// For an `Authorization` header.
    pub(crate) fn basic(&self) -> SecretString {
        let pair = SecretString::from(format!("{}:{}", self.username, self.password.expose_secret()));
        SecretString::from(format!("Basic {}", STANDARD.encode(pair.expose_secret())))
    }
}

/// What Docker's file has for a registry.
#[derive(Debug)]
pub(crate) enum Kept {
    Nothing,
    /// Only a helper program knows.
    Helper,
    These(Credentials),
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct File {
    auths: BTreeMap<String, Entry>,
    cred_helpers: BTreeMap<String, serde::de::IgnoredAny>,
    creds_store: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Entry {
    auth: Option<SecretString>,
    username: Option<String>,
    password: Option<SecretString>,
    identitytoken: Option<SecretString>,
}

const FILE_MAX: u64 = 1 << 20;

/// Looks the registry up under each of these names, first come first served.
pub(crate) fn from_docker(path: &Path, names: &[&str]) -> Result<Kept, Error> {
    let wrong = |detail: String| Error::Settings { detail: format!("{}: {detail}", path.display()) };
    let mut text = Vec::new();
    match std::fs::File::open(path) {
        // Nobody has logged in yet.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Kept::Nothing),
        Err(error) => return Err(wrong(error.to_string())),
        Ok(file) => file.take(FILE_MAX + 1).read_to_end(&mut text).map_err(|error| wrong(error.to_string()))?,
    };
    if text.len() as u64 > FILE_MAX {
        return Err(wrong("it is too long".into()));
    }
    find(&text, names).map_err(wrong)
}

fn find(text: &[u8], names: &[&str]) -> Result<Kept, String> {
    // The parser's own words could quote a password.
    let file: File = serde_json::from_slice(text)
        .map_err(|error| format!("it is not understood at line {}, column {}", error.line(), error.column()))?;
    for name in names {
        let Some((_, entry)) = file.auths.iter().find(|(key, _)| host(key).eq_ignore_ascii_case(name)) else {
            if file.cred_helpers.keys().any(|key| host(key).eq_ignore_ascii_case(name)) {
                return Ok(Kept::Helper);
            }
            continue;
        };
        let given = |secret: &Option<SecretString>| secret.as_ref().is_some_and(|s| !s.expose_secret().is_empty());
        if given(&entry.identitytoken) {
            return Err(format!(
                "for {name} it holds an identity token, which is not supported: log in with a password"
            ));
        }
        if let (Some(username), Some(password)) = (&entry.username, &entry.password) {
            return Ok(Kept::These(Credentials { username: username.clone(), password: password.clone() }));
        }
        if given(&entry.auth) {
            let auth = entry.auth.as_ref().map(|auth| auth.expose_secret().trim()).unwrap_or_default();
            let pair = STANDARD.decode(auth).ok().and_then(|bytes| String::from_utf8(bytes).ok());
            let pair = SecretString::from(pair.ok_or_else(|| format!("the entry for {name} is no base64"))?);
            let (username, password) =
                pair.expose_secret().split_once(':').ok_or_else(|| format!("the entry for {name} has no password"))?;
            let password = SecretString::from(password.trim_end_matches('\0'));
            return Ok(Kept::These(Credentials { username: username.into(), password }));
        }
        let helper =
            file.creds_store.as_ref().is_some_and(|store| !store.is_empty()) || file.cred_helpers.contains_key(*name);
        return Ok(if helper { Kept::Helper } else { Kept::Nothing });
    }
    Ok(Kept::Nothing)
}

/// Docker's keys are hosts, or addresses of a registry's first version.
fn host(key: &str) -> &str {
    let key = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    key.split('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, names: &[&str]) -> Result<Option<(String, String)>, String> {
        find(text.as_bytes(), names).map(|kept| match kept {
            Kept::These(these) => Some((these.username, these.password.expose_secret().to_owned())),
            Kept::Helper => Some(("helper".into(), String::new())),
            Kept::Nothing => None,
        })
    }

    #[test]
    fn as_docker_keeps_them() {
        let text = r#"{"auths": {
            "r.invalid:5000": {"auth": "dXNlcjpwYTpzcw=="},
            "https://index.invalid/v1/": {"username": "u", "password": "p"},
            "token.invalid": {"auth": "dTpw", "identitytoken": "t"},
            "bad.invalid": {"auth": "%"}, "worse.invalid": {"auth": "dXNlcg=="}, "empty.invalid": {}
        }, "credHelpers": {"cloud.invalid": "x"}, "credsStore": "desktop", "other": 1}"#;
        let pair = |a: &str, b: &str| Ok(Some((a.to_owned(), b.to_owned())));
        assert_eq!(found(text, &["r.invalid:5000"]), pair("user", "pa:ss"));
        assert_eq!(found(text, &["R.invalid:5000"]), pair("user", "pa:ss"));
        assert_eq!(found(text, &["none.invalid", "index.invalid"]), pair("u", "p"));
        assert_eq!(found(text, &["r.invalid"]), Ok(None));
        assert_eq!(found(text, &["cloud.invalid"]), pair("helper", ""));
        assert_eq!(found(text, &["empty.invalid"]), pair("helper", ""));
        for name in ["token.invalid", "bad.invalid", "worse.invalid"] {
            assert!(found(text, &[name]).unwrap_err().contains(name));
        }
        assert_eq!(found("{}", &["r.invalid"]), Ok(None));
        let error = found(r#"{"auths": {"r.invalid": {"auth": ["secret"]}}}"#, &["r.invalid"]).unwrap_err();
        assert!(!error.contains("secret"), "{error}");
    }

    #[test]
    fn nothing_is_printed() {
        let credentials = Credentials { username: "u".into(), password: "hidden".into() };
        assert_eq!(format!("{credentials:?}"), "Credentials(u)");
        assert_eq!(credentials.basic().expose_secret(), "Basic dTpoaWRkZW4=");
    }

    #[test]
    fn no_file_is_no_error() {
        assert!(matches!(from_docker(Path::new("/nonexistent/config.json"), &["x"]), Ok(Kept::Nothing)));
        assert!(from_docker(Path::new("/"), &["x"]).is_err());
    }
}
