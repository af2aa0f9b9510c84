//! What there is of a daemon's network on the host, without opening it.

use std::path::Path;

use crate::inside::apart;
use crate::{Error, files, links, nft, tables};

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traces {
    /// Slots by number, and whose each is; nobody's was ready or half-made.
    pub slots: Vec<(u32, Option<String>)>,
    /// Links of slots that are gone.
    pub links: Vec<String>,
    /// The host's own table.
    pub table: Option<String>,
}

/// Looks for the slots in `run_dir`, and for links and the table that have this tag. Changes nothing.
///
/// # Errors
/// If it cannot be looked at.
pub async fn survey(run_dir: &Path, tag: &str) -> Result<Traces, Error> {
    let (run_dir, tag) = (run_dir.to_owned(), tag.to_owned());
    apart(move || {
        let numbers = if run_dir.exists() { files::slots(&run_dir)? } else { Vec::new() };
        let slots = numbers.iter().map(|number| Ok((*number, files::owner(&run_dir, *number)?)));
        let slots = slots.collect::<Result<Vec<_>, Error>>()?;
        let prefix = tables::host_link(&tag, 0);
        let prefix = prefix.trim_end_matches('0');
        let lost = |name: &String| {
            let number = name.strip_prefix(prefix).and_then(|number| number.parse::<u32>().ok());
            number.is_some_and(|number| !numbers.contains(&number))
        };
        let links = links::names().map_err(Error::link("list", "links"))?.into_iter().filter(lost).collect();
        let table = tables::host_table(&tag);
        // Where there is no nft there never was a table.
        let listed = nft::list(&["tables"]).unwrap_or_default();
        let listed: serde_json::Value = serde_json::from_slice(&listed).unwrap_or_default();
        let named = |entry: &serde_json::Value| entry["table"]["name"] == table.as_str();
        let there = listed["nftables"].as_array().is_some_and(|entries| entries.iter().any(named));
        Ok(Traces { slots, links, table: there.then_some(table) })
    })
    .await
}
