//! The fields of a JSON object, each read with the problem that a wrong one makes.
//!
//! Deserialising into a struct would tell less: which field is wrong, and which code the contract has for it, is not in
//! serde's error. `null` means absent.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value};
use wakeful_api_types::{Command, DurationText};
use wakeful_model::Code;

use crate::problem::Problem;

/// The fields of one object that have not been read yet.
pub(crate) struct Fields {
    /// The names of the objects around, as `egress.`.
    prefix: String,
    map: Map<String, Value>,
}

impl Fields {
    /// Refuses fields that the call does not know: a misspelt one must not be taken for an absent one.
    pub(crate) fn of(map: Map<String, Value>, known: &[&str]) -> Result<Self, Problem> {
        Self::within(String::new(), map, known)
    }

    /// The same of an object in another; `prefix` as in `egress.`.
    pub(crate) fn within(prefix: String, map: Map<String, Value>, known: &[&str]) -> Result<Self, Problem> {
        if let Some(name) = map.keys().find(|name| !known.contains(&name.as_str())) {
            let name: String = format!("{prefix}{name}").chars().take(100).collect();
            let hint = match known {
                [] => "this call takes no fields".to_owned(),
                known => format!("it takes {}", known.join(", ")),
            };
            return Err(Problem::field(Code::UnknownField, &name, format!("there is no field {name:?}")).hint(hint));
        }
        Ok(Self { prefix, map })
    }

    /// A field's name with those of the objects around it.
    pub(crate) fn name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn wrong(&self, code: Code, name: &str, should: &str) -> Problem {
        Problem::field(code, self.name(name), format!("{} must be {should}", self.name(name)))
    }

    /// A field, whatever it is.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.map.remove(name).filter(|value| !value.is_null())
    }

    /// Whether it is there and not read yet.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.map.get(name).is_some_and(|value| !value.is_null())
    }

    pub(crate) fn string(&mut self, name: &str, code: Code) -> Result<Option<String>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) if text.contains('\0') => Err(self.wrong(code, name, "without NUL")),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(code, name, "a string")),
        }
    }

    pub(crate) fn boolean(&mut self, name: &str) -> Result<Option<bool>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(_) => Err(self.wrong(Code::InvalidField, name, "true or false")),
        }
    }

    pub(crate) fn number(&mut self, name: &str, code: Code) -> Result<Option<u32>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => match value.as_u64().and_then(|n| u32::try_from(n).ok()) {
                Some(number) => Ok(Some(number)),
                None => Err(self.wrong(code, name, "a whole number")),
            },
        }
    }

    /// A duration that is not zero.
    pub(crate) fn duration(&mut self, name: &str) -> Result<Option<Duration>, Problem> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let should = "a duration such as \"90s\" or \"1h30m\", or a whole number of seconds, and more than zero";
        let text: DurationText =
            serde_json::from_value(value).map_err(|_| self.wrong(Code::InvalidDuration, name, should))?;
        match text.parse() {
            Ok(duration) if !duration.is_zero() => Ok(Some(duration)),
            _ => Err(self.wrong(Code::InvalidDuration, name, should)),
        }
    }

    /// A duration that may be none at all.
    pub(crate) fn duration_or_zero(&mut self, name: &str) -> Result<Option<Duration>, Problem> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let should = "a duration such as \"90s\" or \"7d\", or a whole number of seconds";
        let wrong = || self.wrong(Code::InvalidDuration, name, should);
        let text: DurationText = serde_json::from_value(value).map_err(|_| wrong())?;
        text.parse().map(Some).map_err(|_| wrong())
    }

    /// A command: a line for the shell, or a program with its arguments; an empty list is none.
    pub(crate) fn command(&mut self, name: &str) -> Result<Option<Vec<String>>, Problem> {
        let should = "a line for the shell or a list of strings, the first of which names a program";
        let Some(value) = self.take(name) else { return Ok(None) };
        let wrong = || self.wrong(Code::InvalidField, name, should);
        let argv = match serde_json::from_value(value).map_err(|_| wrong())? {
            Command::Shell(line) if line.trim().is_empty() => return Err(wrong()),
            Command::Shell(line) => vec!["/bin/sh".to_owned(), "-c".to_owned(), line],
            Command::Argv(argv) if argv.first().is_some_and(String::is_empty) => return Err(wrong()),
            Command::Argv(argv) => argv,
        };
        if argv.iter().any(|word| word.contains('\0')) {
            return Err(self.wrong(Code::InvalidField, name, "without NUL"));
        }
        Ok(Some(argv))
    }

    /// A duration for which zero, also as `"0"`, means without end.
    pub(crate) fn duration_or_endless(&mut self, name: &str) -> Result<Option<Option<Duration>>, Problem> {
        match self.map.get(name) {
            Some(Value::String(text)) if matches!(text.as_str(), "0" | "0s" | "0ms") => {}
            Some(Value::Number(number)) if number.as_u64() == Some(0) => {}
            _ => return self.duration(name).map(|given| given.map(Some)),
        }
        self.take(name);
        Ok(Some(None))
    }

    pub(crate) fn strings(&mut self, name: &str, code: Code) -> Result<Vec<String>, Problem> {
        match self.take(name) {
            None => Ok(Vec::new()),
            Some(value) => serde_json::from_value(value).map_err(|_| self.wrong(code, name, "a list of strings")),
        }
    }

    pub(crate) fn numbers(&mut self, name: &str, code: Code) -> Result<Vec<i64>, Problem> {
        match self.take(name) {
            None => Ok(Vec::new()),
            Some(value) => serde_json::from_value(value).map_err(|_| self.wrong(code, name, "a list of whole numbers")),
        }
    }

    /// Strings by name.
    pub(crate) fn map(&mut self, name: &str) -> Result<BTreeMap<String, String>, Problem> {
        match self.take(name) {
            None => Ok(BTreeMap::new()),
            Some(value) => {
                serde_json::from_value(value).map_err(|_| self.wrong(Code::InvalidField, name, "an object of strings"))
            }
        }
    }

    /// An object of its own.
    pub(crate) fn object(&mut self, name: &str, code: Code, known: &[&str]) -> Result<Option<Self>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Self::within(format!("{}.", self.name(name)), map, known).map(Some),
            Some(_) => Err(self.wrong(code, name, "an object")),
        }
    }

    /// Variables: names that a shell can spell, values without NUL.
    pub(crate) fn env(&mut self) -> Result<BTreeMap<String, String>, Problem> {
        let env = self.map("env")?;
        for (name, value) in &env {
            let first = name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
            if !first || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
                let name: String = name.chars().take(80).collect();
                return Err(Problem::field(
                    Code::InvalidField,
                    self.name("env"),
                    format!("{name:?} is not a name of a variable: letters, digits and _ only, and no digit first"),
                ));
            }
            if value.contains('\0') {
                return Err(Problem::field(
                    Code::InvalidField,
                    self.name(&format!("env.{name}")),
                    format!("the value of {name} contains NUL"),
                ));
            }
        }
        Ok(env)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fields(value: Value, known: &[&str]) -> Result<Fields, Problem> {
        let Value::Object(map) = value else { panic!("an object") };
        Fields::of(map, known)
    }

    #[test]
    fn unknown_ones_are_named() {
        let problem = fields(json!({"a": 1, "timeuot": "5m"}), &["a", "timeout"]).map(|_| ()).unwrap_err();
        assert_eq!((problem.code(), problem.field_name()), (Code::UnknownField, Some("timeuot")));
        let mut outer = fields(json!({"egress": {"mdoe": 1}}), &["egress"]).unwrap();
        let problem = outer.object("egress", Code::InvalidEgress, &["mode"]).map(|_| ()).unwrap_err();
        assert_eq!((problem.code(), problem.field_name()), (Code::UnknownField, Some("egress.mdoe")));
    }

    #[test]
    fn durations() {
        for (value, wanted) in [
            (json!("90s"), Ok(Some(90))),
            (json!(90), Ok(Some(90))),
            (json!(null), Ok(None)),
            (json!(0), Err(())),
            (json!("0s"), Err(())),
            (json!("soon"), Err(())),
            (json!(-1), Err(())),
            (json!(1.5), Err(())),
            (json!(true), Err(())),
            (json!({}), Err(())),
        ] {
            let mut fields = fields(json!({"timeout": value}), &["timeout"]).unwrap();
            let got = fields.duration("timeout");
            if let Err(problem) = &got {
                assert_eq!((problem.code(), problem.field_name()), (Code::InvalidDuration, Some("timeout")));
            }
            assert_eq!(got.map(|d| d.map(|d| d.as_secs())).map_err(|_| ()), wanted, "{value}");
        }
    }

    #[test]
    fn zero_may_be_allowed() {
        for (value, wanted) in [
            (json!("0s"), Ok(Some(0))),
            (json!("7d"), Ok(Some(7 * 86400))),
            (json!(0), Ok(Some(0))),
            (json!(null), Ok(None)),
            (json!("0"), Err(Code::InvalidDuration)),
            (json!("soon"), Err(Code::InvalidDuration)),
            (json!([]), Err(Code::InvalidDuration)),
        ] {
            let got = fields(json!({"unused": value}), &["unused"]).unwrap().duration_or_zero("unused");
            assert_eq!(got.map(|d| d.map(|d| d.as_secs())).map_err(|p| p.code()), wanted, "{value}");
        }
    }

    #[test]
    fn commands() {
        for (value, wanted) in [
            (json!("a b"), Some(Some(vec!["/bin/sh", "-c", "a b"]))),
            (json!(["a", "", "b c"]), Some(Some(vec!["a", "", "b c"]))),
            (json!([]), Some(Some(vec![]))),
            (json!(null), Some(None)),
            (json!(" "), None),
            (json!([""]), None),
            (json!(["a\0"]), None),
            (json!("a\0"), None),
            (json!([1]), None),
            (json!({}), None),
        ] {
            let got = fields(json!({"start": value}), &["start"]).unwrap().command("start");
            if let Err(problem) = &got {
                assert_eq!((problem.code(), problem.field_name()), (Code::InvalidField, Some("start")));
            }
            let wanted = wanted.map(|argv| argv.map(|argv| argv.into_iter().map(str::to_owned).collect()));
            assert_eq!(got.ok(), wanted, "{value}");
        }
    }

    #[test]
    fn variables() {
        for good in ["A", "_a1", "OPENAI_API_KEY"] {
            assert!(fields(json!({"env": {good: ""}}), &["env"]).unwrap().env().is_ok(), "{good}");
        }
        for bad in ["", "1A", "A=B", "A B", "A-B", "é", "A\0"] {
            let problem = fields(json!({"env": {bad: ""}}), &["env"]).unwrap().env().unwrap_err();
            assert_eq!(problem.code(), Code::InvalidField, "{bad:?}");
        }
        assert!(fields(json!({"env": {"A": "x\0"}}), &["env"]).unwrap().env().is_err());
        assert!(fields(json!({"env": {"A": 1}}), &["env"]).unwrap().env().is_err());
    }

    #[test]
    fn wrong_types() {
        let read = || fields(json!({"s": 1, "b": "x", "n": -1, "l": [1]}), &["s", "b", "n", "l"]).unwrap();
        assert_eq!(read().string("s", Code::InvalidMode).unwrap_err().code(), Code::InvalidMode);
        assert_eq!(read().boolean("b").unwrap_err().code(), Code::InvalidField);
        assert_eq!(read().number("n", Code::InvalidSize).unwrap_err().code(), Code::InvalidSize);
        assert_eq!(read().strings("l", Code::InvalidEgress).unwrap_err().code(), Code::InvalidEgress);
    }
}
