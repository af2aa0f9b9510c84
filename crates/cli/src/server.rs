//! Which server a command talks to.
//!
//! ```text
//!   --api-url, --api-key  >  WAKEFUL_URL, WAKEFUL_API_KEY  >  ~/.config/wakeful/config.toml  >  http://127.0.0.1:8080
//! ```
//!
//! Without a key, whoever can read the data directory (the configured one, or WAKEFUL_DATA_DIR's) is admin by its
//! `admin.token`. The token goes to the daemon that has that directory and to nobody else: only by loopback, and only to
//! the port which that daemon says it listens on. Whatever else has taken a port of this machine learns nothing.

use std::path::{Path, PathBuf};

use secrecy::ExposeSecret;
use serde::Deserialize;
use wakeful_client::Client;
use wakeful_daemon::admin_token;
use wakeful_daemon::config::{Config, Overrides};
use wakeful_daemon::paths::Paths;

use crate::args::Global;
use crate::failure::Failure;

const DEFAULT: &str = "http://127.0.0.1:8080";
const URL: &str = "WAKEFUL_URL";
const KEY: &str = "WAKEFUL_API_KEY";
/// A file with the certificates of an authority that this machine does not know.
const AUTHORITY: &str = "WAKEFUL_CA_CERT";

/// The user's own file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    url: Option<String>,
    api_key: Option<String>,
}

/// A client of the server that was meant.
pub(crate) fn connect(global: &Global) -> Result<Client, Failure> {
    let (url, key) = resolve(global, &variable, users_file()?);
    let plain = client(&url, key.as_deref())?;
    if key.is_some() || !plain.is_loopback() {
        return Ok(plain);
    }
    // A configuration that makes no sense is the daemon's trouble, not that of a command which only calls it.
    let Ok(loaded) = Config::load(Overrides::default()) else { return Ok(plain) };
    let paths = Paths::of(&loaded.config.data_dir);
    let announced = paths.holder().ok().flatten().and_then(|holder| holder.url);
    let port = announced.and_then(|url| Client::new(&url, None).ok()).and_then(|daemon| daemon.port());
    if port.is_none() || port != plain.port() {
        return Ok(plain);
    }
    match admin_token::read(&paths.data) {
        Ok(Some(token)) => client(&url, Some(token.expose_secret())),
        Ok(None) | Err(_) => Ok(plain),
    }
}

/// A client of the daemon that has a data directory: as its admin, unless a key was given for this very call.
pub(crate) fn client_of(url: &str, global: &Global, data: &Path) -> Result<Client, Failure> {
    if let Some(key) = &global.api_key {
        return client(url, Some(key));
    }
    match admin_token::read(data) {
        Ok(Some(token)) => client(url, Some(token.expose_secret())),
        Ok(None) | Err(_) => client(url, resolve(global, &variable, users_file()?).1.as_deref()),
    }
}

/// Whether somebody said which server is meant.
pub(crate) fn is_named(global: &Global) -> Result<bool, Failure> {
    let said = variable(URL).is_some_and(|text| !text.is_empty());
    Ok(global.api_url.is_some() || said || users_file()?.url.is_some())
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn users_file() -> Result<File, Failure> {
    match std::env::var_os("HOME").map(PathBuf::from) {
        Some(home) => read(&home.join(".config/wakeful/config.toml")),
        None => Ok(File::default()),
    }
}

/// A client of a server that was found otherwise.
pub(crate) fn client(url: &str, key: Option<&str>) -> Result<Client, Failure> {
    let agent = concat!("wakeful-cli/", env!("CARGO_PKG_VERSION"));
    let authority = match variable(AUTHORITY).filter(|path| !path.is_empty()).map(PathBuf::from) {
        Some(path) => Some(std::fs::read(&path).map_err(|error| Failure::file("read", &path, &error))?),
        None => None,
    };
    Ok(Client::with_authority(url, key, authority.as_deref())?.with_user_agent(agent)?)
}

fn resolve(global: &Global, variable: &dyn Fn(&str) -> Option<String>, file: File) -> (String, Option<String>) {
    let said = |name: &str| variable(name).filter(|text| !text.is_empty());
    let url = global.api_url.clone().or_else(|| said(URL)).or(file.url).unwrap_or_else(|| DEFAULT.to_owned());
    let key = global.api_key.clone().or_else(|| said(KEY)).or(file.api_key);
    (url, key)
}

fn read(path: &Path) -> Result<File, Failure> {
    match std::fs::read_to_string(path) {
        // the text may hold a key: of the error only the message is shown
        Ok(text) => toml::from_str(&text).map_err(|error| {
            Failure::usage(format!("{}: {}", path.display(), error.message()))
                .hint("it may have the keys url and api_key")
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(File::default()),
        Err(error) => Err(Failure::file("read", path, &error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_beat_variables_beat_the_file() {
        let file = || File { url: Some("http://file:1".into()), api_key: Some("file".into()) };
        let nothing = |_: &str| None;
        let variables = |name: &str| match name {
            URL => Some("http://variable:1".to_owned()),
            KEY => Some(String::new()),
            _ => None,
        };
        let flags = Global { api_url: Some("http://flag:1".into()), api_key: Some("flag".into()), json: false };
        let none = Global { api_url: None, api_key: None, json: false };
        assert_eq!(resolve(&flags, &variables, file()), ("http://flag:1".into(), Some("flag".into())));
        assert_eq!(resolve(&none, &variables, file()), ("http://variable:1".into(), Some("file".into())));
        assert_eq!(resolve(&none, &nothing, file()), ("http://file:1".into(), Some("file".into())));
        assert_eq!(resolve(&none, &nothing, File::default()), (DEFAULT.into(), None));
    }
}
