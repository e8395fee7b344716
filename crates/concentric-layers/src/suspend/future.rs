use super::{
    SuspendBody,
    run::{Drive, Origin},
    service::Erased,
    take_up::Found,
    task::{Run, Source, Spawn, Step},
};
use crate::{rest::Rest, wait::Stop};
use concentric_core::{
    ChatRequest, ChatResponse, Error, Event, Finish, OpenRound, Phase, Resume, ResumePoint,
    context::HeadHold,
    service::BoxFuture,
    store::{Resumable, RunClaim, RunRecord, RunStore},
};
use futures_core::Stream;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tower::util::Oneshot;

/// Response future for [`Suspend`](super::Suspend).
#[must_use = "futures do nothing unless you `.await` or poll them"]
pub struct ResponseFuture<B, St>
where
    St: RunStore + ?Sized,
{
    stage: Stage<B, St>,
    // The round that a resumed run continues, for the response.
    open: Option<OpenRound>,
}

enum Stage<B, St>
where
    St: RunStore + ?Sized,
{
    /// The run belongs to a calling agent.
    Pass(BoxFuture<ChatResponse<B>>),
    /// A stored run is looked up and claimed.
    Find(BoxFuture<Found>, Box<Finding<B, St>>),
    /// The run is driven.
    Run(Source<B, St>),
    Failed(Error),
    Done,
}

/// The call to make after the lookup.
struct Finding<B, St>
where
    St: RunStore + ?Sized,
{
    // Held because the request may still be refused.
    hold: HeadHold,
    stop: Stop,
    inner: Erased<B>,
    request: ChatRequest,
    drive: Drive<St>,
    spawn: Spawn<B, St>,
}

impl<B, St> ResponseFuture<B, St>
where
    B: Stream<Item = Result<Event, Error>> + 'static,
    St: RunStore + ?Sized,
{
    const fn new(stage: Stage<B, St>) -> Self {
        Self { stage, open: None }
    }

    pub(super) fn pass(inner: Erased<B>, request: ChatRequest) -> Self {
        Self::new(Stage::Pass(Box::pin(Oneshot::new(inner, request))))
    }

    pub(super) fn fail(error: Error) -> Self {
        Self::new(Stage::Failed(error))
    }

    pub(super) fn call(
        inner: Erased<B>,
        request: ChatRequest,
        drive: Drive<St>,
        spawn: Spawn<B, St>,
    ) -> Self {
        let run = Run::new(call(inner, request), drive, spawn);
        Self::new(Stage::Run(Source::new(run)))
    }

    pub(super) fn find(
        found: BoxFuture<Found>,
        inner: Erased<B>,
        request: ChatRequest,
        drive: Drive<St>,
        spawn: Spawn<B, St>,
    ) -> Self {
        let finding = Finding {
            hold: request.context.hold_head(),
            stop: Stop::new(&request.context),
            inner,
            request,
            drive,
            spawn,
        };
        Self::new(Stage::Find(found, Box::new(finding)))
    }
}

fn call<B: 'static>(inner: Erased<B>, request: ChatRequest) -> Rest<B> {
    Rest::Call(Box::pin(Oneshot::new(inner, request)))
}

impl<B, St> Future for ResponseFuture<B, St>
where
    B: Stream<Item = Result<Event, Error>> + 'static,
    St: RunStore + ?Sized,
{
    type Output = Result<ChatResponse<SuspendBody<B, St>>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match std::mem::replace(&mut self.stage, Stage::Done) {
                Stage::Pass(mut call) => {
                    let Poll::Ready(response) = call.as_mut().poll(cx) else {
                        self.stage = Stage::Pass(call);
                        return Poll::Pending;
                    };
                    return Poll::Ready(response.map(|it| it.map_body(SuspendBody::pass)));
                }
                Stage::Find(mut find, mut finding) => {
                    let found = match find.as_mut().poll(cx) {
                        Poll::Ready(found) => found,
                        Poll::Pending => match finding.stop.poll("the store of runs", cx) {
                            Poll::Ready(stopped) => Err(stopped.with_phase(Phase::Run)),
                            Poll::Pending => {
                                self.stage = Stage::Find(find, finding);
                                return Poll::Pending;
                            }
                        },
                    };
                    // Returns the replies to the request if they were not used.
                    drop(find);
                    let Finding {
                        hold,
                        inner,
                        mut request,
                        mut drive,
                        spawn,
                        ..
                    } = *finding;
                    drop(hold);
                    match found {
                        Ok(Found::Waiting(state)) => {
                            let body = SuspendBody::waiting(Finish::waiting(*state));
                            let mut response = ChatResponse::new(body);
                            response.extensions.insert(Resumable);
                            return Poll::Ready(Ok(response));
                        }
                        // A new run starts.
                        Ok(Found::Nothing) => {}
                        Ok(Found::None(suspended, replies)) => {
                            // The agent decides.
                            let messages = request.resume.as_ref().map(Resume::messages);
                            let messages = messages.unwrap_or_default().to_vec();
                            request.set_resume(
                                Resume::new(suspended, replies).with_messages(messages),
                            );
                        }
                        Ok(Found::Run(record, origin)) => {
                            self.open = record.state.open_round();
                            resume(*record, origin, &mut request, &mut drive);
                        }
                        Err(error) => return Poll::Ready(Err(error)),
                    }
                    self.stage =
                        Stage::Run(Source::new(Run::new(call(inner, request), drive, spawn)));
                }
                Stage::Run(mut source) => {
                    let Poll::Ready(step) = source.poll(cx) else {
                        self.stage = Stage::Run(source);
                        return Poll::Pending;
                    };
                    return Poll::Ready(match step {
                        Some(Step::Head(mut head)) => {
                            head.extensions.insert(Resumable);
                            if let Some(open) = self.open.take() {
                                head.extensions.insert(open);
                            }
                            Ok(head.map_body(|()| SuspendBody::new(source)))
                        }
                        Some(Step::Item(Err(error))) => Err(error),
                        // A response comes before its body.
                        Some(Step::Item(Ok(_))) | None => Err(super::task::stopped()),
                    });
                }
                Stage::Failed(error) => return Poll::Ready(Err(error)),
                Stage::Done => return Poll::Pending,
            }
        }
    }
}

/// Makes `request` resume the claimed run of `record`.
fn resume<St>(record: RunRecord, origin: Origin, request: &mut ChatRequest, drive: &mut Drive<St>)
where
    St: RunStore + ?Sized,
{
    let claim = RunClaim::new(record.key, record.fence);
    drive.resume(claim, Arc::new(record.state.clone()), origin);
    request.transcript = record.state.transcript().clone();
    let state = ResumePoint::State(Box::new(record.state));
    let resume = Resume::new(state, record.replies);
    request.set_resume(match record.replied_at {
        Some(at) => resume.accepted_at(at),
        None => resume,
    });
}

impl<B, St> fmt::Debug for ResponseFuture<B, St>
where
    St: RunStore + ?Sized,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
