-- A run's key is an id of its process; this is the id of the request that began it, which may repeat.
ALTER TABLE runs ADD COLUMN client_id TEXT NOT NULL DEFAULT '';
UPDATE runs SET client_id = run;
-- The message whose round is open, so that a run is found without its state.
ALTER TABLE runs ADD COLUMN message TEXT;
-- Whether it waits, or has waited: such runs are limited until they are over.
ALTER TABLE runs ADD COLUMN waited INTEGER NOT NULL DEFAULT 0;
UPDATE runs SET waited = 1 WHERE status = 'suspended';
CREATE INDEX runs_live ON runs (tenant, thread, client_id) WHERE status = 'running';
CREATE INDEX runs_open ON runs (tenant, thread, begun) WHERE status <> 'ended';
CREATE INDEX runs_waiting ON runs (tenant, thread) WHERE waited = 1 AND status <> 'ended';

-- Whether a success replaces a failure.
ALTER TABLE effects ADD COLUMN repeatable INTEGER NOT NULL DEFAULT 0;

-- In the order of use.
ALTER TABLE once ADD COLUMN n INTEGER NOT NULL DEFAULT 0;
CREATE INDEX once_used ON once (n);
