-- Who may call. What differs in Postgres: BLOB is BYTEA, and the clock is asked in other words.

CREATE TABLE tenants (
    name            TEXT   NOT NULL PRIMARY KEY,
    -- Null: no limit.
    limit_sandboxes BIGINT,
    limit_memory_mb BIGINT,
    limit_disk_mb   BIGINT,
    created_at      BIGINT NOT NULL
);

-- The tenant of everyone while there are no keys.
INSERT INTO tenants (name, created_at) VALUES ('default', CAST(strftime('%s', 'now') AS BIGINT) * 1000000);

-- Of a key there is only the digest; the secret is shown once and kept nowhere.
CREATE TABLE keys (
    id           TEXT   NOT NULL PRIMARY KEY,
    name         TEXT   NOT NULL,
    tenant       TEXT   NOT NULL REFERENCES tenants (name),
    scopes       TEXT   NOT NULL,
    digest       BLOB   NOT NULL UNIQUE CHECK (length(digest) = 32),
    created_at   BIGINT NOT NULL,
    last_used_at BIGINT
);
CREATE INDEX keys_by_tenant ON keys (tenant);
