-- What was asked for under an Idempotency-Key, and what was answered. Written before the work, with the id of what the work
-- will make: after a crash that id tells whether it came to be.
CREATE TABLE idempotency (
    tenant   TEXT   NOT NULL,
    key      TEXT   NOT NULL,
    -- Of the call and its body in canonical form.
    digest   TEXT   NOT NULL,
    subject  TEXT   NOT NULL,
    at       BIGINT NOT NULL,
    -- The first answer, once there is one. A call that was refused leaves no row.
    status   BIGINT,
    location TEXT,
    body     TEXT,
    PRIMARY KEY (tenant, key),
    CHECK ((status IS NULL) = (body IS NULL))
) WITHOUT ROWID;

CREATE INDEX idempotency_by_age ON idempotency (at);
