-- A dump of a file written by schema version 4: an abandoned run, a waiting run, a claimed run with an accepted
-- reply, an ended run, a conversation with a suspended turn, a fork of it, and a memory.
BEGIN TRANSACTION;
CREATE TABLE counter (
    id INTEGER PRIMARY KEY CHECK (id = 0),
    n  INTEGER NOT NULL
) STRICT;
INSERT INTO counter VALUES(0,12);
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
    replied_at  INTEGER, client_id TEXT NOT NULL DEFAULT '', message TEXT, waited INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, thread, run)
) STRICT;
INSERT INTO runs VALUES('acme','thread','left','running',1,1,1,1700000030000000000,NULL,X'171567a7370c8d6e15decaf7ffe02b8e0c585ae3f786b91146fb692837b7f686','{"version":2,"transcript":[{"message":{"role":"user","parts":[{"kind":{"text":"left"},"author":"user"}]}}],"step":1,"free":0,"calls":{"total":1,"by_tool":{}},"usage":{"input_tokens":3,"output_tokens":2},"unreported":{"input_tokens":3,"output_tokens":2},"effects":"possible","reason":"tool_calls","provider_reason":null,"stage":{"round":{"step":0,"message":{"id":"m","role":"assistant","parts":[{"kind":{"tool_call":{"id":"c","name":"refund","arguments":"{\"order\":7}","executor":"loop"}}}]},"calls":[{"call":{"id":"c","name":"refund","arguments":"{\"order\":7}","executor":"loop"},"stage":"ready","running":{"recorded":false}}]}}}','[]',NULL,'left','m',0);
INSERT INTO runs VALUES('acme','thread','waits','suspended',2,3,2,1700000030000000000,1700000000000000000,X'a8d4648e1d39bd1b302237cf168d54e441ea697ab74715e7c1c785b2075b8c31','{"version":2,"transcript":[{"message":{"role":"user","parts":[{"kind":{"text":"hi"},"author":"user"}]}}],"step":1,"free":0,"calls":{"total":1,"by_tool":{}},"usage":{"input_tokens":3,"output_tokens":2},"effects":"possible","reason":"tool_calls","provider_reason":null,"stage":{"round":{"step":0,"message":{"id":"m","role":"assistant","parts":[{"kind":{"tool_call":{"id":"c","name":"refund","arguments":"{\"order\":7}","executor":"loop"}}}]},"calls":[{"call":{"id":"c","name":"refund","arguments":"{\"order\":7}","executor":"loop"},"stage":"suspended","on":{"interrupts":[{"id":"q","reason":"tool_call","toolCallId":"c"}]},"by":"gate"}],"begun":true}}}','[]',NULL,'waits','m',1);
INSERT INTO runs VALUES('acme','thread','claimed','running',4,6,6,1700000031000000000,1700000000000000000,X'6798d431aa57ca6b8be2b6fea123be85e514df8edbf619ad386cb471b9728d0d','{"version":2,"transcript":[{"message":{"role":"user","parts":[{"kind":{"text":"claimed"},"author":"user"}]}}],"step":1,"free":0,"calls":{"total":1,"by_tool":{}},"usage":{"input_tokens":3,"output_tokens":2},"effects":"possible","reason":"tool_calls","provider_reason":null,"stage":{"round":{"step":0,"message":{"id":"m","role":"assistant","parts":[{"kind":{"tool_call":{"id":"c","name":"refund","arguments":"{\"order\":7}","executor":"loop"}}}]},"calls":[{"call":{"id":"c","name":"refund","arguments":"{\"order\":7}","executor":"loop"},"stage":"suspended","on":{"interrupts":[{"id":"q2","reason":"tool_call","toolCallId":"c"}]},"by":"gate"}],"begun":true}}}','[{"interruptId":"q2","status":"resolved","payload":{"approved":true}}]',1700000001000000000,'claimed','m',1);
INSERT INTO runs VALUES('acme','thread','over','ended',7,8,7,1700000030000000000,1700000002000000000,X'4ba2914fe36ab5f53c2714f1ce91161aa52bd11ba2252ac084f191d597c00126','{"version":2,"transcript":[{"message":{"role":"user","parts":[{"kind":{"text":"over"},"author":"user"}]}}],"step":1,"free":0,"calls":{"total":1,"by_tool":{}},"usage":{"input_tokens":3,"output_tokens":2},"unreported":{"input_tokens":3,"output_tokens":2},"effects":"possible","reason":"tool_calls","provider_reason":null,"stage":{"round":{"step":0,"message":{"id":"m","role":"assistant","parts":[{"kind":{"tool_call":{"id":"c","name":"refund","arguments":"{\"order\":7}","executor":"loop"}}}]},"calls":[{"call":{"id":"c","name":"refund","arguments":"{\"order\":7}","executor":"loop"},"stage":"ready","running":{"recorded":false}}]}}}','[]',NULL,'over','m',0);
INSERT INTO runs VALUES('acme','thread','broken','running',9,9,9,1700000040000000000,NULL,X'8a0b058d7e73b92ffbb89dd272913053bdd49b28ad0933da1bf0b51345a5159d','{"version":2,"transcript":[{"message":{"role":"user","parts":[{"kind":{"text":"broken"},"author":"user"}]}}],"step":1,"free":0,"calls":{"total":1,"by_tool":{}},"usage":{"input_tokens":3,"output_tokens":2},"unreported":{"input_tokens":3,"output_tokens":2},"effects":"possible","reason":"tool_calls","provider_reason":null,"stage":{"round":{"step":0,"message":{"id":"m","role":"assistant","parts":[{"kind":{"tool_call":{"id":"c","name":"refund","arguments":"{\"order\":7}","executor":"loop"}}}]},"calls":[{"call":{"id":"c","name":"refund","arguments":"{\"order\":7}","executor":"loop"},"stage":"ready","running":{"recorded":false}}]}}}','[]',NULL,'broken','m',0);
CREATE TABLE questions (
    tenant   TEXT NOT NULL,
    thread   TEXT NOT NULL,
    run      TEXT NOT NULL,
    question TEXT NOT NULL,
    PRIMARY KEY (tenant, thread, question, run)
) STRICT, WITHOUT ROWID;
INSERT INTO questions VALUES('acme','thread','claimed','q2');
INSERT INTO questions VALUES('acme','thread','waits','q');
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
CREATE TABLE once (
    tenant TEXT NOT NULL,
    key    TEXT NOT NULL,
    until  INTEGER NOT NULL, n INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS "decisions" (
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
CREATE TABLE logs (
    id         INTEGER PRIMARY KEY,
    parent     INTEGER REFERENCES logs (id),
    parent_len INTEGER NOT NULL,
    -- The number of its ancestors.
    depth      INTEGER NOT NULL
) STRICT;
INSERT INTO logs VALUES(1,NULL,0,0);
INSERT INTO logs VALUES(2,1,1,1);
CREATE TABLE turns (
    log   INTEGER NOT NULL,
    -- The position in the conversation.
    n     INTEGER NOT NULL,
    -- The checksum of this turn and of those before it.
    chain BLOB NOT NULL,
    turn  TEXT NOT NULL,
    PRIMARY KEY (log, n)
) STRICT;
INSERT INTO turns VALUES(1,0,X'94adf802cff18a776b3ab15bc9ae594901c8252715531fecbc543f1360177005','{"message":{"role":"user","parts":[{"kind":{"text":"hi"},"author":"user"}]}}');
INSERT INTO turns VALUES(1,1,X'cc150821c8758a4f33224c74078bc9557c2ef5ec1abc1e180d1bef693e06fec9','{"message":{"role":"user","parts":[{"kind":{"text":"again"},"author":"user"}]}}');
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
INSERT INTO threads VALUES('acme','thread','thread',12,1,2,155,NULL,'{"version":2,"transcript":[],"step":1,"free":0,"calls":{"total":1,"by_tool":{}},"usage":{"input_tokens":3,"output_tokens":2},"effects":"possible","reason":"tool_calls","provider_reason":null,"stage":{"round":{"step":0,"message":{"id":"m","role":"assistant","parts":[{"kind":{"tool_call":{"id":"c","name":"refund","arguments":"{\"order\":7}","executor":"loop"}}}]},"calls":[{"call":{"id":"c","name":"refund","arguments":"{\"order\":7}","executor":"loop"},"stage":"suspended","on":{"interrupts":[{"id":"q3","reason":"tool_call","toolCallId":"c"}]},"by":"gate"}],"begun":true}}}','[]',1);
INSERT INTO threads VALUES('acme','fork','thread',11,2,1,76,NULL,NULL,NULL,NULL);
CREATE TABLE slots (
    tenant TEXT NOT NULL,
    thread TEXT NOT NULL,
    slot   TEXT NOT NULL,
    place  TEXT NOT NULL,
    value  TEXT NOT NULL,
    PRIMARY KEY (tenant, thread, slot, place)
) STRICT;
INSERT INTO slots VALUES('acme','thread','example/slot','"whole"','{"slot":"example/slot","version":1,"value":{"n":1}}');
INSERT INTO slots VALUES('acme','fork','example/slot','"whole"','{"slot":"example/slot","version":1,"value":{"n":1}}');
CREATE TABLE memories (
    tenant TEXT NOT NULL,
    owner  TEXT NOT NULL,
    id     TEXT NOT NULL,
    at     INTEGER NOT NULL,
    text   TEXT NOT NULL,
    PRIMARY KEY (tenant, owner, id)
) STRICT;
INSERT INTO memories VALUES('acme','user','m1',1700000000000000000,'The user likes tea.');
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
COMMIT;
PRAGMA application_id = 1128485970;
PRAGMA user_version = 4;
