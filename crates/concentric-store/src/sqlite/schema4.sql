-- A list of turns. Its first `parent_len` turns are those of its parent, so that a fork copies none.
CREATE TABLE logs (
    id         INTEGER PRIMARY KEY,
    parent     INTEGER REFERENCES logs (id),
    parent_len INTEGER NOT NULL,
    -- The number of its ancestors.
    depth      INTEGER NOT NULL
) STRICT;
CREATE INDEX logs_of_parent ON logs (parent) WHERE parent IS NOT NULL;

CREATE TABLE turns (
    log   INTEGER NOT NULL,
    -- The position in the conversation.
    n     INTEGER NOT NULL,
    -- The checksum of this turn and of those before it.
    chain BLOB NOT NULL,
    turn  TEXT NOT NULL,
    PRIMARY KEY (log, n)
) STRICT;

CREATE TABLE threads (
    tenant          TEXT NOT NULL,
    thread          TEXT NOT NULL,
    session         TEXT NOT NULL,
    version         INTEGER NOT NULL,
    log             INTEGER NOT NULL,
    -- The number of turns, and their bytes.
    len             INTEGER NOT NULL,
    bytes           INTEGER NOT NULL,
    -- The id of the last change.
    change          TEXT,
    -- The suspended turn, without the first turns of its transcript, which are those of the thread.
    suspended       TEXT,
    suspended_slots TEXT,
    shared          INTEGER,
    PRIMARY KEY (tenant, thread)
) STRICT;
CREATE INDEX threads_of_log ON threads (log);

CREATE TABLE slots (
    tenant TEXT NOT NULL,
    thread TEXT NOT NULL,
    slot   TEXT NOT NULL,
    place  TEXT NOT NULL,
    value  TEXT NOT NULL,
    PRIMARY KEY (tenant, thread, slot, place)
) STRICT;

CREATE TABLE memories (
    tenant TEXT NOT NULL,
    owner  TEXT NOT NULL,
    id     TEXT NOT NULL,
    at     INTEGER NOT NULL,
    text   TEXT NOT NULL,
    PRIMARY KEY (tenant, owner, id)
) STRICT;
CREATE INDEX memories_by_time ON memories (tenant, owner, at, id);
