-- Ids are text, instants and durations microseconds, structures JSON in text: the ground that SQLite and Postgres share.
-- What differs in Postgres: BLOB is BYTEA there, and there is no WITHOUT ROWID.

CREATE TABLE sandboxes (
    id                 TEXT    NOT NULL PRIMARY KEY,
    version            BIGINT  NOT NULL,
    tenant             TEXT    NOT NULL,
    state              TEXT    NOT NULL CHECK (state IN ('creating', 'running', 'suspended', 'failed', 'destroyed')),
    memory             TEXT             CHECK (memory IN ('kept', 'none', 'spent')),
    bootable           BOOLEAN,
    -- The operation under way; all four or none.
    op_id              TEXT,
    op                 TEXT,
    op_since           BIGINT,
    op_automatic       BOOLEAN,
    template           TEXT    NOT NULL,
    template_id        TEXT    NOT NULL,
    base               TEXT    NOT NULL,
    size               TEXT,
    cpu                BIGINT  NOT NULL,
    memory_mb          BIGINT  NOT NULL,
    disk_mb            BIGINT  NOT NULL,
    "user"             TEXT    NOT NULL,
    workdir            TEXT    NOT NULL,
    env                TEXT    NOT NULL,
    env_keys           TEXT    NOT NULL,
    metadata           TEXT    NOT NULL,
    egress             TEXT    NOT NULL,
    runtime            TEXT    NOT NULL,
    accel              TEXT    NOT NULL,
    runtime_generation BIGINT  NOT NULL,
    restored_memory    BOOLEAN,
    expires_at         BIGINT,
    on_expiry          TEXT    NOT NULL,
    timeout            BIGINT,
    idle_timeout       BIGINT,
    hard_expires_at    BIGINT,
    auto_resume        BOOLEAN NOT NULL,
    resume_lease       BIGINT,
    suspend_memory     BOOLEAN NOT NULL,
    checkpoint         TEXT,
    secret             BLOB    NOT NULL CHECK (length(secret) = 32),
    created_at         BIGINT  NOT NULL,
    updated_at         BIGINT  NOT NULL,
    started_at         BIGINT,
    suspended_at       BIGINT,
    destroyed_at       BIGINT,
    last_activity_at   BIGINT  NOT NULL,
    parent_id          TEXT,
    -- Why it failed; all four or none.
    failure_code       TEXT,
    failure_detail     TEXT,
    failure_at         BIGINT,
    failure_bootable   BOOLEAN,
    CHECK ((state = 'suspended') = (memory IS NOT NULL)),
    CHECK ((state = 'failed') = (bootable IS NOT NULL)),
    CHECK ((op_id IS NULL) = (op IS NULL)),
    CHECK ((op_id IS NULL) = (op_since IS NULL)),
    CHECK ((op_id IS NULL) = (op_automatic IS NULL)),
    CHECK ((failure_code IS NULL) = (failure_detail IS NULL)),
    CHECK ((failure_code IS NULL) = (failure_at IS NULL)),
    CHECK ((failure_code IS NULL) = (failure_bootable IS NULL))
);

-- The list, newest first: all that live, or those in one state.
CREATE INDEX sandboxes_living ON sandboxes (tenant, created_at DESC, id DESC) WHERE state <> 'destroyed';
CREATE INDEX sandboxes_by_state ON sandboxes (tenant, state, created_at DESC, id DESC);
-- Who stands on a template.
CREATE INDEX sandboxes_by_template ON sandboxes (template_id) WHERE state <> 'destroyed';
-- Tombstones whose time has come.
CREATE INDEX sandboxes_tombstones ON sandboxes (COALESCE(destroyed_at, updated_at)) WHERE state = 'destroyed';

-- The story of a sandbox, numbered from 1 without gaps; it goes with the tombstone.
CREATE TABLE events (
    sandbox_id         TEXT    NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    seq                BIGINT  NOT NULL,
    at                 BIGINT  NOT NULL,
    type               TEXT    NOT NULL,
    cause              TEXT    NOT NULL,
    duration_ms        BIGINT,
    runtime_generation BIGINT  NOT NULL,
    detail             TEXT,
    PRIMARY KEY (sandbox_id, seq)
) WITHOUT ROWID;

CREATE TABLE templates (
    id           TEXT   NOT NULL PRIMARY KEY,
    version      BIGINT NOT NULL,
    tenant       TEXT   NOT NULL,
    name         TEXT   NOT NULL,
    status       TEXT   NOT NULL CHECK (status IN ('pending', 'building', 'ready', 'failed', 'deleted')),
    build_error  TEXT,
    source       TEXT   NOT NULL,
    "user"       TEXT   NOT NULL,
    workdir      TEXT   NOT NULL,
    env          TEXT   NOT NULL,
    default_size TEXT   NOT NULL,
    egress       TEXT   NOT NULL,
    base         TEXT,
    disk_bytes   BIGINT NOT NULL,
    created_at   BIGINT NOT NULL,
    built_at     BIGINT
);

-- A deleted template's name is free, although sandboxes may still stand on its files.
CREATE UNIQUE INDEX templates_by_name ON templates (tenant, name) WHERE status <> 'deleted';

-- What was made on the host for a sandbox. Not tied to its row: an entry that outlives the row still names something
-- to remove.
CREATE TABLE resources (
    sandbox_id TEXT   NOT NULL,
    kind       TEXT   NOT NULL,
    name       TEXT   NOT NULL,
    made_at    BIGINT NOT NULL,
    PRIMARY KEY (sandbox_id, kind, name)
) WITHOUT ROWID;
