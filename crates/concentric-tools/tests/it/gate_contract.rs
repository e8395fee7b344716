//! The contract of gates.

use concentric_core::{ToolSpec, ToolSpecs};
use concentric_test::{MemoryStore, check_gate};
use concentric_tools::{Approval, ToolPins, Verdict, gate::gate_fn};
use serde_json::json;
use std::sync::Arc;

#[tokio::test(start_paused = true)]
async fn gates_keep_their_contract() {
    let refund = || ToolSpec::new("refund", "Pays a refund.", json!({"type": "object"}));
    let approvals = [
        Approval::for_tools("refund"),
        Approval::for_tools("refund").remember(MemoryStore::new()),
        Approval::new().allow("refund").deny("refund", "no"),
    ];
    for approval in approvals {
        check_gate(approval, refund(), json!({"amount": 3})).await;
    }
    let reviewed: ToolSpecs = [Arc::new(refund())].into_iter().collect();
    let changed = ToolSpec::new("refund", "Pays any refund.", json!({"type": "object"}));
    check_gate(ToolPins::of(&reviewed), changed, json!({"amount": 3})).await;
    let closed = gate_fn("closed", |_| Verdict::halt("closed"));
    check_gate(closed, refund(), json!({"amount": 3})).await;
}
