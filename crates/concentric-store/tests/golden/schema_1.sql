-- A dump of a file written by schema version 1: a waiting run, an ended run and an abandoned run,
-- with an effect, a used key and a decision.
BEGIN TRANSACTION;
CREATE TABLE counter (
    id INTEGER PRIMARY KEY CHECK (id = 0),
    n  INTEGER NOT NULL
) STRICT;
INSERT INTO "counter" VALUES(0,5);
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
INSERT INTO "decisions" VALUES(1,'acme','refund/d1/*/always','refund','always','','','{"id":"refund/d1/*/always","tenant":"acme","tool":"refund","definition":"d1","arguments":null,"span":"always","allow":true,"reason":null,"at":{"secs_since_epoch":1700000000,"nanos_since_epoch":0}}');
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
INSERT INTO "effects" VALUES('acme','effect','thread','over','refund','{}',NULL,'{"status":"done","content":{"text":"paid"}}');
CREATE TABLE once (
    tenant TEXT NOT NULL,
    key    TEXT NOT NULL,
    until  INTEGER NOT NULL,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;
INSERT INTO "once" VALUES('acme','token',1700000100000000000);
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
    replied_at  INTEGER,
    PRIMARY KEY (tenant, thread, run)
) STRICT;
INSERT INTO "runs" VALUES('acme','thread','waits','suspended',1,2,1,1700000030000000000,1700000000000000000,X'B4433A81468B217EAE8432409D7CD8133EAC9FC0140CD0BD07DD25B234EB4A1F','{"version":1,"transcript":[{"message":{"role":"user","parts":[{"kind":{"text":"hi"},"author":"user"}]}}],"step":1,"free":0,"calls":{"total":1,"by_tool":{}},"usage":{"input_tokens":3,"output_tokens":2},"effects":"possible","reason":"tool_calls","provider_reason":null,"stage":{"round":{"step":0,"message":{"id":"m","role":"assistant","parts":[{"kind":{"tool_call":{"id":"c","name":"refund","arguments":"{\"order\":7}","executor":"loop"}}}]},"slots":[{"call":{"id":"c","name":"refund","arguments":"{\"order\":7}","executor":"loop"},"refusal":null,"read_only":false,"state":{"waiting":{"interrupts":[{"id":"q","reason":"tool_call","toolCallId":"c"}],"together":false}}}],"begun":true}}}','[]',NULL);
INSERT INTO "runs" VALUES('acme','thread','over','ended',3,4,3,1700000030000000000,1700000001000000000,X'28CA74507AE66D6FD9AFEED30CD3249ACDF536BD6FA5D29022B5078C3E522DD1','{"version":1,"transcript":[{"message":{"role":"user","parts":[{"kind":{"text":"over"},"author":"user"}]}}],"step":1,"free":0,"calls":{"total":1,"by_tool":{}},"usage":{"input_tokens":3,"output_tokens":2},"effects":"possible","reason":"tool_calls","provider_reason":null,"stage":{"round":{"step":0,"message":{"id":"m","role":"assistant","parts":[{"kind":{"tool_call":{"id":"c","name":"refund","arguments":"{\"order\":7}","executor":"loop"}}}]},"slots":[{"call":{"id":"c","name":"refund","arguments":"{\"order\":7}","executor":"loop"},"refusal":null,"read_only":false,"state":"running"}]}}}','[]',NULL);
INSERT INTO "runs" VALUES('acme','thread','left','running',5,5,5,1700000030000000000,NULL,X'CD13C190584E622C178DCC8C48000875D267B249C8318D72A1315F1053E93505','{"version":1,"transcript":[{"message":{"role":"user","parts":[{"kind":{"text":"left"},"author":"user"}]}}],"step":1,"free":0,"calls":{"total":1,"by_tool":{}},"usage":{"input_tokens":3,"output_tokens":2},"effects":"possible","reason":"tool_calls","provider_reason":null,"stage":{"round":{"step":0,"message":{"id":"m","role":"assistant","parts":[{"kind":{"tool_call":{"id":"c","name":"refund","arguments":"{\"order\":7}","executor":"loop"}}}]},"slots":[{"call":{"id":"c","name":"refund","arguments":"{\"order\":7}","executor":"loop"},"refusal":null,"read_only":false,"state":"running"}]}}}','[]',NULL);
CREATE INDEX runs_leases ON runs (lease_until, begun) WHERE status = 'running';
CREATE INDEX runs_suspended ON runs (since) WHERE status = 'suspended';
CREATE INDEX runs_ended ON runs (since) WHERE status = 'ended';
CREATE INDEX questions_of_run ON questions (tenant, thread, run);
CREATE INDEX effects_of_run ON effects (tenant, thread, run) WHERE run IS NOT NULL;
CREATE INDEX effects_of_none ON effects (seen) WHERE run IS NULL;
CREATE INDEX once_until ON once (until);
CREATE INDEX decisions_of_tool ON decisions (tenant, tool);
COMMIT;
PRAGMA application_id = 1128485970;
PRAGMA user_version = 1;
