//! Contexts of calls that several runs wait for.

use concentric_core::{CancelReason, Context, ErrorKind, MessageId, ResponseHead, Usage};
use futures_util::FutureExt;
use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn a_shared_call_ends_neither_with_its_run_nor_at_its_deadline() {
    let outer = Context::new();
    let late = outer.now();
    let run = outer.child().deadline(late).build();
    let call = run.at_step(1, MessageId::new("m1"));
    let shared = call.shared();
    assert_eq!((shared.deadline(), shared.remaining()), (None, None));
    assert_eq!(run.deadline(), Some(late));
    outer.cancel(CancelReason::User);
    run.cancel(CancelReason::Shutdown);
    assert!(call.is_cancelled() && !shared.is_cancelled());
    assert_eq!(shared.cancel_reason(), None);
    assert!(shared.cancelled().now_or_never().is_none());
    shared.sleep(Duration::from_secs(1)).await.unwrap();

    // Its nested runs and its further positions belong to the call as well.
    let nested = shared.child().build();
    let round = shared.at_round(1, None);
    assert!(!nested.is_cancelled() && !round.is_cancelled() && nested.deadline().is_none());
    shared.cancel(CancelReason::Disconnected);
    assert!(nested.is_cancelled() && round.is_cancelled() && shared.is_cancelled());
    assert_eq!(nested.cancel_reason(), Some(CancelReason::Disconnected));
    assert_eq!(run.cancel_reason(), Some(CancelReason::Shutdown));
    let error = shared.sleep(Duration::from_secs(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
}

#[test]
fn a_shared_call_records_in_its_run() {
    let run = Context::new();
    let call = run.at_step(3, MessageId::new("m1"));
    let shared = call.shared();
    shared.record_usage(&ResponseHead::default(), Usage::new(7, 1));
    shared.count_effect();
    assert_eq!(
        (run.run_usage().total(), run.effect_count()),
        (Usage::new(7, 1), 1)
    );
    assert_eq!((shared.run_id(), shared.step()), (run.run_id(), 3));
    assert_eq!(shared.message_id(), call.message_id());
    // A call that is shared within a shared one is of its own.
    let again = shared.shared();
    shared.cancel(CancelReason::User);
    assert!(!again.is_cancelled());
}
