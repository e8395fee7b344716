use super::{BeforeCall, Flow, ToolHooks};
use concentric_core::{
    BoxError, Error, ToolCall, ToolOutcome,
    method::{Panic, catch, caught, is_set},
};
use std::{
    future::Future,
    sync::{Arc, Mutex},
    task::{self, Poll, ready},
    time::Duration,
};
use tokio_util::sync::ReusableBoxFuture;

/// Hooks shared by all services of a layer.
pub(super) struct Shared<H> {
    pub(super) hooks: H,
    /// The methods that are implemented.
    pub(super) has: Has,
    before: Idle<Before>,
    after: Idle<After>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Has {
    pub(super) before: bool,
    pub(super) after: bool,
    pub(super) on_error: bool,
}

/// The call after `before`, and the result of the method.
pub(super) type Before = (BeforeCall, Result<Result<Flow, BoxError>, Panic>);
/// The result of `after` or `on_error`.
pub(super) type After = Result<ToolOutcome, Error>;

impl<H> Shared<H>
where
    H: ToolHooks,
{
    pub(super) fn new(hooks: H) -> Self {
        Self {
            hooks,
            has: Has {
                before: returns(H::before),
                after: returns_after(H::after),
                on_error: returns_after(H::on_error),
            },
            before: Idle::default(),
            after: Idle::default(),
        }
    }

    pub(super) fn start_before(self: &Arc<Self>, call: ToolCall) -> Running<Before> {
        let shared = Arc::clone(self);
        self.before.start(async move {
            let mut call = BeforeCall::new(call);
            let view = &mut call;
            let flow = caught(|| shared.hooks.before(view)).await;
            (call, flow)
        })
    }

    pub(super) fn poll_before(
        &self,
        running: &mut Running<Before>,
        cx: &mut task::Context<'_>,
    ) -> Poll<Before> {
        running.poll(&self.before, cx)
    }

    pub(super) fn start_after(
        self: &Arc<Self>,
        call: ToolCall,
        result: After,
        took: Duration,
    ) -> Running<After> {
        let shared = Arc::clone(self);
        self.after.start(async move {
            let hooks = &shared.hooks;
            let (method, said) = match &result {
                Ok(outcome) => ("after", caught(|| hooks.after(&call, outcome, took)).await),
                Err(error) => (
                    "on_error",
                    caught(|| hooks.on_error(&call, error, took)).await,
                ),
            };
            let error = match said {
                Ok(Ok(None)) => return result,
                Ok(Ok(Some(outcome))) => return Ok(outcome),
                Ok(Err(error)) => Error::from(error),
                Err(panic) => panic.error(),
            };
            shared.failed(method, &error, &call);
            result
        })
    }

    /// Calls [`failed`](ToolHooks::failed), and ignores its panic.
    pub(super) fn failed(&self, method: &'static str, error: &Error, call: &ToolCall) {
        if let Err(panic) = catch(|| self.hooks.failed(method, error, call)) {
            let tool = call.name();
            tracing::error!(%tool, method, panic = panic.text(), "the `failed` method of a hook panicked");
        }
    }

    pub(super) fn poll_after(
        &self,
        running: &mut Running<After>,
        cx: &mut task::Context<'_>,
    ) -> Poll<After> {
        running.poll(&self.after, cx)
    }
}

/// Whether `before` is implemented.
fn returns<'a, H: 'a, F>(_: fn(&'a H, &'a mut BeforeCall) -> F) -> bool {
    is_set::<F>()
}

/// Whether `after` or `on_error` is implemented.
fn returns_after<'a, H: 'a, O: 'a, F>(_: fn(&'a H, &'a ToolCall, &'a O, Duration) -> F) -> bool {
    is_set::<F>()
}

/// The box of a method's last future, for reuse.
struct Idle<T>(Mutex<Option<ReusableBoxFuture<'static, T>>>);

impl<T> Idle<T> {
    fn start(&self, future: impl Future<Output = T> + Send + 'static) -> Running<T> {
        let idle = self.0.try_lock().ok().and_then(|mut idle| idle.take());
        Running(Some(match idle {
            Some(mut idle) => {
                idle.set(future);
                idle
            }
            None => ReusableBoxFuture::new(future),
        }))
    }
}

impl<T> Default for Idle<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

/// A running method.
pub(super) struct Running<T>(Option<ReusableBoxFuture<'static, T>>);

impl<T> Running<T> {
    fn poll(&mut self, idle: &Idle<T>, cx: &mut task::Context<'_>) -> Poll<T> {
        let Some(future) = &mut self.0 else {
            return Poll::Pending;
        };
        let output = ready!(future.poll(cx));
        // Completed, so the box is empty.
        if let Ok(mut idle) = idle.0.try_lock() {
            *idle = self.0.take();
        }
        Poll::Ready(output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use concentric_core::{Arguments, CallId, Context, ToolCallPart};

    struct Nothing;

    impl ToolHooks for Nothing {
        fn id(&self) -> &str {
            "nothing"
        }
    }

    struct AfterOnly;

    impl ToolHooks for AfterOnly {
        fn id(&self) -> &str {
            "after_only"
        }

        async fn after(
            &self,
            _: &ToolCall,
            _: &ToolOutcome,
            _: Duration,
        ) -> Result<Option<ToolOutcome>, BoxError> {
            Ok(None)
        }
    }

    fn has<H: ToolHooks>(hooks: H) -> [bool; 3] {
        let Has {
            before,
            after,
            on_error,
        } = Shared::new(hooks).has;
        [before, after, on_error]
    }

    #[test]
    fn a_method_that_a_hook_does_not_have_is_known() {
        assert_eq!(has(Nothing), [false, false, false]);
        assert_eq!(has(Arc::new(Nothing)), [false, false, false]);
        assert_eq!(has(AfterOnly), [false, true, false]);
        assert_eq!(has(Arc::new(Arc::new(AfterOnly))), [false, true, false]);
    }

    #[tokio::test]
    async fn a_method_that_a_hook_does_not_have_can_be_called() {
        let part = ToolCallPart::new(CallId::new("c"), "t", Arguments::new("{}"));
        let call = ToolCall::new(part, Context::new());
        let outcome = ToolOutcome::done("");
        let after = Nothing.after(&call, &outcome, Duration::ZERO).await;
        assert_eq!(after.unwrap(), None);
        let before = Nothing.before(&mut BeforeCall::new(call)).await;
        assert_eq!(before.unwrap(), Flow::Continue);
    }
}
