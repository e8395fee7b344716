use super::layer::Values;
use concentric_core::{ChatOptions, ChatRequest};
use std::{
    sync::Arc,
    task::{Context, Poll},
};
use tower_service::Service;

/// Middleware that sets defaults of requests.
#[derive(Clone, Debug)]
pub struct Defaults<S> {
    inner: S,
    values: Arc<Values>,
}

impl<S> Defaults<S> {
    pub(super) const fn new(inner: S, values: Arc<Values>) -> Self {
        Self { inner, values }
    }

    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S> Service<ChatRequest> for Defaults<S>
where
    S: Service<ChatRequest>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: ChatRequest) -> Self::Future {
        for segment in self.values.system.iter().rev() {
            request.system.push_front(segment.clone());
        }
        if self.values.options != ChatOptions::default() {
            fill(request.options_mut(), &self.values.options);
        }
        self.inner.call(request)
    }
}

fn fill(options: &mut ChatOptions, defaults: &ChatOptions) {
    macro_rules! or {
        ($($field:ident)*) => {$(
            if options.$field.is_none() {
                options.$field.clone_from(&defaults.$field);
            }
        )*};
    }
    or!(model tool_choice parallel_tool_calls output_schema max_output_tokens temperature top_p
        frequency_penalty presence_penalty seed reasoning_effort);
    if options.stop.is_empty() {
        options.stop.clone_from(&defaults.stop);
    }
    for (map, defaults) in [
        (&mut options.provider, &defaults.provider),
        (&mut options.metadata, &defaults.metadata),
    ] {
        for (key, value) in defaults {
            map.entry(key).or_insert_with(|| value.clone());
        }
    }
}
