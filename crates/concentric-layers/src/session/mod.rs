//! A conversation with an agent, one turn at a time.
//!
//! [`MakeSession`] makes [`Session`]s of an agent. It is a tower `MakeService`. A session is a service
//! from a [`ChatRequest`](concentric_core::ChatRequest) to an answer: it appends the messages of a
//! request to the history of the conversation, and stores the resulting history for the next turn.
//!
//! ```
//! use concentric_core::{BoxModel, Error, ThreadId};
//! use concentric_layers::session::{SessionTarget, MakeSession};
//! use tower::ServiceExt;
//!
//! async fn chat(agent: BoxModel) -> Result<(), Error> {
//!     let sessions = MakeSession::new(agent).queue(4);
//!     let session = sessions.oneshot(SessionTarget::new(ThreadId::new("t"))).await?;
//!
//!     let hello = session.clone().oneshot(session.user("I am Ada.")).await?;
//!     hello.collect().await?;
//!     let name = session.clone().oneshot(session.user("Who am I?")).await?;
//!     println!("{}", name.collect().await?.text());
//!     Ok(())
//! }
//! # let _ = chat;
//! ```
//!
//! # Turns
//!
//! Only one turn is active at a time. A further turn waits if the [queue](MakeSession::queue) has
//! room. Otherwise, it fails at once with
//! [`ErrorKind::Overloaded`](concentric_core::ErrorKind::Overloaded), with the code `busy` if there
//! is no queue, or `queue_full`. A turn ends when its body has ended or is dropped, so a consumer
//! that does not read its body delays the next turn.
//!
//! | a turn | the next turn starts from |
//! |---|---|
//! | finishes, is halted, reaches a limit, or is [cancelled](Session::cancel) while active | the new history, with every round closed |
//! | is interrupted | nothing yet: only [replies](concentric_core::ChatRequest::replying) or [`give_up`](Session::give_up) are accepted |
//! | fails, ends early, is dropped, or is cancelled or times out in the queue | the history and the slots from before the turn |
//! | is resumed by replies, and fails, ends early or is dropped before it had effects | nothing yet: it is suspended again, and the replies can be sent again |
//! | is resumed by replies, and fails, ends early or is dropped after it had effects | the history from before the interrupted turn, whose interrupts can no longer be replied to |
//!
//! A resumed turn has had effects if a tool that may have side effects was started after the
//! replies were accepted ([`Context::effect_count`](concentric_core::Context::effect_count)), or if
//! its error [reports](concentric_core::Error::effects) more effects than its stored state did.
//! Read-only tools and model output do not count, because they can be repeated. A call of another
//! tool counts when its function, or a layer around it, is about to be called; with a round service
//! other than `Toolset`, when the call is passed to that service. A reply whose decision is
//! [remembered](concentric_core::store::Decisions) counts before the decision is stored.
//! [`SuspendLayer`](crate::suspend::SuspendLayer) uses the same rules.
//!
//! The effects of a failed turn are not undone; the error
//! [reports](concentric_core::Error::effects) them.
//!
//! # State
//!
//! The runs of a session share the [slots](concentric_core::state) of its conversation and those of
//! the session. A turn changes a copy of the conversation's slots, which replaces them together
//! with the history: if the history is not updated, the slots are not updated either, and a
//! suspended turn has its changes again when it is resumed. The slots of the session are changed
//! immediately. [`fork`](Session::fork) copies the conversation's slots and shares those of the
//! session. [`reset`](Session::reset) clears the conversation's slots and keeps those of the
//! session.
//!
//! # Recovery
//!
//! With a [store](MakeSession::store), a conversation survives its process: a session that is opened
//! with the same thread and tenant continues with the stored history, slots and suspended turn.
//!
//! | moment | stored |
//! |---|---|
//! | before the body of a turn yields its finish | the new history and slots, or the suspended turn |
//! | before a suspended turn resumes | the history from before it, so that no other process resumes it |
//! | a [fork](Session::fork) | the new conversation |
//!
//! Only the new turns and the changed slots are written, so that a turn costs the same in a conversation of
//! any length. A fork shares the stored turns.
//!
//! A turn that was active when its process ended is lost, and the conversation continues from before
//! it; a [`SuspendLayer`](crate::suspend::SuspendLayer) inside the session stores runs step by step.
//! Two sessions of one conversation do not overwrite each other: the second one to store a turn fails
//! with [`Conflict`](concentric_core::ErrorKind::Conflict) and the code `thread_moved`, and ends; it can
//! be opened again. If the store fails otherwise, the turn fails, and the session continues from before
//! it. [`give_up`](Session::give_up), [`reset`](Session::reset) and changes of slots between turns are
//! stored with the next turn.
//!
//! # Place in the stack
//!
//! Around an agent, outside all layers that are applied once per run. A layer around the session
//! receives only the new turns. [`DetachLayer`](crate::detach::DetachLayer) goes around the
//! session. These stacks fail with [`Configuration`](concentric_core::ErrorKind::Configuration)
//! before anything is called:
//!
//! - a `DetachLayer` inside a session: the run of a dropped turn would continue while the next turn
//!   starts
//! - a session inside a [`SuspendLayer`](crate::suspend::SuspendLayer): both would store the
//!   suspended run
//! - a session that is used as the model of an agent: its history would grow with each model call
//! - a session inside a session: it would append the whole history to its own at each turn
//!
//! See the [recommended order](crate::order).
//!
//! # Backpressure
//!
//! A session is always ready. A queued turn waits in its future until it is its turn, its run is
//! cancelled ([`Cancelled`](concentric_core::ErrorKind::Cancelled)) or its deadline passes
//! ([`Timeout`](concentric_core::ErrorKind::Timeout)). It then waits for the agent's readiness.
//!
//! # Cancel safety
//!
//! Dropping the future or the body of a turn stops its run, starts the next turn, and leaves the
//! history as it was before the turn. A turn that was resumed by replies and has had no effects is
//! suspended again. That is not stored: if its process ends before the next turn is stored, the
//! conversation continues from before the suspended turn.
//! If the future or a body is dropped while its turn is being stored, the turn may be stored; the session then ends
//! with its next turn. A cancellation or a deadline does not interrupt an operation of the store: the next
//! turn starts when it has ended.

mod body;
mod future;
mod idle;
mod keep;
mod make;
mod service;
mod state;
mod watch;

pub use self::{
    body::TurnBody,
    future::ResponseFuture,
    make::{MakeFuture, MakeSession, SessionTarget},
    service::Session,
};
pub use crate::tokens::ContextBudget;
