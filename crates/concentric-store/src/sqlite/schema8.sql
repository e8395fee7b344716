-- When a conversation was written last. It is not known of those that are stored now.
ALTER TABLE threads ADD COLUMN at INTEGER NOT NULL DEFAULT 0;
UPDATE threads SET at = CAST(unixepoch('subsec') * 1000 AS INTEGER) * 1000000;
-- Versions increase with each write.
CREATE INDEX threads_by_version ON threads (tenant, version);
