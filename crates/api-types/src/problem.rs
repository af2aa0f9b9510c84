//! How every refusal looks: RFC 9457.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use wakeful_model::Code;

/// Its media type.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// A problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Always `about:blank`: the code tells problems apart.
    #[serde(rename = "type")]
    pub kind: String,
    /// The status in words.
    pub title: String,
    /// The status.
    pub status: u16,
    /// Which problem; see [`Code`].
    pub code: String,
    /// What was wrong, for people.
    pub detail: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// The request field that is wrong.
    pub field: Option<String>,
    /// To be found in the server's log.
    pub request_id: String,
    /// What only some problems have, such as `fits`, or `pid` and `seq`.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl Problem {
    /// The code, if this version knows it.
    #[must_use]
    pub fn known_code(&self) -> Option<Code> {
        self.code.parse().ok()
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.detail, self.code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body() {
        let mut problem = Problem {
            kind: "about:blank".into(),
            title: "Conflict".into(),
            status: 409,
            code: "suspended_during_exec".into(),
            detail: "sbx_k3v7q2m5x6a4b2c7d5ef was suspended".into(),
            hint: None,
            field: None,
            request_id: "abc".into(),
            more: Map::new(),
        };
        problem.more.insert("pid".into(), 214.into());
        let text = serde_json::to_string(&problem).unwrap();
        insta::assert_snapshot!(text, @r#"{"type":"about:blank","title":"Conflict","status":409,"code":"suspended_during_exec","detail":"sbx_k3v7q2m5x6a4b2c7d5ef was suspended","hint":null,"field":null,"request_id":"abc","pid":214}"#);
        assert_eq!(serde_json::from_str::<Problem>(&text).unwrap(), problem);
        assert_eq!(problem.known_code(), Some(Code::SuspendedDuringExec));
    }
}
