-- The source of versions and fences, which are unique over all writes.
CREATE TABLE counter (
    id INTEGER PRIMARY KEY CHECK (id = 0),
    n  INTEGER NOT NULL
) STRICT;
INSERT INTO counter VALUES (0, 0);

-- Times are nanoseconds since 1970.
CREATE TABLE runs (
    tenant      TEXT NOT NULL,
    thread      TEXT NOT NULL,
    run         TEXT NOT NULL,
    status      TEXT NOT NULL CHECK (status IN ('running', 'suspended', 'ended')),
    begun       INTEGER NOT NULL,
    version     INTEGER NOT NULL,
    fence       INTEGER NOT NULL,
    lease_until INTEGER NOT NULL,
    -- Since when it waits, or is over.
    since       INTEGER,
    -- Of the names, the state and the replies.
    checksum    BLOB NOT NULL,
    state       TEXT NOT NULL,
    replies     TEXT NOT NULL,
    replied_at  INTEGER,
    PRIMARY KEY (tenant, thread, run)
) STRICT;
CREATE INDEX runs_leases ON runs (lease_until, begun) WHERE status = 'running';
CREATE INDEX runs_suspended ON runs (since) WHERE status = 'suspended';
CREATE INDEX runs_ended ON runs (since) WHERE status = 'ended';

-- All interrupts that runs have raised, answered or not.
CREATE TABLE questions (
    tenant   TEXT NOT NULL,
    thread   TEXT NOT NULL,
    run      TEXT NOT NULL,
    question TEXT NOT NULL,
    PRIMARY KEY (tenant, thread, question, run)
) STRICT, WITHOUT ROWID;
CREATE INDEX questions_of_run ON questions (tenant, thread, run);

CREATE TABLE effects (
    tenant    TEXT NOT NULL,
    key       TEXT NOT NULL,
    thread    TEXT,
    run       TEXT,
    tool      TEXT NOT NULL,
    arguments TEXT NOT NULL,
    seen      INTEGER,
    outcome   TEXT,
    PRIMARY KEY (tenant, key)
) STRICT;
CREATE INDEX effects_of_run ON effects (tenant, thread, run) WHERE run IS NOT NULL;
CREATE INDEX effects_of_none ON effects (seen) WHERE run IS NULL;

CREATE TABLE once (
    tenant TEXT NOT NULL,
    key    TEXT NOT NULL,
    until  INTEGER NOT NULL,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX once_until ON once (until);

CREATE TABLE decisions (
    n        INTEGER PRIMARY KEY,
    tenant   TEXT NOT NULL,
    id       TEXT NOT NULL,
    tool     TEXT NOT NULL,
    span     TEXT NOT NULL CHECK (span IN ('run', 'thread', 'always')),
    thread   TEXT NOT NULL,
    run      TEXT NOT NULL,
    decision TEXT NOT NULL,
    UNIQUE (tenant, id)
) STRICT;
CREATE INDEX decisions_of_tool ON decisions (tenant, tool);
