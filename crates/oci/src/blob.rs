//! One blob from a registry into the cache: continued where it was cut, checked before it gets its name.

use std::time::Duration;

use backon::BackoffBuilder as _;
use reqwest::StatusCode;
use reqwest::header::CONTENT_RANGE;
use tokio::time::{Instant, sleep};

use crate::cache::{Claim, Partial};
use crate::manifest::Descriptor;
use crate::registry::{Ask, Registry, patience};
use crate::{Cache, Error, blocking};

/// How much is written, and told, at once.
const PIECE: usize = 1 << 20;
/// How long somebody else may fetch the same blob without a byte more: longer than all tries of one that fails.
const THEIRS: Duration = Duration::from_secs(300);
const LOOK: Duration = Duration::from_millis(200);
/// Tries that each brought something; whoever cuts more often than this never ends.
const TRIES: usize = 1000;

/// What is fetched, and who wants to know.
pub(crate) struct Wanted<'a> {
    pub(crate) image: &'a str,
    pub(crate) what: &'a str,
    pub(crate) blob: &'a Descriptor,
    /// Bytes done, and whether it was here already. An error ends it.
    pub(crate) report: &'a (dyn Fn(u64, bool) -> Result<(), Error> + Sync),
}

enum End {
    /// All of it came.
    Whole,
    /// The server thinks so, but there is less.
    Short,
}

/// # Cancel safety
/// What has come stays for the next time, apart from the last mebibyte.
pub(crate) async fn fetch(registry: &Registry, cache: &Cache, wanted: &Wanted<'_>) -> Result<(), Error> {
    let size = wanted.blob.size;
    let Some(mut partial) = claim(cache, wanted).await? else { return (wanted.report)(size, true) };
    // What an earlier process left may be torn by a crash, and what was continued put together wrongly: if the whole is not
    // what it should be, it gets one chance from the beginning.
    let mut patched = partial.length() > 0;
    let mut pauses = patience().build();
    for _ in 0..TRIES {
        let before = partial.length();
        let (returned, end) = stream(registry, partial, wanted).await?;
        partial = returned;
        match end {
            Ok(End::Whole) => {
                let got = partial.digest();
                if got == wanted.blob.digest {
                    let digest = got;
                    blocking(move || partial.publish(&digest)).await?;
                    return (wanted.report)(size, false);
                }
                if !patched {
                    blocking(move || partial.discard()).await?;
                    let expected = wanted.blob.digest.clone();
                    return Err(Error::WrongDigest {
                        image: wanted.image.into(),
                        what: wanted.what.into(),
                        expected,
                        got,
                    });
                }
                patched = false;
                partial = restart(partial).await?;
                continue;
            }
            Ok(End::Short) => {
                let Some(pause) = pauses.next() else {
                    let got = partial.length();
                    blocking(move || partial.discard()).await?;
                    return Err(wrong_size(wanted, got));
                };
                sleep(pause).await;
            }
            Err(error) if error.transient() => {
                if partial.length() >= before + PIECE as u64 {
                    pauses = patience().build();
                }
                let Some(pause) = pauses.next() else { return give_up(partial, error).await };
                sleep(pause).await;
            }
            Err(error) => return give_up(partial, error).await,
        }
        patched |= partial.length() > 0;
    }
    Err(Error::Missing { image: wanted.image.into(), what: wanted.what.into() })
}

/// The right to fetch it, or `None` once it is here. Waits while somebody else fetches it.
async fn claim(cache: &Cache, wanted: &Wanted<'_>) -> Result<Option<Partial>, Error> {
    let (mut last, mut since) = (0, Instant::now());
    loop {
        let (cache, blob) = (cache.clone(), wanted.blob.clone());
        match blocking(move || cache.claim(&blob.digest, blob.size)).await? {
            Claim::Present => return Ok(None),
            Claim::Ours(partial) => return Ok(Some(partial)),
            Claim::Theirs(length) => {
                if length != last {
                    (last, since) = (length, Instant::now());
                    (wanted.report)(length.min(wanted.blob.size), false)?;
                }
                if since.elapsed() > THEIRS {
                    return Err(Error::Busy { digest: wanted.blob.digest.clone() });
                }
            }
        }
        sleep(LOOK).await;
    }
}

/// What came stays for the next time, if anything did and it may be right.
async fn give_up(partial: Partial, error: Error) -> Result<(), Error> {
    if partial.length() == 0 || matches!(error, Error::WrongSize { .. }) {
        blocking(move || partial.discard()).await?;
    }
    Err(error)
}

async fn restart(mut partial: Partial) -> Result<Partial, Error> {
    blocking(move || partial.restart().map(|()| partial)).await
}

fn wrong_size(wanted: &Wanted<'_>, got: u64) -> Error {
    Error::WrongSize { image: wanted.image.into(), what: wanted.what.into(), expected: wanted.blob.size, got }
}

/// One request, to its end. What came before it broke is kept; the outer error is that of a file.
async fn stream(
    registry: &Registry,
    mut partial: Partial,
    wanted: &Wanted<'_>,
) -> Result<(Partial, Result<End, Error>), Error> {
    let size = wanted.blob.size;
    if partial.length() == size {
        return Ok((partial, Ok(End::Whole)));
    }
    let ask = match registry.url("blobs", wanted.blob.digest.as_str()) {
        Ok(url) => Ask { url, what: wanted.what, accept: None, from: partial.length() },
        Err(error) => return Ok((partial, Err(error))),
    };
    let mut response = match registry.get(&ask).await {
        Ok(response) => response,
        // It does not want to continue from there.
        Err(Error::Refused { status: 416, .. }) if partial.length() > 0 => {
            return Ok((restart(partial).await?, Ok(End::Short)));
        }
        Err(error) => return Ok((partial, Err(error))),
    };
    let continued = response.status() == StatusCode::PARTIAL_CONTENT && {
        let range = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        range.strip_prefix("bytes ").and_then(|range| range.split('-').next()?.parse().ok()) == Some(partial.length())
    };
    if !continued && partial.length() > 0 {
        partial = restart(partial).await?;
        if response.status() == StatusCode::PARTIAL_CONTENT {
            // Some other part: of no use.
            return Ok((partial, Ok(End::Short)));
        }
    }
    if let Some(length) = response.content_length()
        && partial.length() + length != size
    {
        let got = partial.length() + length;
        return Ok((partial, Err(wrong_size(wanted, got))));
    }
    let mut piece = Vec::with_capacity(PIECE);
    loop {
        let chunk = response.chunk().await;
        if let Ok(Some(chunk)) = &chunk {
            let come = partial.length() + piece.len() as u64 + chunk.len() as u64;
            if come > size {
                return Ok((partial, Err(wrong_size(wanted, come))));
            }
            piece.extend_from_slice(chunk);
        }
        let ended = !matches!(chunk, Ok(Some(_)));
        if !piece.is_empty() && (ended || piece.len() >= PIECE) {
            let full = std::mem::replace(&mut piece, Vec::with_capacity(if ended { 0 } else { PIECE }));
            partial = blocking(move || partial.write(&full).map(|()| partial)).await?;
            if let Err(error) = (wanted.report)(partial.length(), false) {
                return Ok((partial, Err(error)));
            }
        }
        match chunk {
            Ok(Some(_)) => {}
            Ok(None) if partial.length() == size => return Ok((partial, Ok(End::Whole))),
            Ok(None) => return Ok((partial, Ok(End::Short))),
            Err(error) => {
                let error = registry.broken(error);
                return Ok((partial, Err(error)));
            }
        }
    }
}
