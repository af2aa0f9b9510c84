//! Columns to model types and back.
//!
//! What is read was written by some version of this program, perhaps a newer one: a word that is not known makes the row
//! [`Unreadable`](Error::Unreadable), never something similar. What is written must come back the same; the few values
//! that a column cannot hold are refused before the statement runs.

use std::str::FromStr;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::sqlite::{Sqlite, SqliteRow};
use sqlx::{Decode, Row, Type};

use crate::Error;

/// Reads one row, and knows whose it is when something is wrong with it.
pub(super) struct Reader<'r> {
    row: &'r SqliteRow,
    id: String,
}

impl<'r> Reader<'r> {
    /// `key` is the column that names the row.
    pub(super) fn new(row: &'r SqliteRow, key: &'static str) -> Result<Self, Error> {
        let id = row.try_get(key).map_err(|_| Error::Unreadable { id: "(without an id)".into(), column: key })?;
        Ok(Self { row, id })
    }

    pub(super) fn unreadable(&self, column: &'static str) -> Error {
        Error::Unreadable { id: self.id.clone(), column }
    }

    pub(super) fn get<T>(&self, column: &'static str) -> Result<T, Error>
    where
        T: Decode<'r, Sqlite> + Type<Sqlite>,
    {
        self.row.try_get(column).map_err(|_| self.unreadable(column))
    }

    /// An enum, an id: whatever has a word.
    pub(super) fn word<T: FromStr>(&self, column: &'static str) -> Result<T, Error> {
        self.get::<&str>(column)?.parse().map_err(|_| self.unreadable(column))
    }

    pub(super) fn optional_word<T: FromStr>(&self, column: &'static str) -> Result<Option<T>, Error> {
        self.get::<Option<&str>>(column)?.map(str::parse).transpose().map_err(|_| self.unreadable(column))
    }

    pub(super) fn json<T: DeserializeOwned>(&self, column: &'static str) -> Result<T, Error> {
        serde_json::from_str(self.get(column)?).map_err(|_| self.unreadable(column))
    }

    pub(super) fn optional_json<T: DeserializeOwned>(&self, column: &'static str) -> Result<Option<T>, Error> {
        self.get::<Option<&str>>(column)?.map(serde_json::from_str).transpose().map_err(|_| self.unreadable(column))
    }

    pub(super) fn number<T: TryFrom<i64>>(&self, column: &'static str) -> Result<T, Error> {
        self.get::<i64>(column)?.try_into().map_err(|_| self.unreadable(column))
    }

    pub(super) fn optional_number<T: TryFrom<i64>>(&self, column: &'static str) -> Result<Option<T>, Error> {
        self.get::<Option<i64>>(column)?.map(T::try_from).transpose().map_err(|_| self.unreadable(column))
    }

    pub(super) fn instant(&self, column: &'static str) -> Result<Timestamp, Error> {
        Timestamp::from_microsecond(self.get(column)?).map_err(|_| self.unreadable(column))
    }

    pub(super) fn optional_instant(&self, column: &'static str) -> Result<Option<Timestamp>, Error> {
        self.get::<Option<i64>>(column)?
            .map(Timestamp::from_microsecond)
            .transpose()
            .map_err(|_| self.unreadable(column))
    }

    pub(super) fn optional_duration(&self, column: &'static str) -> Result<Option<SignedDuration>, Error> {
        Ok(self.get::<Option<i64>>(column)?.map(SignedDuration::from_micros))
    }
}

/// Turns values into what a column takes, and knows whose they are when it does not.
pub(super) struct Writer<'a> {
    pub(super) id: &'a str,
}

impl Writer<'_> {
    fn unwritable(&self, column: &'static str) -> Error {
        Error::Unwritable { id: self.id.to_owned(), column }
    }

    pub(super) fn json<T: Serialize>(&self, column: &'static str, value: &T) -> Result<String, Error> {
        serde_json::to_string(value).map_err(|_| self.unwritable(column))
    }

    pub(super) fn optional_json<T: Serialize>(
        &self,
        column: &'static str,
        value: Option<&T>,
    ) -> Result<Option<String>, Error> {
        value.map(|value| self.json(column, value)).transpose()
    }

    pub(super) fn number(&self, column: &'static str, value: u64) -> Result<i64, Error> {
        value.try_into().map_err(|_| self.unwritable(column))
    }

    pub(super) fn optional_number(&self, column: &'static str, value: Option<u64>) -> Result<Option<i64>, Error> {
        value.map(|value| self.number(column, value)).transpose()
    }

    pub(super) fn duration(&self, column: &'static str, value: Option<SignedDuration>) -> Result<Option<i64>, Error> {
        value.map(|value| value.as_micros().try_into().map_err(|_| self.unwritable(column))).transpose()
    }
}

pub(super) fn microseconds(instant: Option<Timestamp>) -> Option<i64> {
    instant.map(Timestamp::as_microsecond)
}
