use super::{GuardrailBody, Input, Subject, layer::Guard, verdict::Verdict};
use concentric_core::{
    Author, BoxError, ChatRequest, ChatResponse, Error, Event, Media, Message, PartKind, Phase,
    Role, Str, Turn, capability::Region, context::EffectHold,
};
use futures_core::Stream;
use pin_project_lite::pin_project;
use serde_json::Value;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tower::util::Oneshot;
use tower_service::Service;

pin_project! {
    /// Response future for [`Guardrail`](super::Guardrail).
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<S, B>
    where
        S: Service<ChatRequest>,
    {
        // The inner service is called when this is first polled.
        #[pin]
        call: Option<Oneshot<S, ChatRequest>>,
        input: Option<Verdict>,
        // Until the verdict, no tool starts.
        hold: Option<EffectHold>,
        response: Option<ChatResponse<GuardrailBody<B>>>,
        guard: Arc<Guard>,
        // Of the answer, without its text.
        subject: Option<Subject>,
    }
}

impl<S, B> ResponseFuture<S, B>
where
    S: Service<ChatRequest>,
{
    pub(super) fn new(inner: S, mut request: ChatRequest, guard: &Arc<Guard>) -> Self {
        let subject = |is_answer, text, images| Subject {
            text,
            images,
            is_answer,
            transcript: request.transcript.clone(),
            context: request.context.clone(),
        };
        let input = guard.input.and_then(|_| input(&request));
        let input = input.map(|(text, images)| guard.judge(subject(false, text, images)));
        let answer = guard
            .output
            .map(|_| subject(true, Str::default(), Vec::new()));
        let is_parallel = input.is_some() && guard.input == Some(Input::Parallel);
        let hold = is_parallel.then(|| {
            if request.context.phase() == Phase::Run {
                // Cannot fail: it requires nothing of the layers outside.
                let _ = request.context.enter::<parallel::GuardrailLayer>();
            }
            request.context.hold_effects()
        });
        Self {
            call: Some(Oneshot::new(inner, request)),
            input,
            hold,
            response: None,
            guard: Arc::clone(guard),
            subject: answer,
        }
    }
}

/// The region inside a layer that judges the input beside the call, where a run must not outlive the call.
pub(crate) enum Unjudged {}

impl Region for Unjudged {}

/// The declaration of the layer where it judges beside the call, with the layer's name for errors.
mod parallel {
    use super::Unjudged;
    use concentric_core::capability::{Declares, Encloses};

    pub(super) struct GuardrailLayer;

    impl Declares for GuardrailLayer {
        type Capabilities = Encloses<Unjudged>;
    }
}

/// The text and the images that the user adds with a request; `None` if there are none. Inside the loop, a later
/// step follows the results of tools, unless a message was added to the run.
fn input(request: &ChatRequest) -> Option<(Str, Vec<Media>)> {
    let turns = request.transcript.rev().map(Turn::as_message);
    let new = turns.take_while(|message| message.role == Role::User);
    let mut messages: Vec<&Message> = new.filter(|message| !is_by_layer(message)).collect();
    messages.reverse();
    if let Some(resume) = &request.resume {
        messages.extend(resume.messages());
    }
    let mut pieces: Vec<String> = messages.iter().map(|message| message.text()).collect();
    if let Some(resume) = &request.resume
        && let Some((point, replies)) = resume.take()
    {
        for payload in replies.iter().filter_map(|reply| reply.payload.as_ref()) {
            collect_strings(payload, &mut pieces);
        }
        resume.give_back(point, replies);
    }
    pieces.retain(|piece| !piece.is_empty());
    let parts = messages.iter().flat_map(|message| &message.parts);
    let images = parts.filter_map(|part| match &part.kind {
        PartKind::Image(image) => Some(image.clone()),
        _ => None,
    });
    let images: Vec<Media> = images.collect();
    let is_empty = pieces.is_empty() && images.is_empty();
    (!is_empty).then(|| (pieces.join("\n").into(), images))
}

/// Whether a layer wrote all of a message, such as a summary in the place of earlier turns.
fn is_by_layer(message: &Message) -> bool {
    let mut authors = message.parts.iter().map(|part| &part.author);
    authors.all(|author| matches!(author, Author::Layer { .. }))
}

/// Collects the strings in a reply. Its depth is bounded by the parser that read it.
fn collect_strings(value: &Value, pieces: &mut Vec<String>) {
    match value {
        Value::String(text) => pieces.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| collect_strings(item, pieces)),
        Value::Object(fields) => fields
            .values()
            .for_each(|field| collect_strings(field, pieces)),
        _ => {}
    }
}

impl<S, B, E> Future for ResponseFuture<S, B>
where
    S: Service<ChatRequest, Response = ChatResponse<B>, Error = E>,
    E: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
{
    type Output = Result<ChatResponse<GuardrailBody<B>>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Some(input) = this.input {
            match input.as_mut().poll(cx) {
                Poll::Ready(verdict) => {
                    *this.input = None;
                    if let Err(refused) = verdict {
                        this.call.set(None);
                        *this.response = None;
                        let body = GuardrailBody::refused(refused, &this.guard.on_block);
                        return Poll::Ready(body.map(ChatResponse::new));
                    }
                    if let Some(hold) = this.hold.take() {
                        hold.release();
                    }
                }
                Poll::Pending if this.guard.input == Some(Input::Blocking) => return Poll::Pending,
                Poll::Pending => {}
            }
        }
        if let Some(call) = this.call.as_mut().as_pin_mut() {
            let response = ready!(call.poll(cx));
            this.call.set(None);
            match response {
                Ok(response) => {
                    let subject = this.subject.take();
                    *this.response = Some(response.map_body(|inner| match subject {
                        Some(subject) => {
                            GuardrailBody::judged(inner, Arc::clone(this.guard), subject)
                        }
                        None => GuardrailBody::passed(inner),
                    }));
                }
                Err(error) => {
                    *this.input = None;
                    return Poll::Ready(Err(Error::from(error.into())));
                }
            }
        }
        if this.input.is_some() {
            return Poll::Pending;
        }
        if let Some(response) = this.response
            && let Some(body) = response.body.as_judged()
        {
            while !body.is_committed() {
                if !ready!(body.poll_release(cx))? {
                    return Poll::Ready(Err(Error::truncated()));
                }
            }
        }
        Poll::Ready(Ok(this.response.take().expect("polled after it was ready")))
    }
}

impl<S, B> fmt::Debug for ResponseFuture<S, B>
where
    S: Service<ChatRequest>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
