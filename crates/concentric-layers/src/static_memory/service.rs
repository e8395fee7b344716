use concentric_core::{ChatRequest, SystemSegment};
use std::task::{Context, Poll};
use tower_service::Service;

/// Middleware that adds documents to the system prompt.
#[derive(Clone)]
pub struct StaticMemory<S> {
    inner: S,
    // Its text is shared by the requests.
    segment: Option<SystemSegment>,
}

impl<S> StaticMemory<S> {
    pub(super) const fn new(inner: S, segment: Option<SystemSegment>) -> Self {
        Self { inner, segment }
    }

    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S> Service<ChatRequest> for StaticMemory<S>
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
        if let Some(segment) = &self.segment
            && !request
                .system
                .iter()
                .any(|other| other.text == segment.text)
        {
            request.system.push(segment.clone());
        }
        self.inner.call(request)
    }
}

concentric_core::opaque_debug!(StaticMemory<S>);
