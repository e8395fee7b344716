-- A dump of a file written by schema version 6: that of version 5, with an abandoned run that was taken over twice, and
-- a claimed run whose cancellation was requested.
PRAGMA foreign_keys=OFF;
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
    replied_at  INTEGER, client_id TEXT NOT NULL DEFAULT '', message TEXT, waited INTEGER NOT NULL DEFAULT 0, log INTEGER REFERENCES logs (id), len INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0, takeovers INTEGER NOT NULL DEFAULT 0, cancel INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, thread, run)
) STRICT;
INSERT INTO runs VALUES('acme','thread','left','running',2,2,2,1700000030000000000,NULL,X'b95624173299751e1cdffb18d69d924ba115c95a529e555cf271b5cdd7131619','{"state":{"version":2,"transcript":[],"step":1,"free":0,"calls":{"total":1,"by_tool":{}},"usage":{"input_tokens":3,"output_tokens":2},"unreported":{"input_tokens":3,"output_tokens":2},"effects":"possible","reason":"tool_calls","provider_reason":null,"stage":{"round":{"step":0,"message":{"id":"m","role":"assistant","parts":[{"kind":{"tool_call":{"id":"c","name":"refund","arguments":"{\"order\":7}","executor":"loop"}}}]},"calls":[{"call":{"id":"c","name":"refund","arguments":"{\"order\":7}","executor":"loop"},"stage":"ready","running":{"recorded":false}}]}}},"turns":[{"shared":0,"own":1}]}','[]',NULL,'left','m',0,2,1,78,2,0);
INSERT INTO runs VALUES('acme','thread','waits','suspended',3,4,3,1700000030000000000,1700000000000000000,X'be54eb6fa92abaa108ed1811438bb58c351c2e644b02bd9479b1f78043f03ca8','{"state":{"version":2,"transcript":[],"step":1,"free":0,"calls":{"total":1,"by_tool":{}},"usage":{"input_tokens":3,"output_tokens":2},"effects":"possible","reason":"tool_calls","provider_reason":null,"stage":{"round":{"step":0,"message":{"id":"m","role":"assistant","parts":[{"kind":{"tool_call":{"id":"c","name":"refund","arguments":"{\"order\":7}","executor":"loop"}}}]},"calls":[{"call":{"id":"c","name":"refund","arguments":"{\"order\":7}","executor":"loop"},"stage":"suspended","on":{"interrupts":[{"id":"q","reason":"tool_call","toolCallId":"c"}]},"by":"gate"}],"begun":true}}},"turns":[{"shared":0,"own":1}]}','[]',NULL,'waits','m',1,3,1,76,0,0);
INSERT INTO runs VALUES('acme','thread','claimed','running',5,7,7,1700000031000000000,1700000000000000000,X'34df65eb02118b00aa22d7247a89cca289e345bb3aa642b8935932d501be84e2','{"state":{"version":2,"transcript":[],"step":1,"free":0,"calls":{"total":1,"by_tool":{}},"usage":{"input_tokens":3,"output_tokens":2},"effects":"possible","reason":"tool_calls","provider_reason":null,"stage":{"round":{"step":0,"message":{"id":"m","role":"assistant","parts":[{"kind":{"tool_call":{"id":"c","name":"refund","arguments":"{\"order\":7}","executor":"loop"}}}]},"calls":[{"call":{"id":"c","name":"refund","arguments":"{\"order\":7}","executor":"loop"},"stage":"suspended","on":{"interrupts":[{"id":"q2","reason":"tool_call","toolCallId":"c"}]},"by":"gate"}],"begun":true}}},"turns":[{"shared":0,"own":1}]}','[{"interruptId":"q2","status":"resolved","payload":{"approved":true}}]',1700000001000000000,'claimed','m',1,4,1,81,0,1);
INSERT INTO runs VALUES('acme','thread','over','ended',8,9,8,1700000030000000000,1700000002000000000,X'b908517cb9bf8b978be4ecfb61de777661b5faa9c56f034031e613ef8c1eb689','{"state":{"version":2,"transcript":[],"step":1,"free":0,"calls":{"total":1,"by_tool":{}},"usage":{"input_tokens":3,"output_tokens":2},"unreported":{"input_tokens":3,"output_tokens":2},"effects":"possible","reason":"tool_calls","provider_reason":null,"stage":{"round":{"step":0,"message":{"id":"m","role":"assistant","parts":[{"kind":{"tool_call":{"id":"c","name":"refund","arguments":"{\"order\":7}","executor":"loop"}}}]},"calls":[{"call":{"id":"c","name":"refund","arguments":"{\"order\":7}","executor":"loop"},"stage":"ready","running":{"recorded":false}}]}}},"turns":[{"shared":0,"own":1}]}','[]',NULL,'over','m',0,5,1,78,0,0);
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
INSERT INTO effects VALUES('acme','effect','thread','left','refund','{}',NULL,'{"status":"done","content":{"text":"paid"}}',0);
CREATE TABLE once (
    tenant TEXT NOT NULL,
    key    TEXT NOT NULL,
    until  INTEGER NOT NULL, n INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;
INSERT INTO once VALUES('acme','token',1700000009000000000,1);
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
INSERT INTO decisions VALUES(1,'acme','refund/d/*/always','refund','always','','','{"id":"refund/d/*/always","tenant":"acme","tool":"refund","definition":"d","arguments":null,"span":"always","allow":true,"reason":null,"at":{"secs_since_epoch":1700000000,"nanos_since_epoch":0}}');
CREATE TABLE logs (
    id         INTEGER PRIMARY KEY,
    parent     INTEGER REFERENCES logs (id),
    parent_len INTEGER NOT NULL,
    -- The number of its ancestors.
    depth      INTEGER NOT NULL
) STRICT;
INSERT INTO logs VALUES(1,NULL,0,0);
INSERT INTO logs VALUES(2,1,1,1);
INSERT INTO logs VALUES(3,NULL,0,0);
INSERT INTO logs VALUES(4,NULL,0,0);
INSERT INTO logs VALUES(5,NULL,0,0);
INSERT INTO logs VALUES(6,NULL,0,0);
INSERT INTO logs VALUES(7,1,1,1);
CREATE TABLE turns (
    log   INTEGER NOT NULL,
    -- The position in the conversation.
    n     INTEGER NOT NULL,
    -- The checksum of this turn and of those before it.
    chain BLOB NOT NULL,
    turn  TEXT NOT NULL,
    PRIMARY KEY (log, n)
) STRICT;
INSERT INTO turns VALUES(1,0,X'b75d46a1c7ceab7e945cee9418fbebbe338fccdd689311f6ebde2606eb527a6c','{"message":{"role":"user","parts":[{"kind":{"text":"left"},"author":"user"}]}}');
INSERT INTO turns VALUES(3,0,X'94adf802cff18a776b3ab15bc9ae594901c8252715531fecbc543f1360177005','{"message":{"role":"user","parts":[{"kind":{"text":"hi"},"author":"user"}]}}');
INSERT INTO turns VALUES(4,0,X'cf60a6d2aa946b7bb4c26b881caf14947c5d6b4685726d85eabb7efb725944b0','{"message":{"role":"user","parts":[{"kind":{"text":"claimed"},"author":"user"}]}}');
INSERT INTO turns VALUES(5,0,X'0fee8b3652d3793bb1efcaad26375d2fd210827e54c559bb75ae3b1ea6dec046','{"message":{"role":"user","parts":[{"kind":{"text":"over"},"author":"user"}]}}');
INSERT INTO turns VALUES(6,0,X'6292831a7ed7afe87827c3ef73a54540d5005ea12fc515145b144330cd5ed4f3','{"message":{"role":"user","parts":[{"kind":{"text":"broken"},"author":"user"}]}}');
INSERT INTO turns VALUES(1,1,X'3b201d8ec98fe82cd608415ffbfa223e33e29ccf02e9a8b9be2855b64a3bfc7f','{"message":{"role":"user","parts":[{"kind":{"text":"again"},"author":"user"}]}}');
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
INSERT INTO threads VALUES('acme','thread','thread',11,1,2,157,NULL,'{"version":2,"transcript":[{"message":{"role":"user","parts":[{"kind":{"text":"hi"},"author":"user"}]}}],"step":1,"free":0,"calls":{"total":1,"by_tool":{}},"usage":{"input_tokens":3,"output_tokens":2},"effects":"possible","reason":"tool_calls","provider_reason":null,"stage":{"round":{"step":0,"message":{"id":"m","role":"assistant","parts":[{"kind":{"tool_call":{"id":"c","name":"refund","arguments":"{\"order\":7}","executor":"loop"}}}]},"calls":[{"call":{"id":"c","name":"refund","arguments":"{\"order\":7}","executor":"loop"},"stage":"suspended","on":{"interrupts":[{"id":"q3","reason":"tool_call","toolCallId":"c"}]},"by":"gate"}],"begun":true}}}','[]',0);
INSERT INTO threads VALUES('acme','fork','thread',12,7,1,78,NULL,NULL,NULL,NULL);
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
CREATE INDEX runs_of_log ON runs (log);
COMMIT;
PRAGMA application_id = 1128485970;
PRAGMA user_version = 6;
