-- The states of quotas, permits and budgets.
CREATE TABLE limits (
    kind  TEXT NOT NULL CHECK (kind IN ('quota', 'permits', 'budgets')),
    -- Of a bucket; of the tenant of budgets.
    name  TEXT NOT NULL,
    -- When it can be forgotten; null if never.
    until INTEGER,
    -- JSON.
    state BLOB NOT NULL,
    PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX limits_until ON limits (until);
