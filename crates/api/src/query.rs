//! Query strings: unknown names and values are refused, so that a misspelt filter does not list everything.

use http::Uri;
use percent_encoding::percent_decode;
use wakeful_model::Code;

use crate::problem::Problem;

/// The parameters that have not been read yet.
#[derive(Debug)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// Of `uri`; a name in `known` that ends with `.` stands for all names that begin so.
    pub(crate) fn of(uri: &Uri, known: &[&str]) -> Result<Self, Problem> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for pair in uri.query().unwrap_or("").split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (Some(name), Some(value)) = (decode(name), decode(value)) else {
                return Err(Problem::new(Code::InvalidField, "the query is not UTF-8"));
            };
            let is_known = known.iter().any(|k| if k.ends_with('.') { name.starts_with(k) } else { name == *k });
            if !is_known {
                let name: String = name.chars().take(100).collect();
                return Err(Problem::field(
                    Code::UnknownField,
                    &name,
                    format!("there is no query parameter {name:?} here"),
                ));
            }
            if pairs.iter().any(|(other, _)| *other == name) {
                return Err(invalid(&name, "is given twice"));
            }
            pairs.push((name, value));
        }
        Ok(Self(pairs))
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(other, _)| other == name)?;
        Some(self.0.remove(at).1)
    }

    /// `?name`, `?name=true`, `?name=false`.
    pub(crate) fn flag(&mut self, name: &str) -> Result<Option<bool>, Problem> {
        match self.take(name).as_deref() {
            None => Ok(None),
            Some("" | "true" | "1") => Ok(Some(true)),
            Some("false" | "0") => Ok(Some(false)),
            Some(_) => Err(invalid(name, "must be true or false")),
        }
    }

    /// All whose name begins with `prefix`, without it, in order.
    pub(crate) fn take_prefixed(&mut self, prefix: &str) -> Vec<(String, String)> {
        let (with, without) = std::mem::take(&mut self.0).into_iter().partition(|(name, _)| name.starts_with(prefix));
        self.0 = without;
        let with: Vec<(String, String)> = with;
        with.into_iter().map(|(name, value)| (name[prefix.len()..].to_owned(), value)).collect()
    }
}

/// A query parameter with a value that has no meaning.
pub(crate) fn invalid(name: &str, reason: &str) -> Problem {
    Problem::field(Code::InvalidField, name, format!("{name} {reason}"))
}

fn decode(text: &str) -> Option<String> {
    let spaced = text.replace('+', " ");
    percent_decode(spaced.as_bytes()).decode_utf8().ok().map(std::borrow::Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str, known: &[&str]) -> Result<Query, Problem> {
        Query::of(&format!("/x?{text}").parse().unwrap(), known)
    }

    #[test]
    fn parameters() {
        let mut q = query("list=true&a=1%20%2B+2&metadata.k=v&&wait", &["list", "a", "metadata.", "wait"]).unwrap();
        assert_eq!(q.flag("list").unwrap(), Some(true));
        assert_eq!(q.take("a").as_deref(), Some("1 + 2"));
        assert_eq!(q.flag("wait").unwrap(), Some(true));
        assert_eq!(q.flag("wait").unwrap(), None);
        assert_eq!(q.take_prefixed("metadata."), [("k".to_owned(), "v".to_owned())]);
        assert!(Query::of(&"/x".parse().unwrap(), &[]).is_ok());
    }

    #[test]
    fn refused() {
        assert_eq!(query("lst=true", &["list"]).unwrap_err().code(), Code::UnknownField);
        assert_eq!(query("a=1&a=2", &["a"]).unwrap_err().code(), Code::InvalidField);
        assert_eq!(query("a=%ff", &["a"]).unwrap_err().code(), Code::InvalidField);
        assert_eq!(query("a=maybe", &["a"]).unwrap().flag("a").unwrap_err().code(), Code::InvalidField);
    }
}
