//! Ends a layer's wait when the run is cancelled or its deadline passes.

use concentric_core::{Context as RunContext, Error, ErrorKind, context::Sleep};
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

/// Resolves when a wait must end. Created when the wait begins.
pub(crate) struct Stop {
    // Boxed because the type of the future cannot be named.
    cancelled: Pin<Box<dyn Future<Output = ()> + Send>>,
    late: Option<Sleep>,
}

impl Stop {
    pub(crate) fn new(context: &RunContext) -> Self {
        let late = context
            .remaining()
            .map(|left| context.environment().clock().sleep(left));
        let context = context.clone();
        Self {
            cancelled: Box::pin(async move { context.cancelled().await }),
            late,
        }
    }

    /// Resolves when the run must stop waiting for `what`, with the error to return.
    pub(crate) fn poll(&mut self, what: &str, cx: &mut Context<'_>) -> Poll<Error> {
        if self.cancelled.as_mut().poll(cx).is_ready() {
            let why = format!("the run was cancelled while it waited for {what}");
            return Poll::Ready(Error::new(ErrorKind::Cancelled, why));
        }
        match &mut self.late {
            Some(late) => late.as_mut().poll(cx).map(|()| {
                let why = format!("the run's deadline passed while it waited for {what}");
                Error::new(ErrorKind::Timeout, why)
            }),
            None => Poll::Pending,
        }
    }
}
