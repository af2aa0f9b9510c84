//! What a registry wants to see before it answers: the `WWW-Authenticate` header.

/// One way to be let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// A token from somewhere.
    Bearer {
        /// Where tokens are given out.
        realm: String,
        /// For whom.
        service: Option<String>,
        /// For what.
        scope: Option<String>,
    },
    /// Name and password.
    Basic,
}

const HEADER_MAX: usize = 8 << 10;

/// Reads one header; what is not understood is left out.
#[must_use]
pub fn parse_challenges(header: &str) -> Vec<Challenge> {
    let mut found = Vec::new();
    if header.len() > HEADER_MAX {
        return found;
    }
    let mut rest = header;
    let mut scheme = "";
    let mut fields: Vec<(String, String)> = Vec::new();
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        let end = rest.find(|c: char| c.is_whitespace() || c == '=' || c == ',').unwrap_or(rest.len());
        let word = &rest[..end];
        let after = rest[end..].trim_start_matches([' ', '\t']);
        match after.strip_prefix('=') {
            Some(value) if !word.is_empty() => {
                let (value, left) = quoted(value.trim_start_matches([' ', '\t']));
                fields.push((word.to_ascii_lowercase(), value));
                rest = left;
            }
            // An `=` with nothing before it, or whitespace of another script: nothing that a server means.
            _ if word.is_empty() && !rest.is_empty() => {
                let mut chars = rest.chars();
                chars.next();
                rest = chars.as_str();
            }
            _ => {
                found.extend(challenge(scheme, std::mem::take(&mut fields)));
                scheme = word;
                rest = after;
                if word.is_empty() {
                    return found;
                }
            }
        }
    }
}

fn challenge(scheme: &str, fields: Vec<(String, String)>) -> Option<Challenge> {
    if scheme.eq_ignore_ascii_case("basic") {
        return Some(Challenge::Basic);
    }
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let (mut realm, mut service, mut scope) = (None, None, None);
    for (name, value) in fields {
        match name.as_str() {
            "realm" => realm = Some(value),
            "service" => service = Some(value),
            "scope" => scope = Some(value),
            _ => {}
        }
    }
    Some(Challenge::Bearer { realm: realm?, service, scope })
}

/// A quoted or bare value, and what follows it.
fn quoted(text: &str) -> (String, &str) {
    let Some(inner) = text.strip_prefix('"') else {
        let end = text.find([',', ' ', '\t']).unwrap_or(text.len());
        return (text[..end].into(), &text[end..]);
    };
    let mut value = String::new();
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => break,
            '\\' => value.extend(chars.next()),
            c => value.push(c),
        }
    }
    (value, chars.as_str())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bearer(realm: &str, service: Option<&str>, scope: Option<&str>) -> Challenge {
        Challenge::Bearer { realm: realm.into(), service: service.map(Into::into), scope: scope.map(Into::into) }
    }

    #[test]
    fn as_servers_write_them() {
        let realm = "https://auth.invalid/token";
        for (header, wanted) in [
            (r#"Basic realm="x""#, vec![Challenge::Basic]),
            ("basic", vec![Challenge::Basic]),
            (
                r#"Bearer realm="https://auth.invalid/token",service="r.invalid",scope="repository:a/b:pull,push""#,
                vec![bearer(realm, Some("r.invalid"), Some("repository:a/b:pull,push"))],
            ),
            (
                r#"Negotiate, bearer Realm = "https://auth.invalid/token" , Basic realm="a\"b""#,
                vec![bearer(realm, None, None), Challenge::Basic],
            ),
            ("Bearer realm=https://auth.invalid/token,service=r", vec![bearer(realm, Some("r"), None)]),
            (r#"Bearer service="no realm""#, vec![]),
            (r#"Bearer realm="unended"#, vec![bearer("unended", None, None)]),
            ("", vec![]),
            ("=,=", vec![]),
        ] {
            assert_eq!(parse_challenges(header), wanted, "{header}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(header in any::<String>()) {
            let _ = parse_challenges(&header);
        }

        #[test]
        fn nor_with_what_looks_right(header in "(Bearer|Basic|realm|=|\"|,|\\\\| |\u{a0}|x){0,40}") {
            let _ = parse_challenges(&header);
        }
    }
}
