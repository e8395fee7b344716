//! The measured figures that the simulations of sizes begin with, each file with its source.

use serde::Deserialize;

#[derive(Debug, Deserialize)]
pub(super) struct Measured {
    pub(super) postgres: Postgres,
    pub(super) cluster: Cluster,
    pub(super) process: Process,
}

/// One PostgreSQL server.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Postgres {
    pub(super) source: String,
    pub(super) connections: usize,
    pub(super) checkpoints_per_second: f64,
    pub(super) find_p99_ms: f64,
    pub(super) claim_p99_ms: f64,
    pub(super) sweep_p50_ms: f64,
    pub(super) sweep_p99_ms: f64,
    pub(super) renewed_rows_per_second: f64,
    pub(super) process_us_per_checkpoint: f64,
    pub(super) waiting_bytes: f64,
}

/// Four processes under load.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cluster {
    pub(super) source: String,
    pub(super) transactions_per_step: f64,
    pub(super) resumed_p50_s: f64,
    pub(super) resumed_p99_s: f64,
    pub(super) lease_s: u64,
    pub(super) sweep_s: u64,
}

/// One process.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Process {
    pub(super) source: String,
    pub(super) live_run_bytes: f64,
    pub(super) answer_us: f64,
}

impl Measured {
    pub(super) fn read() -> Result<Self, serde_json::Error> {
        Ok(Self {
            postgres: serde_json::from_str(include_str!("../../measured/postgres.json"))?,
            cluster: serde_json::from_str(include_str!("../../measured/cluster.json"))?,
            process: serde_json::from_str(include_str!("../../measured/process.json"))?,
        })
    }
}
