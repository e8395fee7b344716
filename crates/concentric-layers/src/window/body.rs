//! Reports the usage of an answer to the counter of its request.

use super::{ByDepth, Counter, memo::same};
use crate::body::{Observed, Observer, body};
use concentric_core::{
    ChatResponse, Context as RunContext, Str, Transcript, Usage,
    hooks::End,
    state::{Scope, Slot, Transient},
};
use pin_project_lite::pin_project;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

/// What a layer sent: the innermost of them, in the extensions of its answer.
#[derive(Clone)]
struct Marker(Transcript);

/// A request that was counted and sent.
pub(crate) struct Sent {
    pub(crate) counter: Counter,
    pub(crate) transcript: Transcript,
    pub(crate) model: Option<Str>,
    pub(crate) count: u64,
    /// For a layer that reads [`Reported`]: the sum of the turns.
    pub(crate) report: Option<(RunContext, u64)>,
}

/// The usage that the provider reported for the last call.
pub(crate) struct Reported;

#[derive(Clone)]
pub(crate) struct Report {
    transcript: Transcript,
    sum: u64,
    tokens: u64,
}

impl Slot for Reported {
    type Value = ByDepth<Report>;
    type Keep = Transient;
    const NAME: &'static str = "concentric/window/reported";
    const SCOPE: Scope = Scope::Run;
}

#[cfg(feature = "compaction")]
impl Reported {
    /// The tokens of a request with `transcript`, whose turns have the sum `sum`, if the last call had its
    /// first turns.
    pub(crate) fn tokens(context: &RunContext, transcript: &Transcript, sum: u64) -> Option<u64> {
        let reports = context.state::<Self>().ok()?;
        let last = reports.get(context.depth())?;
        let added = sum.saturating_sub(last.sum);
        (transcript.extends(&last.transcript)).then(|| last.tokens.saturating_add(added))
    }
}

pin_project! {
    /// Response future of a layer that shortens conversations.
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<F> {
        #[pin]
        inner: F,
        sent: Option<Sent>,
    }
}

impl<F> ResponseFuture<F> {
    pub(crate) const fn new(inner: F, sent: Option<Sent>) -> Self {
        Self { inner, sent }
    }
}

impl<F, B, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<ChatResponse<B>, E>>,
{
    type Output = Result<ChatResponse<WindowBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let answer = ready!(this.inner.poll(cx));
        let sent = this.sent.take();
        Poll::Ready(answer.map(|answer| WindowBody::wrap(answer, sent)))
    }
}

impl<F> fmt::Debug for ResponseFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

body! {
    /// Response body of a layer that shortens conversations: the inner body's items, unchanged.
    pub struct WindowBody<B>(Observed<B, Open>);
}

impl<B> WindowBody<B> {
    pub(crate) fn wrap(mut answer: ChatResponse<B>, sent: Option<Sent>) -> ChatResponse<Self> {
        let sent = sent.filter(|sent| {
            // If a layer inside sent something else, the usage is not that of this count.
            let inner = answer.extensions.get::<Marker>();
            inner.is_none_or(|Marker(inner)| same(inner, &sent.transcript))
        });
        if let Some(sent) = &sent {
            answer.extensions.insert(Marker(sent.transcript.clone()));
        }
        answer.map_body(|inner| Self {
            inner: Observed::new(inner, Open(sent)),
        })
    }
}

impl Sent {
    fn observe(self, usage: &Usage) {
        self.counter
            .observe(self.model.as_deref(), self.count, usage);
        if let (Some((context, sum)), Some(tokens)) = (self.report, usage.input_tokens()) {
            let report = Report {
                transcript: self.transcript,
                sum,
                tokens,
            };
            let depth = context.depth();
            let _ = context.update_state::<Reported>(|all| all.with(depth, &report));
        }
    }
}

/// What was sent, until the terminal item.
struct Open(Option<Sent>);

impl Observer for Open {
    fn end(&mut self, end: End<'_>) {
        if let Some(sent) = self.0.take()
            && let End::Finished(finish) = end
        {
            sent.observe(&finish.usage);
        }
    }
}
