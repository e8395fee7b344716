//! The claim of a run, which is set once.

use super::source::ClaimCell;
use concentric_core::{
    RunId, ThreadId,
    store::{RunClaim, RunKey, Tenant},
};
use loom::thread;

pub(crate) fn a_run_has_one_claim() {
    let key = RunKey::new(
        Tenant::default(),
        ThreadId::new("thread"),
        RunId::new("run"),
    );
    let cell = ClaimCell::new(key.clone());
    let claims = [1, 2].map(|fence| {
        let (cell, claim) = (cell.clone(), RunClaim::new(key.clone(), fence));
        thread::spawn(move || {
            cell.set(claim);
            cell.get().map(|claim| claim.fence)
        })
    });
    let early = cell.get().map(|claim| claim.fence);
    let [first, second] = claims.map(|claim| claim.join().unwrap());
    assert!(first.is_some());
    assert_eq!(first, second);
    assert!(early.is_none() || early == first);
}
