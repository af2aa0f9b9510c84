//! API keys on the wire.

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, Serializer};
use utoipa::ToSchema;
use wakeful_model::KeyId;

use crate::{Instant, schema};

/// A key, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Key {
    /// Its id.
    #[schema(value_type = schema::KeyId)]
    pub id: KeyId,
    /// What people call it.
    pub name: String,
    /// Whose it is.
    pub tenant: String,
    /// What it allows, such as `sandbox:*`.
    #[schema(value_type = Vec<schema::Scope>)]
    pub scopes: Vec<String>,
    /// Since when it exists.
    pub created_at: Instant,
    /// When it was last shown, give or take a minute.
    pub last_used_at: Option<Instant>,
}

impl From<wakeful_model::Key> for Key {
    fn from(key: wakeful_model::Key) -> Self {
        Self {
            id: key.id,
            name: key.name,
            tenant: key.tenant,
            scopes: key.scopes.iter().map(ToString::to_string).collect(),
            created_at: key.created_at.into(),
            last_used_at: key.last_used_at.map(Instant),
        }
    }
}

/// `GET /v1/keys`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyList {
    /// Oldest first.
    pub keys: Vec<Key>,
}

/// `POST /v1/keys`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateKey {
    /// What people call it.
    pub name: String,
    /// For whom; `default` if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// What it shall allow; everything within its tenant if it is left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<schema::Scope>)]
    pub scopes: Vec<String>,
}

/// The answer to `POST /v1/keys`: the one time that the secret is shown.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CreatedKey {
    /// What can be asked for later too.
    #[serde(flatten)]
    pub about: Key,
    /// The key itself.
    #[serde(rename = "key", serialize_with = "shown")]
    pub secret: SecretString,
}

fn shown<S: Serializer>(secret: &SecretString, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(secret.expose_secret())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secret_is_in_the_body_and_in_no_log() {
        let about = Key {
            id: "key_k3v7q2m5x6a4b2c7d5ef".parse().unwrap(),
            name: "ci".into(),
            tenant: "default".into(),
            scopes: vec!["sandbox:*".into()],
            created_at: Instant(jiff::Timestamp::from_second(1_775_399_400).unwrap()),
            last_used_at: None,
        };
        let created = CreatedKey { about, secret: "wkf_0123".to_owned().into() };
        let text = serde_json::to_string(&created).unwrap();
        insta::assert_snapshot!(text, @r#"{"id":"key_k3v7q2m5x6a4b2c7d5ef","name":"ci","tenant":"default","scopes":["sandbox:*"],"created_at":"2026-04-05T14:30:00.000Z","last_used_at":null,"key":"wkf_0123"}"#);
        assert_eq!(serde_json::from_str::<CreatedKey>(&text).unwrap().secret.expose_secret(), "wkf_0123");
        assert!(!format!("{created:?}").contains("0123"));
    }
}
