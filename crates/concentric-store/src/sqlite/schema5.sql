-- The turns of a run are in a log; `state` is the rest of its state.
ALTER TABLE runs ADD COLUMN log INTEGER REFERENCES logs (id);
-- The number of turns, and their bytes.
ALTER TABLE runs ADD COLUMN len INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
CREATE INDEX runs_of_log ON runs (log);
