//! What was asked for under an `Idempotency-Key`, and what was answered.

use jiff::Timestamp;
use sqlx::sqlite::SqliteRow;

use super::row::Reader;
use super::{Durable, SqliteStore, doing};
use crate::{Answer, Claim, Error};

/// One that is too old counts as none: its row is taken over.
const CLAIM: &str = "INSERT INTO idempotency (tenant, key, digest, subject, at) VALUES ($1, $2, $3, $4, $5) \
    ON CONFLICT (tenant, key) DO UPDATE SET digest = $3, subject = $4, at = $5, status = NULL, location = NULL, \
    body = NULL WHERE idempotency.at < $6 RETURNING key";
const GET: &str = "SELECT * FROM idempotency WHERE tenant = $1 AND key = $2";
const ANSWER: &str = "UPDATE idempotency SET status = $4, location = $5, body = $6 \
    WHERE tenant = $1 AND key = $2 AND subject = $3";
const RELEASE: &str = "DELETE FROM idempotency WHERE tenant = $1 AND key = $2 AND subject = $3";
const FORGET: &str = "DELETE FROM idempotency WHERE at < $1";

fn read(row: &SqliteRow) -> Result<Claim, Error> {
    let read = Reader::new(row, "key")?;
    let answer = match read.optional_number("status")? {
        None => None,
        Some(status) => Some(Answer { status, location: read.get("location")?, body: read.get("body")? }),
    };
    Ok(Claim { digest: read.get("digest")?, subject: read.get("subject")?, answer })
}

pub(super) async fn claim(
    store: &SqliteStore,
    tenant: &str,
    key: &str,
    claim: &Claim,
    now: Timestamp,
    expired: Timestamp,
) -> Result<Option<Claim>, Error> {
    const DOING: &str = "claim an idempotency key";
    let mut transaction = store.begin(Durable::AtOnce).await?;
    let claimed = sqlx::query(CLAIM)
        .bind(tenant)
        .bind(key)
        .bind(&claim.digest)
        .bind(&claim.subject)
        .bind(now.as_microsecond())
        .bind(expired.as_microsecond())
        .fetch_optional(&mut *transaction)
        .await
        .map_err(doing(DOING))?;
    if claimed.is_some() {
        transaction.commit().await.map_err(doing(DOING))?;
        return Ok(None);
    }
    let there = sqlx::query(GET).bind(tenant).bind(key).fetch_one(&mut *transaction).await.map_err(doing(DOING))?;
    read(&there).map(Some)
}

pub(super) async fn answer(
    store: &SqliteStore,
    tenant: &str,
    key: &str,
    subject: &str,
    answer: &Answer,
) -> Result<(), Error> {
    const DOING: &str = "keep an answer";
    let mut transaction = store.begin(Durable::AtOnce).await?;
    sqlx::query(ANSWER)
        .bind(tenant)
        .bind(key)
        .bind(subject)
        .bind(i64::from(answer.status))
        .bind(answer.location.as_deref())
        .bind(&answer.body)
        .execute(&mut *transaction)
        .await
        .map_err(doing(DOING))?;
    transaction.commit().await.map_err(doing(DOING))
}

pub(super) async fn release(store: &SqliteStore, tenant: &str, key: &str, subject: &str) -> Result<(), Error> {
    const DOING: &str = "release an idempotency key";
    let mut transaction = store.begin(Durable::AtOnce).await?;
    sqlx::query(RELEASE).bind(tenant).bind(key).bind(subject).execute(&mut *transaction).await.map_err(doing(DOING))?;
    transaction.commit().await.map_err(doing(DOING))
}

pub(super) async fn forget(store: &SqliteStore, before: Timestamp) -> Result<u64, Error> {
    const DOING: &str = "forget old idempotency keys";
    // Lost by a crash, the next round does it again.
    let mut transaction = store.begin(Durable::Later).await?;
    let done =
        sqlx::query(FORGET).bind(before.as_microsecond()).execute(&mut *transaction).await.map_err(doing(DOING))?;
    transaction.commit().await.map_err(doing(DOING))?;
    Ok(done.rows_affected())
}
