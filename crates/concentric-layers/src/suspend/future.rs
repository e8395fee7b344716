use super::{SuspendBody, run::Drive, take_up::Found};
use concentric_core::{
    ChatRequest, ChatResponse, Error, Event, Resume, Suspended,
    service::BoxFuture,
    store::{RunClaim, RunStore},
};
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tower::{BoxError, util::Oneshot};
use tower_service::Service;

pin_project! {
    /// Response future for [`Suspend`](super::Suspend).
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<S, St>
    where
        S: Service<ChatRequest>,
        St: RunStore,
        St: ?Sized,
    {
        #[pin]
        stage: Stage<S>,
        // `None`: the run is another's. Goes to the body.
        drive: Option<Drive<St>>,
    }
}

pin_project! {
    #[project = StageProj]
    enum Stage<S>
    where
        S: Service<ChatRequest>,
    {
        /// A run is looked for, and claimed.
        TakeUp { found: BoxFuture<Found>, call: Option<(S, ChatRequest)> },
        /// It goes on.
        Call { #[pin] call: Oneshot<S, ChatRequest> },
        /// It failed, which is written down.
        Failed { error: Option<Error> },
        Done,
    }
}

impl<S, St> ResponseFuture<S, St>
where
    S: Service<ChatRequest>,
    St: RunStore + ?Sized,
{
    pub(super) fn call(inner: S, request: ChatRequest, drive: Option<Drive<St>>) -> Self {
        Self {
            stage: Stage::Call {
                call: Oneshot::new(inner, request),
            },
            drive,
        }
    }

    pub(super) fn take_up(
        found: BoxFuture<Found>,
        inner: S,
        request: ChatRequest,
        drive: Drive<St>,
    ) -> Self {
        Self {
            stage: Stage::TakeUp {
                found,
                call: Some((inner, request)),
            },
            drive: Some(drive),
        }
    }
}

impl<S, B, St> Future for ResponseFuture<S, St>
where
    S: Service<ChatRequest, Response = ChatResponse<B>>,
    S::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
    St: RunStore + ?Sized,
{
    type Output = Result<ChatResponse<SuspendBody<B, St>>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.stage.as_mut().project() {
                StageProj::TakeUp { found, call } => {
                    let found = ready!(found.as_mut().poll(cx));
                    let next = match (found, call.take()) {
                        (Ok(found), Some((inner, mut request))) => {
                            go_on(found, &mut request, this.drive.as_mut());
                            Stage::Call {
                                call: Oneshot::new(inner, request),
                            }
                        }
                        // Nothing was claimed, so there is nothing to write.
                        (found, _) => Stage::Failed { error: found.err() },
                    };
                    this.stage.set(next);
                }
                StageProj::Call { call } => match call.poll(cx) {
                    Poll::Ready(Ok(response)) => {
                        this.stage.set(Stage::Done);
                        let drive = this.drive.take();
                        let response = response.map_body(|body| SuspendBody::new(body, drive));
                        return Poll::Ready(Ok(response));
                    }
                    Poll::Ready(Err(error)) => {
                        let error = Error::from(error.into());
                        if let Some(drive) = this.drive {
                            drive.give_up(Some(&error));
                        }
                        let error = Some(error);
                        this.stage.set(Stage::Failed { error });
                    }
                    Poll::Pending => {
                        let Some(drive) = this.drive else {
                            return Poll::Pending;
                        };
                        let lost = ready!(drive.poll_lost(cx));
                        this.stage.set(Stage::Done);
                        return Poll::Ready(Err(lost));
                    }
                },
                StageProj::Failed { error } => {
                    if let Some(drive) = this.drive.as_mut()
                        && let Err(error) = ready!(drive.poll_last(cx))
                    {
                        tracing::warn!(%error, "it was not written what became of a run");
                    }
                    let error = error.take();
                    *this.drive = None;
                    this.stage.set(Stage::Done);
                    if let Some(error) = error {
                        return Poll::Ready(Err(error));
                    }
                }
                // It has resolved.
                StageProj::Done => return Poll::Pending,
            }
        }
    }
}

/// Makes `request` one to go on with what was found.
fn go_on<St>(found: Found, request: &mut ChatRequest, drive: Option<&mut Drive<St>>)
where
    St: RunStore + ?Sized,
{
    let resume = match found {
        // It is a conversation like any other.
        Found::Nothing => return,
        // The agent decides.
        Found::None(suspended, replies) => Resume::new(suspended, replies),
        Found::Run(record, origin) => {
            if let Some(drive) = drive {
                drive.go_on(RunClaim::new(record.key, record.fence), origin);
            }
            request.transcript = record.state.transcript().clone();
            let state = Suspended::State(Box::new(record.state));
            let resume = Resume::new(state, record.replies);
            match record.replied_at {
                Some(at) => resume.accepted_at(at),
                None => resume,
            }
        }
    };
    request.set_resume(resume);
}

impl<S, St> fmt::Debug for ResponseFuture<S, St>
where
    S: Service<ChatRequest>,
    St: RunStore + ?Sized,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
