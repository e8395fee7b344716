use super::{SkillsLayer, catalogue::Catalogue};
use crate::lazy::ResponseFuture;
use concentric_core::{ChatRequest, ChatResponse};
use std::{
    sync::Arc,
    task::{Context, Poll},
};
use tower_service::Service;

/// Middleware that adds the skill catalogue to requests, and offers the tools of active skills.
///
/// See the [module docs](super) for an example.
#[derive(Clone, Debug)]
pub struct WithSkills<S> {
    inner: S,
    catalogue: Arc<Catalogue>,
}

impl<S> WithSkills<S> {
    pub(super) const fn new(inner: S, catalogue: Arc<Catalogue>) -> Self {
        Self { inner, catalogue }
    }

    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, B> Service<ChatRequest> for WithSkills<S>
where
    S: Service<ChatRequest, Response = ChatResponse<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: ChatRequest) -> Self::Future {
        // A failure of `enter` is reported by the agent inside.
        let _ = request.context.enter::<SkillsLayer>();
        let offered = self.catalogue.tell(&mut request);
        ResponseFuture::new(self.inner.call(request), offered)
    }
}
