-- The client's id of the request that began the run, which may repeat; the key is made by the process.
ALTER TABLE runs ADD COLUMN client_id TEXT NOT NULL DEFAULT '';
UPDATE runs SET client_id = run;
-- The message of the open round, to find a run without reading its state.
ALTER TABLE runs ADD COLUMN message TEXT;
-- Whether the run was ever suspended: such runs count towards the limits until they end.
ALTER TABLE runs ADD COLUMN waited INTEGER NOT NULL DEFAULT 0;
UPDATE runs SET waited = 1 WHERE status = 'suspended';
CREATE INDEX runs_live ON runs (tenant, thread, client_id) WHERE status = 'running';
CREATE INDEX runs_open ON runs (tenant, thread, begun) WHERE status <> 'ended';
CREATE INDEX runs_waiting ON runs (tenant, thread) WHERE waited = 1 AND status <> 'ended';

-- Whether a later success replaces a failure.
ALTER TABLE effects ADD COLUMN repeatable INTEGER NOT NULL DEFAULT 0;

-- The position in the order of use.
ALTER TABLE once ADD COLUMN n INTEGER NOT NULL DEFAULT 0;
CREATE INDEX once_used ON once (n);
