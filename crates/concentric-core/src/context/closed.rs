//! The conversation of a run without a finish.

use super::Context;
use crate::slots::{Scope, Slot, Slots, Transient};
use concentric_proto::{Transcript, run_state::SlotPlace};

struct Closed;

/// The conversation of a run that has failed or was dropped.
#[derive(Clone, Default)]
enum Kept {
    /// No layer has requested it.
    #[default]
    No,
    Requested,
    At(Transcript),
}

impl Slot for Closed {
    type Value = Kept;
    type Keep = Transient;
    const NAME: &'static str = "concentric/closed-transcript";
    const SCOPE: Scope = Scope::Run;
}

/// The conversation of a run that ends without a finish; see [`Context::keep_closed_transcript`].
///
/// It is no handle to the run, so work that is [deferred](Context::defer) may hold it.
#[derive(Clone, Debug)]
pub struct ClosedTranscript(Slots);

impl ClosedTranscript {
    /// Returns the conversation, with the text that the model had sent, and with an outcome for each call that it
    /// had begun. `None` before the run has failed or was dropped, and for one that finishes
    /// ([`Finish::transcript`](crate::Finish::transcript)).
    pub fn get(&self) -> Option<Transcript> {
        match kept(&self.0) {
            Kept::At(transcript) => Some(transcript),
            Kept::No | Kept::Requested => None,
        }
    }
}

fn kept(slots: &Slots) -> Kept {
    // Only another slot of this name could make it fail.
    let kept = slots.get::<Closed>(SlotPlace::Whole);
    kept.map_or(Kept::No, |kept| (*kept).clone())
}

fn keep(slots: &Slots, closed: &Kept) {
    let _ = slots.update::<Closed>(SlotPlace::Whole, |_| closed.clone());
}

impl Context {
    /// Keeps the conversation of the run if its body fails or is dropped before its end. Call it before the agent.
    ///
    /// A layer reads it when the body yields its error. If its own body is dropped, it reads it in work that it
    /// [defers](Self::defer), since the agent inside is dropped later.
    ///
    /// ```
    /// use concentric_core::{AgentLayer, ChatRequest, ChatResponse, Error, ErrorKind, Event, NoTools};
    /// use futures_util::{StreamExt, stream};
    /// use tower::{Layer, ServiceExt, service_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Error> {
    /// let model = service_fn(async |_: ChatRequest| {
    ///     let lost = Error::new(ErrorKind::Server, "lost");
    ///     Ok::<_, Error>(ChatResponse::new(stream::iter([Ok(Event::text("It is ")), Err(lost)])))
    /// });
    /// let request = ChatRequest::user("Which day is it?");
    /// let closed = request.context.keep_closed_transcript();
    /// let response = AgentLayer::new(NoTools).layer(model).oneshot(request).await?;
    /// let items: Vec<_> = response.body.collect().await;
    /// assert!(items.last().unwrap().is_err());
    /// let closed = closed.get().unwrap();
    /// assert_eq!(closed.last().unwrap().as_message().text(), "It is ");
    /// # Ok(())
    /// # }
    /// ```
    pub fn keep_closed_transcript(&self) -> ClosedTranscript {
        let slots = self.run_slots();
        keep(slots, &Kept::Requested);
        ClosedTranscript(slots.clone())
    }

    /// Whether a layer has requested the conversation of a run without a finish.
    pub(crate) fn keeps_closed_transcript(&self) -> bool {
        let slots = self.slots_of_run();
        slots.is_some_and(|slots| !matches!(kept(slots), Kept::No))
    }

    pub(crate) fn set_closed_transcript(&self, transcript: &Transcript) {
        keep(self.run_slots(), &Kept::At(transcript.clone()));
    }
}
