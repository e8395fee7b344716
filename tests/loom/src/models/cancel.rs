//! The cancellation of a run: its reason is set before the cancellation is visible, and is final.

use super::source::{Cancel, Context, Run};
use crate::{
    block_on,
    outbox::source::Outbox,
    stand_in::{Token, std::sync::OnceLock},
};
use concentric_core::CancelReason;
use loom::thread;
use std::sync::Arc;

pub(crate) fn a_cancelled_run_has_its_reason() {
    let context = Arc::new(Context {
        run: Run {
            cancel: Cancel {
                reason: OnceLock::new(),
                token: Token::default(),
            },
            outbox: Outbox::default(),
        },
    });
    let threads = [CancelReason::User, CancelReason::Shutdown].map(|reason| {
        let context = Arc::clone(&context);
        thread::spawn(move || context.cancel(reason))
    });
    block_on(context.run.cancel.token.cancelled());
    let reason = context.cancel_reason();
    assert!(
        [CancelReason::User, CancelReason::Shutdown]
            .map(Some)
            .contains(&reason)
    );
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(context.cancel_reason(), reason);
    assert!(context.run.outbox.is_filled());
}
