-- How often the run was taken over since its state was written, and whether its cancellation was requested.
ALTER TABLE runs ADD COLUMN takeovers INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN cancel INTEGER NOT NULL DEFAULT 0;
