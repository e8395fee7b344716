-- How the run ended; null before its end.
ALTER TABLE runs ADD COLUMN outcome TEXT;
CREATE INDEX runs_of_client ON runs (tenant, thread, client_id, begun);

-- From this version on, a row of `turns` may have several turns, one on each line. `n` is the position of the last
-- one, and `chain` its checksum.

-- Results that can be made again.
CREATE TABLE cache (
    tenant TEXT NOT NULL,
    -- Empty for an entry that belongs to no conversation.
    thread TEXT NOT NULL,
    space  TEXT NOT NULL,
    digest BLOB NOT NULL,
    at     INTEGER NOT NULL,
    until  INTEGER NOT NULL,
    -- Of the names, the digest and the value.
    bytes  INTEGER NOT NULL,
    value  BLOB NOT NULL,
    PRIMARY KEY (tenant, thread, space, digest)
) STRICT;
CREATE INDEX cache_until ON cache (until);

-- The number of entries, and their bytes.
CREATE TABLE cache_total (
    id    INTEGER PRIMARY KEY CHECK (id = 0),
    n     INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) STRICT;
INSERT INTO cache_total VALUES (0, 0, 0);
CREATE TRIGGER cache_added AFTER INSERT ON cache BEGIN
    UPDATE cache_total SET n = n + 1, bytes = bytes + new.bytes;
END;
CREATE TRIGGER cache_removed AFTER DELETE ON cache BEGIN
    UPDATE cache_total SET n = n - 1, bytes = bytes - old.bytes;
END;

-- Runs that were deleted with their conversations, so that their last turns do not create these again. They have no
-- names, since these are deleted.
CREATE TABLE deleted_runs (
    -- The digest of the key.
    run BLOB PRIMARY KEY,
    at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX deleted_runs_at ON deleted_runs (at);
