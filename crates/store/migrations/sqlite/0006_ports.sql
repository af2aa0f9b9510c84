-- Ports of a sandbox that somebody has said something about; all others are private. They go with the tombstone.
CREATE TABLE ports (
    sandbox_id TEXT    NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    port       BIGINT  NOT NULL CHECK (port BETWEEN 1 AND 65535),
    public     BOOLEAN NOT NULL,
    PRIMARY KEY (sandbox_id, port)
) WITHOUT ROWID;
