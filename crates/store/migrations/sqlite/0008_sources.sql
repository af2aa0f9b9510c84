-- Templates from anything: what they are called and for, and what their maker wants otherwise than the source.
ALTER TABLE templates ADD COLUMN tags TEXT NOT NULL DEFAULT '[]';
ALTER TABLE templates ADD COLUMN description TEXT NOT NULL DEFAULT '';
ALTER TABLE templates ADD COLUMN asked TEXT NOT NULL DEFAULT '{}';
ALTER TABLE templates ADD COLUMN disk_mb BIGINT;
ALTER TABLE templates ADD COLUMN io TEXT NOT NULL DEFAULT '{}';
ALTER TABLE templates ADD COLUMN entry TEXT;
-- Whatever variables there were are kept by a rebuild.
UPDATE templates SET asked = '{"env":' || env || '}';

ALTER TABLE sandboxes ADD COLUMN io TEXT NOT NULL DEFAULT '{}';
ALTER TABLE sandboxes ADD COLUMN entry TEXT;

-- Who stands on a base.
CREATE INDEX sandboxes_by_base ON sandboxes (base) WHERE state <> 'destroyed';
CREATE INDEX snapshots_by_base ON snapshots (base);
