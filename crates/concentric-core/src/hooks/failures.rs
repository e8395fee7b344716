use crate::context::Context;
use concentric_proto::{Error, Str};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Collects the failures of hooks that do not change the outcome of a run.
///
/// Such failures are always logged. To collect those of a run, insert a `HookFailures` into the
/// [extensions](Context::extensions_mut) of its context. Clones share the same collection.
///
/// ```
/// use concentric_core::{
///     AgentLayer, BoxError, BoxModel, ChatRequest, Error, NoTools,
///     hooks::{self, End, HookFailures, Hooks, Summary},
/// };
/// use std::sync::Arc;
/// use tower::{ServiceBuilder, ServiceExt};
///
/// struct Broken;
///
/// impl Hooks for Broken {
///     fn id(&self) -> &str {
///         "broken"
///     }
///
///     async fn after_run(&self, _: End<'_>, _: &Summary) -> Result<(), BoxError> {
///         Err("the disk is full".into())
///     }
/// }
///
/// async fn answer(model: BoxModel) -> Result<String, Error> {
///     let agent = ServiceBuilder::new()
///         .layer(hooks::run(Arc::new(Broken)))
///         .layer(AgentLayer::new(NoTools))
///         .service(model);
///
///     let failures = HookFailures::new();
///     let mut request = ChatRequest::user("hi");
///     request.context.extensions_mut().insert(failures.clone());
///     let text = agent.oneshot(request).await?.text().await?;
///     for failed in failures.take() {
///         println!("{}.{}: {}", failed.hook, failed.method, failed.error);
///     }
///     Ok(text)
/// }
/// # let _ = answer;
/// ```
#[derive(Clone, Debug, Default)]
pub struct HookFailures(Arc<Mutex<Vec<HookFailure>>>);

/// A failure of a hook.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HookFailure {
    /// The hook's [id](super::Hooks::id).
    pub hook: Str,
    /// The name of the method that failed.
    pub method: &'static str,
    /// The error; panics and timeouts are also reported as errors.
    pub error: Error,
}

impl HookFailures {
    /// Creates an empty collection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Removes and returns the failures, in the order in which they occurred.
    pub fn take(&self) -> Vec<HookFailure> {
        std::mem::take(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<HookFailure>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Logs the failure of a hook, and adds it to the run's [`HookFailures`].
pub(super) fn report(hook: &str, method: &'static str, error: Error, context: &Context) {
    let run = context.run_id();
    // Not within the current span, into which its exporter would copy the text.
    tracing::warn!(parent: None, %run, hook, method, error = %format_args!("{error:#}"), "a hook failed");
    if let Some(failures) = context.extensions().get::<HookFailures>() {
        let hook = Str::from(hook);
        failures.lock().push(HookFailure {
            hook,
            method,
            error,
        });
    }
}
