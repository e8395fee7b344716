//! A layer that keeps the history of conversations in a store.
//!
//! ```
//! use concentric_core::{AgentLayer, ChatRequest, Context, Error, NoTools, ThreadId};
//! use concentric_layers::ConversationLayer;
//! use concentric_test::{MemoryStore, ScriptedModel};
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let model = ScriptedModel::new().text("Hello, Ada.").then().text("Ada.");
//! let agent = ServiceBuilder::new()
//!     .layer(ConversationLayer::new(MemoryStore::new()))
//!     .layer(AgentLayer::new(NoTools))
//!     .service(model.clone());
//! for text in ["I am Ada.", "Who am I?"] {
//!     let context = Context::builder().thread_id(ThreadId::new("thread_1")).build();
//!     let request = ChatRequest::user(text).with_context(context);
//!     agent.clone().oneshot(request).await?.collect().await?;
//! }
//! // The second run has the history of the first.
//! assert_eq!(model.request(1).transcript.len(), 3);
//! # Ok(())
//! # }
//! ```
//!
//! # Moments
//!
//! | moment | the conversation of the context's [thread](concentric_core::Context::thread_id) and [tenant](concentric_core::store::Tenant) |
//! |---|---|
//! | a run starts | is loaded, and the turns of the request join it, or its newest turns ([`max_turns`](ConversationLayer::max_turns)), as [`Merge`] states |
//! | a run resumes | is loaded for its version; the transcript is that of the run |
//! | the run finishes: completed, halted, cancelled, at a limit | gets the new turns and the changed slots, before the body yields [`Finish`](concentric_core::Event::Finish), or after it with [`lazy`](ConversationLayer::lazy) |
//! | the run is interrupted | gets the message of the user and the closed rounds, before the body yields [`Finish`](concentric_core::Event::Finish), also with [`lazy`](ConversationLayer::lazy). The open round, and an answer that waits to be accepted, stay in the run's state |
//! | a resumed run finishes | gets the rest of the turn |
//! | the lease of a stored run is lost, or the store does not accept the run | is unchanged, since the run is that of another process, or had no effects |
//! | the body fails, ends early or is dropped | gets the turns so far, with the text that the model had sent and an outcome for each call: before the body yields its error, or after it is dropped ([`Context::defer`](concentric_core::Context::defer)) |
//! | the future fails or is dropped | is unchanged, since nothing was shown and the run may be repeated |
//! | a [`GuardrailLayer`](crate::GuardrailLayer) outside rejects the input beside the run | is unchanged, also if the model has answered by then |
//! | a resumed run without new effects fails or is dropped | is unchanged, since the run may be resumed again |
//! | a waiting run is withdrawn, expires, or is never resumed | keeps the message and the closed rounds, which providers accept without an answer |
//! | the conversation of a waiting run is deleted | stays deleted: the run fails before its effects when it is resumed |
//! | a run fails because its state can't be stored before further tools ([`SuspendLayer`](crate::SuspendLayer)) | is unchanged, since the run is resumed, and then stores its turn |
//! | the finish has no transcript, as that of a [`GuardLayer`](crate::GuardLayer) that blocks the answer | gets the message of the user and the rounds, without the answer |
//! | there is no loop | is unchanged |
//!
//! The run has the [slots](concentric_core::state) of the conversation, which are stored together with the end of its
//! turn, and the id of its session. A suspended run keeps its changes of the slots in its own state.
//!
//! # Concurrent runs
//!
//! A new run stores its turn only if the conversation has the version that the run has started from. Of two runs,
//! the later one fails with [`Conflict`](concentric_core::ErrorKind::Conflict) and the code `thread_moved`
//! as its last item, and nothing is overwritten. That item also replaces an interrupt, so such a run does not wait for
//! an approval. The turn of a run that has failed or was dropped is then lost, and that is logged. A [`MakeSession`](crate::MakeSession) queues turns of one
//! process instead.
//!
//! A run that was stored before, since it has waited or its process has died, does not conflict with the runs that have
//! ended meanwhile: the rest of its turn follows theirs, so its effects are never without a turn.
//!
//! | | the conversation |
//! |---|---|
//! | a run waits | `Pay them.` |
//! | another run ends | `Pay them.`, `Hello.`, its answer |
//! | the first run is approved, and ends | `Pay them.`, `Hello.`, its answer, the round of the first run, its answer |
//!
//! The model of the other run sees the message without an answer, and that of the first run continues without the
//! turns of the other. With [`OpenInterrupts::Withdraw`](concentric_core::store::OpenInterrupts::Withdraw), a new message ends
//! the waiting run. Of slots that both have changed, the run that ends last stores its values.
//!
//! A resumed run finds what it has appended before its process died by the ids of messages. A message of the user
//! without an id counts as appended if the conversation has got an equal one since the run began, so clients should
//! send ids.
//!
//! A layer around this one that repeats a run after its body has begun, as a retry around a
//! [`CommitLayer`](crate::CommitLayer) does, appends the message of the user again. It belongs inside.
//!
//! # Place in the stack
//!
//! Directly around [`AgentLayer`](concentric_core::AgentLayer) and its plugins, inside a
//! [`SuspendLayer`](crate::SuspendLayer), and inside a [`DetachLayer`](crate::DetachLayer). If both layers have
//! the same store, the turn and the end of the run are one write: a run whose turn is stored is not resumed, and
//! a process that has lost its run to another one stores no turn. With two stores, a run whose process dies
//! between the writes is resumed and does not append its turn again. An interrupted run is stored before it appends, and
//! is stored as waiting after that. If its process dies in between, the resumed run replaces the part that it has
//! appended, or, if another run has followed, adds what is missing. Layers around it receive only the new turns.
//! Inside a loop, inside a session, or inside another one, the first call fails with [`Configuration`](concentric_core::ErrorKind::Configuration). In an agent that is used as a
//! tool, the layer has no effect.
//!
//! See the [recommended order](crate::order).
//!
//! # Errors
//!
//! | error | cause |
//! |---|---|
//! | [`Configuration`](concentric_core::ErrorKind::Configuration), [`NO_THREAD`] | the context has no thread id |
//! | [`NotFound`](concentric_core::ErrorKind::NotFound), [`UNKNOWN_THREAD`] | the conversation does not exist, with [`create(false)`](ConversationLayer::create) |
//! | [`Conflict`](concentric_core::ErrorKind::Conflict), `thread_moved` | another run has changed the conversation |
//! | [`Conflict`](concentric_core::ErrorKind::Conflict), `stale_claim` | another process has claimed the run |
//! | that of the store | the conversation can't be loaded, or, with [`required`](ConversationLayer::required), not stored within 30 seconds |
//!
//! Without `required`, a turn that can't be stored is logged, and the answer is delivered. If the store fails while a run
//! is interrupted, that is logged also with `required`, and the resumed run stores the whole turn. An error of a run
//! whose tools may have had effects [reports](concentric_core::Error::effects) that.
//!
//! # Backpressure
//!
//! The layer is always ready. Its future loads the conversation and then waits for a clone of the inner
//! service. The server's response head is [held back](concentric_core::Context::hold_head) until the
//! conversation is loaded.
//!
//! # Cancel safety
//!
//! A cancellation or a deadline ends the wait for the history, and not the wait for the store after the run.
//! If the body is dropped while its turn is being stored, that continues in a task of the tokio runtime for up to 30
//! seconds, and a failure is logged. The turn of a dropped run is stored in such a task as well; without a
//! runtime, it is lost.

mod body;
mod change;
mod future;
mod layer;
mod service;
mod turn;

pub use self::{
    body::ConversationBody,
    future::ResponseFuture,
    layer::{ConversationLayer, Merge, NO_THREAD, UNKNOWN_THREAD},
    service::Conversation,
};
