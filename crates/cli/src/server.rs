//! Which server a command talks to.
//!
//! ```text
//!   --api-url, --api-key  >  WAKEFUL_URL, WAKEFUL_API_KEY  >  ~/.config/wakeful/config.toml  >  http://127.0.0.1:8080
//! ```

use std::path::{Path, PathBuf};

use serde::Deserialize;
use wakeful_client::Client;

use crate::args::Global;
use crate::failure::Failure;

const DEFAULT: &str = "http://127.0.0.1:8080";
const URL: &str = "WAKEFUL_URL";
const KEY: &str = "WAKEFUL_API_KEY";

/// The user's own file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    url: Option<String>,
    api_key: Option<String>,
}

/// A client of the server that was meant.
pub(crate) fn connect(global: &Global) -> Result<Client, Failure> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let file = match home {
        Some(home) => read(&home.join(".config/wakeful/config.toml"))?,
        None => File::default(),
    };
    let (url, key) = resolve(global, &|name| std::env::var(name).ok(), file);
    client(&url, key.as_deref())
}

/// A client of a server that was found otherwise.
pub(crate) fn client(url: &str, key: Option<&str>) -> Result<Client, Failure> {
    let agent = concat!("wakeful-cli/", env!("CARGO_PKG_VERSION"));
    Ok(Client::new(url, key)?.with_user_agent(agent)?)
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
