-- Copies of a sandbox's memory and disk. One without a name belongs to a fork that is under way.
CREATE TABLE snapshots (
    id          TEXT   NOT NULL PRIMARY KEY,
    tenant      TEXT   NOT NULL,
    name        TEXT,
    sandbox_id  TEXT   NOT NULL,
    template_id TEXT   NOT NULL,
    base        TEXT   NOT NULL,
    content     TEXT   NOT NULL,
    created_at  BIGINT NOT NULL
) WITHOUT ROWID;

CREATE UNIQUE INDEX snapshots_by_name ON snapshots (tenant, name) WHERE name IS NOT NULL;
CREATE INDEX snapshots_by_template ON snapshots (template_id);
