//! Which of an archive's images is meant.

use std::path::Path;

use crate::{Error, Platform};

/// An image of an archive.
pub(super) struct Candidate<T> {
    pub(super) names: Vec<String>,
    /// Two with the same are the same image under two names.
    pub(super) identity: String,
    pub(super) platform: Option<Platform>,
    pub(super) what: T,
}

pub(super) fn select<T>(
    path: &Path,
    candidates: Vec<Candidate<T>>,
    tag: Option<&str>,
    platform: &Platform,
) -> Result<Candidate<T>, Error> {
    let mut tags: Vec<String> = candidates.iter().flat_map(|one| one.names.iter().cloned()).take(64).collect();
    tags.sort();
    tags.dedup();
    let nameless = candidates.iter().filter(|one| one.names.is_empty()).count();
    if nameless > 0 || candidates.is_empty() {
        tags.push(format!("{nameless} images without a name"));
    }
    let choose = |problem: String| Error::Choose { path: path.into(), problem, tags };
    let mut fitting: Vec<_> = candidates
        .into_iter()
        .filter(|one| tag.is_none_or(|tag| one.names.iter().any(|name| called(name, tag))))
        .collect();
    // The same image for several machines, side by side.
    if several(&fitting) && fitting.iter().all(|one| one.platform.is_some()) {
        let ours = |one: &Candidate<T>| one.platform.as_ref() == Some(platform);
        if fitting.iter().any(ours) {
            fitting.retain(ours);
        }
    }
    match tag.map(crate::error::tame) {
        None if several(&fitting) => Err(choose("holds several images, and no tag says which".into())),
        Some(tag) if several(&fitting) => Err(choose(format!("holds several images called {tag:?}"))),
        tag => fitting.into_iter().next().ok_or_else(|| match tag {
            Some(tag) => choose(format!("holds no image called {tag:?}")),
            None => choose("holds no image".into()),
        }),
    }
}

fn several<T>(candidates: &[Candidate<T>]) -> bool {
    candidates.iter().any(|one| one.identity != candidates[0].identity)
}

/// By its whole name, by the end of it, or by the tag alone.
fn called(name: &str, tag: &str) -> bool {
    let ends = |wanted: &str| name == wanted || name.strip_suffix(wanted).is_some_and(|before| before.ends_with('/'));
    ends(tag)
        || ends(&format!("{tag}:latest"))
        || name.rsplit('/').next().is_some_and(|last| last.split_once(':').is_some_and(|(_, own)| own == tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(identity: &str, names: &[&str], architecture: Option<&str>) -> Candidate<()> {
        Candidate {
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            identity: identity.into(),
            platform: architecture.map(|a| Platform { os: "linux".into(), architecture: a.into() }),
            what: (),
        }
    }

    fn chosen(candidates: Vec<Candidate<()>>, tag: Option<&str>) -> Result<String, String> {
        let chosen = select(Path::new("x.tar"), candidates, tag, &Platform::default());
        chosen.map(|one| one.identity).map_err(|error| error.to_string())
    }

    #[test]
    fn by_name() {
        let two = || vec![candidate("1", &["r.invalid/team/app:v1"], None), candidate("2", &["other:latest"], None)];
        for tag in ["r.invalid/team/app:v1", "team/app:v1", "app:v1", "v1"] {
            assert_eq!(chosen(two(), Some(tag)), Ok("1".into()), "{tag}");
        }
        for tag in ["other", "latest", "other:latest"] {
            assert_eq!(chosen(two(), Some(tag)), Ok("2".into()), "{tag}");
        }
        for (tag, problem) in
            [(None, "several images"), (Some("pp:v1"), "no image called"), (Some(""), "no image called")]
        {
            let error = chosen(two(), tag).unwrap_err();
            assert!(
                error.contains(problem) && error.ends_with("; there are other:latest, r.invalid/team/app:v1"),
                "{error}"
            );
        }
    }

    #[test]
    fn without_a_choice() {
        assert_eq!(chosen(vec![candidate("1", &[], None)], None), Ok("1".into()));
        assert_eq!(chosen(vec![candidate("1", &["a:1"], None), candidate("1", &["a:2"], None)], None), Ok("1".into()));
        let machines = vec![candidate("1", &[], Some("arm64")), candidate("2", &[], Some("amd64"))];
        assert_eq!(chosen(machines, None), Ok("2".into()));
        assert!(chosen(vec![], None).unwrap_err().contains("holds no image"));
        assert!(chosen(vec![candidate("1", &["a:1"], None), candidate("2", &["b:1"], None)], Some("1")).is_err());
    }
}
