//! What the URL's path names: a sandbox, a snapshot, a template, a file in a sandbox.
//!
//! All of it is read from the raw path. A router's decoded parameters would hide what matters here: whether a slash was
//! a slash, and what stood between two of them.

use axum::extract::FromRequestParts;
use http::Uri;
use http::request::Parts;
use percent_encoding::percent_decode_str;
use wakeful_model::{Code, SandboxId, SnapshotId};

use crate::problem::Problem;

/// Longest path in a guest.
const LONGEST: usize = 4096;

/// The segment after `/v1/sandboxes/`, `/v1/templates/` and the like.
pub(crate) fn third_segment(uri: &Uri) -> &str {
    uri.path().split('/').nth(3).unwrap_or("")
}

/// The sandbox that the path names, with or without prefix.
pub(crate) struct Target(pub(crate) SandboxId);

impl<S: Send + Sync> FromRequestParts<S> for Target {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let text = percent_decode_str(third_segment(&parts.uri)).decode_utf8_lossy();
        // What is no id was never given out: that is all a caller needs to know.
        text.parse().map(Self).map_err(|_| {
            let text: String = text.chars().take(80).collect();
            Problem::new(Code::SandboxNotFound, format!("there is no sandbox {text:?}"))
        })
    }
}

/// The snapshot that the path names, with or without prefix.
pub(crate) struct SnapshotTarget(pub(crate) SnapshotId);

impl<S: Send + Sync> FromRequestParts<S> for SnapshotTarget {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let text = percent_decode_str(third_segment(&parts.uri)).decode_utf8_lossy();
        text.parse().map(Self).map_err(|_| {
            let text: String = text.chars().take(80).collect();
            Problem::new(Code::SnapshotNotFound, format!("there is no snapshot {text:?}"))
                .hint("GET /v1/snapshots lists what there is")
        })
    }
}

/// The template that the path names, by name or id.
pub(crate) struct TemplateName(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for TemplateName {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let text = percent_decode_str(third_segment(&parts.uri)).decode_utf8_lossy();
        if text.is_empty() || text.len() > 255 || text.contains('\0') {
            let text: String = text.chars().take(80).collect();
            return Err(Problem::new(Code::TemplateNotFound, format!("there is no template {text:?}")));
        }
        Ok(Self(text.into_owned()))
    }
}

/// The file that the path names: absolute, tidy, without `..`.
pub(crate) struct GuestPath(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for GuestPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        // "/v1/sandboxes/{id}/files/{path}"
        let raw = parts.uri.path().splitn(6, '/').nth(5).unwrap_or("");
        let decoded: Vec<u8> = percent_decode_str(raw).collect();
        Self::tidy(&decoded).map_err(|reason| Problem::new(Code::InvalidPath, reason))
    }
}

impl GuestPath {
    /// From a parameter that holds a path.
    pub(crate) fn from_parameter(name: &str, text: &str) -> Result<Self, Problem> {
        let problem = |reason: &str| Problem::field(Code::InvalidPath, name, reason);
        if !text.starts_with('/') {
            return Err(problem("the path must begin with /"));
        }
        Self::tidy(text.as_bytes()).map_err(problem)
    }

    /// Empty segments and `.` go; what could leave the place that was named is refused.
    fn tidy(decoded: &[u8]) -> Result<Self, &'static str> {
        if decoded.len() > LONGEST {
            return Err("the path is longer than 4096 bytes");
        }
        if decoded.contains(&0) {
            return Err("the path contains NUL");
        }
        let text = std::str::from_utf8(decoded).map_err(|_| "the path is not UTF-8")?;
        let mut path = String::with_capacity(text.len() + 1);
        for segment in text.split('/') {
            match segment {
                "" | "." => {}
                ".." => return Err("the path has a segment \"..\""),
                name => {
                    path.push('/');
                    path.push_str(name);
                }
            }
        }
        if path.is_empty() {
            path.push('/');
        }
        Ok(Self(path))
    }

    /// Whether it is `/`.
    pub(crate) fn is_root(&self) -> bool {
        self.0 == "/"
    }

    /// Its last name; `/` for the root.
    pub(crate) fn name(&self) -> &str {
        match self.0.rsplit_once('/') {
            Some((_, name)) if !name.is_empty() => name,
            _ => &self.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;
    use proptest::prelude::*;

    async fn of(raw: &str) -> Result<String, Code> {
        let uri = format!("/v1/sandboxes/sbx_x/files{raw}");
        let (mut parts, ()) = Request::builder().uri(uri).body(()).unwrap().into_parts();
        GuestPath::from_request_parts(&mut parts, &()).await.map(|path| path.0).map_err(|problem| problem.code())
    }

    #[tokio::test]
    async fn paths() {
        for (raw, path) in [
            ("", "/"),
            ("/", "/"),
            ("//", "/"),
            ("/home/user/main.py", "/home/user/main.py"),
            ("//home//user/./a/", "/home/user/a"),
            ("/a%20b", "/a b"),
            ("/a%2Fb", "/a/b"),
            ("/%252e%252e/x", "/%2e%2e/x"),
            ("/...", "/..."),
            ("/..a", "/..a"),
            ("/%C3%A9", "/é"),
            ("/100%", "/100%"),
        ] {
            assert_eq!(of(raw).await.as_deref(), Ok(path), "{raw}");
        }
        for raw in ["/..", "/a/../b", "/a/%2e%2e/b", "/a%2F..%2Fb", "/.%2E", "/a%00b", "/%00", "/%ff"] {
            assert_eq!(of(raw).await, Err(Code::InvalidPath), "{raw}");
        }
        assert!(of(&format!("/{}", "a".repeat(4096))).await.is_ok());
        assert_eq!(of(&format!("/{}", "a".repeat(4097))).await, Err(Code::InvalidPath));
    }

    #[test]
    fn parameters() {
        assert_eq!(GuestPath::from_parameter("move_to", "/a//b").unwrap().0, "/a/b");
        for bad in ["", "a", "/a/..", "/a\0"] {
            assert!(GuestPath::from_parameter("move_to", bad).is_err(), "{bad:?}");
        }
        assert_eq!(GuestPath("/a/b".into()).name(), "b");
        assert_eq!(GuestPath("/".into()).name(), "/");
    }

    #[tokio::test]
    async fn ids() {
        for (segment, found) in [
            ("sbx_k3v7q2m5x6a4b2c7d5ef", true),
            ("k3v7q2m5x6a4b2c7d5ef", true),
            ("sbx%5Fk3v7q2m5x6a4b2c7d5ef", true),
            ("sbx_abc123", false),
            ("..", false),
            ("%ff", false),
            ("tpl_k3v7q2m5x6a4b2c7d5ef", false),
        ] {
            let uri = format!("/v1/sandboxes/{segment}/wake");
            let (mut parts, ()) = Request::builder().uri(uri).body(()).unwrap().into_parts();
            let target = Target::from_request_parts(&mut parts, &()).await.map(|t| t.0.to_string());
            let wanted = if found { Ok("sbx_k3v7q2m5x6a4b2c7d5ef".to_owned()) } else { Err(Code::SandboxNotFound) };
            assert_eq!(target.map_err(|p| p.code()), wanted, "{segment}");
        }
    }

    proptest! {
        #[test]
        fn never_leaves_the_place(decoded in prop::collection::vec(prop_oneof![
            Just(b'/'), Just(b'.'), Just(0), Just(b'a'), any::<u8>()
        ], 0..60)) {
            if let Ok(GuestPath(path)) = GuestPath::tidy(&decoded) {
                prop_assert!(path.starts_with('/') && !path.contains('\0') && !path.contains("//"));
                prop_assert!(path.split('/').all(|segment| segment != ".." && segment != "."));
                prop_assert!(path == "/" || !path.ends_with('/'));
            }
        }

        #[test]
        fn any_uri_is_decided(raw in "[/.%0-9a-fA-F]{0,60}") {
            if let Ok(uri) = format!("/v1/sandboxes/x/files/{raw}").parse::<Uri>() {
                let (mut parts, ()) = Request::builder().uri(uri).body(()).unwrap().into_parts();
                let path = futures_util::FutureExt::now_or_never(GuestPath::from_request_parts(&mut parts, &()));
                if let Ok(GuestPath(path)) = path.expect("nothing to wait for") {
                    prop_assert!(path.split('/').all(|segment| segment != "..") && !path.contains('\0'));
                }
            }
        }
    }
}
