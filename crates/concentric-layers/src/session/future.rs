use super::{
    TurnBody,
    keep::Saving,
    service::prepare,
    state::{Shared, Turn},
};
use crate::wait::Stop;
use concentric_core::{ChatRequest, ChatResponse, Error, store::Resumable};
use pin_project_lite::pin_project;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tokio_util::sync::PollSemaphore;
use tower::{BoxError, util::Oneshot};
use tower_service::Service;

pin_project! {
    /// Response future for [`Session`](super::Session).
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<A>
    where
        A: Service<ChatRequest>,
    {
        // Dropped before `turn`, whose drop reads the effects of the run.
        #[pin]
        call: Option<Oneshot<A, ChatRequest>>,
        // Moved to the body.
        turn: Option<Result<Turn<A>, Error>>,
        // Set while the turn is queued.
        waiting: Option<Waiting>,
        // Set while the conversation is stored before a suspended turn resumes.
        saving: Option<(Saving, ChatRequest)>,
    }
}

struct Waiting {
    request: ChatRequest,
    permit: PollSemaphore,
    stop: Stop,
}

impl<A> ResponseFuture<A>
where
    A: Service<ChatRequest>,
{
    pub(super) fn new(shared: &Arc<Shared<A>>, request: ChatRequest) -> Self {
        let turn = shared.enter(&request.context);
        let waiting = turn.is_ok().then(|| Waiting {
            permit: PollSemaphore::new(Arc::clone(&shared.turn)),
            stop: Stop::new(&request.context),
            request,
        });
        Self {
            call: None,
            turn: Some(turn),
            waiting,
            saving: None,
        }
    }
}

impl<A, B> Future for ResponseFuture<A>
where
    A: Service<ChatRequest, Response = ChatResponse<B>> + Clone,
    A::Error: Into<BoxError>,
{
    type Output = Result<ChatResponse<TurnBody<A, B>>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let Some(Ok(turn)) = this.turn else {
            let refused = this.turn.take().and_then(Result::err);
            return Poll::Ready(Err(refused.expect("polled after completion")));
        };
        if let Some(waiting) = this.waiting {
            if let Poll::Ready(stopped) = waiting.stop.poll("its turn", cx) {
                *this.waiting = None;
                *this.turn = None;
                return Poll::Ready(Err(stopped));
            }
            turn.permit = ready!(waiting.permit.poll_acquire(cx));
            let begun = this
                .waiting
                .take()
                .map(|waiting| begin(turn, waiting.request));
            match begun {
                Some(Ok((None, request))) => this.call.set(Some(call(turn, request))),
                Some(Ok((Some(saving), request))) => *this.saving = Some((saving, request)),
                Some(Err(error)) => {
                    *this.turn = None;
                    return Poll::Ready(Err(error));
                }
                None => {}
            }
        }
        if let Some((saving, _)) = this.saving {
            let saved = ready!(saving.poll(cx));
            let request = this.saving.take().map(|(_, request)| request);
            if let Err(error) = turn.saved(saved) {
                *this.turn = None;
                return Poll::Ready(Err(error));
            }
            this.call.set(request.map(|request| call(turn, request)));
        }
        let Some(call) = this.call.as_mut().as_pin_mut() else {
            return Poll::Pending;
        };
        let answer = ready!(call.poll(cx));
        this.call.set(None);
        let mut turn = this.turn.take().and_then(Result::ok);
        Poll::Ready(match answer {
            Ok(mut answer) => {
                // The session stores the state of a suspended turn.
                answer.extensions.insert(Resumable);
                Ok(answer.map_body(|body| TurnBody::new(body, turn)))
            }
            Err(error) => {
                let error = Error::from(error.into());
                if let Some(turn) = &mut turn {
                    turn.fail(&error);
                }
                Err(error)
            }
        })
    }
}

/// Prepares the request of a turn, and starts to store the conversation if that is needed first.
fn begin<A>(
    turn: &mut Turn<A>,
    request: ChatRequest,
) -> Result<(Option<Saving>, ChatRequest), Error> {
    turn.begin()?;
    let request = prepare(turn, request)?;
    let saving = match &request.resume {
        Some(_) => turn.shared().save_resumed()?,
        None => None,
    };
    Ok((saving, request))
}

fn call<A>(turn: &Turn<A>, request: ChatRequest) -> Oneshot<A, ChatRequest>
where
    A: Service<ChatRequest> + Clone,
{
    let agent = turn.shared().lock().agent.clone();
    Oneshot::new(agent, request)
}

impl<A> fmt::Debug for ResponseFuture<A>
where
    A: Service<ChatRequest>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
