-- A dump of a file written by schema version 8.
PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
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
INSERT INTO "cache" VALUES('acme','','model',X'0101010101010101010101010101010101010101010101010101010101010101',1700000002000000000,1700000062000000000,47,X'616E73776572');
CREATE TABLE cache_total (
    id    INTEGER PRIMARY KEY CHECK (id = 0),
    n     INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) STRICT;
INSERT INTO "cache_total" VALUES(0,1,47);
CREATE TABLE counter (
    id INTEGER PRIMARY KEY CHECK (id = 0),
    n  INTEGER NOT NULL
) STRICT;
INSERT INTO "counter" VALUES(0,9);
CREATE TABLE "decisions" (
    n        INTEGER PRIMARY KEY,
    tenant   TEXT NOT NULL,
    id       TEXT NOT NULL,
    tool     TEXT NOT NULL,
    span     TEXT NOT NULL CHECK (span IN ('run', 'thread', 'session', 'always')),
    -- The first conversation of the session, for the span 'session'.
    thread   TEXT NOT NULL,
    run      TEXT NOT NULL,
    decision TEXT NOT NULL,
    UNIQUE (tenant, id)
) STRICT;
CREATE TABLE deleted_runs (
    -- The digest of the key.
    run BLOB PRIMARY KEY,
    at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "deleted_runs" VALUES(X'6B23FF716AD42DD0202E42AC767E897DE49376F8269C39B068D925B3C0F92947',1700000002000000000);
CREATE TABLE effects (
    tenant    TEXT NOT NULL,
    key       TEXT NOT NULL,
    thread    TEXT,
    run       TEXT,
    tool      TEXT NOT NULL,
    arguments TEXT NOT NULL,
    seen      INTEGER,
    outcome   TEXT, repeatable INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, key)
) STRICT;
CREATE TABLE logs (
    id         INTEGER PRIMARY KEY,
    parent     INTEGER REFERENCES logs (id),
    parent_len INTEGER NOT NULL,
    -- The number of its ancestors.
    depth      INTEGER NOT NULL
) STRICT;
INSERT INTO "logs" VALUES(1,NULL,0,0);
INSERT INTO "logs" VALUES(2,NULL,0,0);
INSERT INTO "logs" VALUES(3,NULL,0,0);
INSERT INTO "logs" VALUES(4,NULL,0,0);
INSERT INTO "logs" VALUES(5,NULL,0,0);
CREATE TABLE memories (
    tenant TEXT NOT NULL,
    owner  TEXT NOT NULL,
    id     TEXT NOT NULL,
    at     INTEGER NOT NULL,
    text   TEXT NOT NULL,
    PRIMARY KEY (tenant, owner, id)
) STRICT;
CREATE TABLE once (
    tenant TEXT NOT NULL,
    key    TEXT NOT NULL,
    until  INTEGER NOT NULL, n INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;
CREATE TABLE questions (
    tenant   TEXT NOT NULL,
    thread   TEXT NOT NULL,
    run      TEXT NOT NULL,
    question TEXT NOT NULL,
    PRIMARY KEY (tenant, thread, question, run)
) STRICT, WITHOUT ROWID;
INSERT INTO "questions" VALUES('acme','thread','waits','q');
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
    replied_at  INTEGER, client_id TEXT NOT NULL DEFAULT '', message TEXT, waited INTEGER NOT NULL DEFAULT 0, log INTEGER REFERENCES logs (id), len INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0, takeovers INTEGER NOT NULL DEFAULT 0, cancel INTEGER NOT NULL DEFAULT 0, outcome TEXT,
    PRIMARY KEY (tenant, thread, run)
) STRICT;
INSERT INTO "runs" VALUES('acme','thread','left','running',1,1,1,1700000030000000000,NULL,X'4E73E33DB4423A3B68F4410131D088EDA09720278AE8F4C7ECA59C9DECB81DD4','{"state":{"version":2,"transcript":[],"step":1,"free":0,"calls":{"total":1,"by_tool":{}},"usage":{"input_tokens":3,"output_tokens":2},"unreported":{"input_tokens":3,"output_tokens":2},"effects":"possible","reason":"tool_calls","provider_reason":null,"stage":{"round":{"step":0,"message":{"id":"m","role":"assistant","parts":[{"kind":{"tool_call":{"id":"c","name":"refund","arguments":"{\"order\":7}","executor":"loop"}}}]},"calls":[{"call":{"id":"c","name":"refund","arguments":"{\"order\":7}","executor":"loop"},"stage":"ready","running":{"recorded":false}}]}}},"turns":[{"shared":0,"own":1}]}','[]',NULL,'left','m',0,1,1,76,0,0,NULL);
INSERT INTO "runs" VALUES('acme','thread','waits','suspended',2,3,2,1700000030000000000,1700000000000000000,X'BE54EB6FA92ABAA108ED1811438BB58C351C2E644B02BD9479B1F78043F03CA8','{"state":{"version":2,"transcript":[],"step":1,"free":0,"calls":{"total":1,"by_tool":{}},"usage":{"input_tokens":3,"output_tokens":2},"effects":"possible","reason":"tool_calls","provider_reason":null,"stage":{"round":{"step":0,"message":{"id":"m","role":"assistant","parts":[{"kind":{"tool_call":{"id":"c","name":"refund","arguments":"{\"order\":7}","executor":"loop"}}}]},"calls":[{"call":{"id":"c","name":"refund","arguments":"{\"order\":7}","executor":"loop"},"stage":"suspended","on":{"interrupts":[{"id":"q","reason":"tool_call","toolCallId":"c"}]},"by":"gate"}],"begun":true}}},"turns":[{"shared":0,"own":1}]}','[]',NULL,'waits','m',1,2,1,76,0,0,NULL);
INSERT INTO "runs" VALUES('acme','thread','over','ended',4,5,4,1700000030000000000,1700000002000000000,X'D33D9DDE9A1B5AD672B72EBBAB87DB3DB48487BF22243555B3225D02DC0AA856','{"state":{"version":2,"transcript":[],"step":1,"free":0,"calls":{"total":1,"by_tool":{}},"usage":{"input_tokens":3,"output_tokens":2},"unreported":{"input_tokens":3,"output_tokens":2},"effects":"possible","reason":"tool_calls","provider_reason":null,"stage":{"round":{"step":0,"message":{"id":"m","role":"assistant","parts":[{"kind":{"tool_call":{"id":"c","name":"refund","arguments":"{\"order\":7}","executor":"loop"}}}]},"calls":[{"call":{"id":"c","name":"refund","arguments":"{\"order\":7}","executor":"loop"},"stage":"ready","running":{"recorded":false}}]}}},"turns":[{"shared":0,"own":1}]}','[]',NULL,'over','m',0,3,1,76,0,0,'{"Ok":"completed"}');
CREATE TABLE slots (
    tenant TEXT NOT NULL,
    thread TEXT NOT NULL,
    slot   TEXT NOT NULL,
    place  TEXT NOT NULL,
    value  TEXT NOT NULL,
    PRIMARY KEY (tenant, thread, slot, place)
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
    shared          INTEGER, at INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, thread)
) STRICT;
INSERT INTO "threads" VALUES('acme','thread','thread',8,4,4,320,NULL,NULL,NULL,NULL,1700000000000000000);
INSERT INTO "threads" VALUES('acme','fork','thread',7,5,2,160,NULL,NULL,NULL,NULL,1700000000000000000);
CREATE TABLE turns (
    log   INTEGER NOT NULL,
    -- The position in the conversation.
    n     INTEGER NOT NULL,
    -- The checksum of this turn and of those before it.
    chain BLOB NOT NULL,
    turn  TEXT NOT NULL,
    PRIMARY KEY (log, n)
) STRICT;
INSERT INTO "turns" VALUES(1,0,X'94ADF802CFF18A776B3AB15BC9AE594901C8252715531FECBC543F1360177005','{"message":{"role":"user","parts":[{"kind":{"text":"hi"},"author":"user"}]}}');
INSERT INTO "turns" VALUES(2,0,X'94ADF802CFF18A776B3AB15BC9AE594901C8252715531FECBC543F1360177005','{"message":{"role":"user","parts":[{"kind":{"text":"hi"},"author":"user"}]}}');
INSERT INTO "turns" VALUES(3,0,X'94ADF802CFF18A776B3AB15BC9AE594901C8252715531FECBC543F1360177005','{"message":{"role":"user","parts":[{"kind":{"text":"hi"},"author":"user"}]}}');
INSERT INTO "turns" VALUES(4,2,X'B7435F40687947B3653253B8B03B73701C4CEC4FC4CABDD46747274074EF9795','{"message":{"role":"user","parts":[{"kind":{"text":"turn 0"},"author":"user"}]}}
{"message":{"role":"user","parts":[{"kind":{"text":"turn 1"},"author":"user"}]}}
{"message":{"role":"user","parts":[{"kind":{"text":"turn 2"},"author":"user"}]}}');
INSERT INTO "turns" VALUES(5,1,X'B51E92C3A03DF0FC9C3BCB15BF7B5FE5FEB7FBD57D4EBC09FF007199D2E5C30A','{"message":{"role":"user","parts":[{"kind":{"text":"turn 0"},"author":"user"}]}}
{"message":{"role":"user","parts":[{"kind":{"text":"turn 1"},"author":"user"}]}}');
INSERT INTO "turns" VALUES(4,3,X'220C74CAB7F951409074C93676EFA53380FB852B00776DC2ED6EA366701C363B','{"message":{"role":"user","parts":[{"kind":{"text":"turn 3"},"author":"user"}]}}');
CREATE INDEX runs_leases ON runs (lease_until, begun) WHERE status = 'running';
CREATE INDEX runs_suspended ON runs (since) WHERE status = 'suspended';
CREATE INDEX runs_ended ON runs (since) WHERE status = 'ended';
CREATE INDEX questions_of_run ON questions (tenant, thread, run);
CREATE INDEX effects_of_run ON effects (tenant, thread, run) WHERE run IS NOT NULL;
CREATE INDEX effects_of_none ON effects (seen) WHERE run IS NULL;
CREATE INDEX once_until ON once (until);
CREATE INDEX runs_live ON runs (tenant, thread, client_id) WHERE status = 'running';
CREATE INDEX runs_open ON runs (tenant, thread, begun) WHERE status <> 'ended';
CREATE INDEX runs_waiting ON runs (tenant, thread) WHERE waited = 1 AND status <> 'ended';
CREATE INDEX once_used ON once (n);
CREATE INDEX decisions_of_tool ON decisions (tenant, tool);
CREATE INDEX logs_of_parent ON logs (parent) WHERE parent IS NOT NULL;
CREATE INDEX threads_of_log ON threads (log);
CREATE INDEX memories_by_time ON memories (tenant, owner, at, id);
CREATE INDEX runs_of_log ON runs (log);
CREATE INDEX runs_of_client ON runs (tenant, thread, client_id, begun);
CREATE INDEX cache_until ON cache (until);
CREATE TRIGGER cache_added AFTER INSERT ON cache BEGIN
    UPDATE cache_total SET n = n + 1, bytes = bytes + new.bytes;
END;
CREATE TRIGGER cache_removed AFTER DELETE ON cache BEGIN
    UPDATE cache_total SET n = n - 1, bytes = bytes - old.bytes;
END;
CREATE INDEX deleted_runs_at ON deleted_runs (at);
CREATE INDEX threads_by_version ON threads (tenant, version);
COMMIT;
PRAGMA application_id=1128485970;
PRAGMA user_version=8;
