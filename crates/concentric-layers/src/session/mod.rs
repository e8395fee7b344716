//! A conversation: an agent with what was said so far, one turn at a time.
//!
//! [`Sessions`] makes [`Session`]s of an agent: it is a tower `MakeService`. A session is again a
//! service from a [`ChatRequest`](concentric_core::ChatRequest) to an answer. What a request says is
//! put behind what was said before, and what comes of it is what the next one goes on with.
//!
//! ```
//! use concentric_core::{BoxModel, Error, ThreadId};
//! use concentric_layers::session::{SessionTarget, Sessions};
//! use tower::ServiceExt;
//!
//! async fn chat(agent: BoxModel) -> Result<(), Error> {
//!     let sessions = Sessions::new(agent).queue(4);
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
//! One turn runs at a time. Another one waits, if the [queue](Sessions::queue) has room, and fails
//! at once with [`ErrorKind::Overloaded`](concentric_core::ErrorKind::Overloaded) if not: with the
//! code `busy` if there is no queue, else `queue_full`. A turn is over when its body has ended or is
//! dropped, so who does not read an answer holds the next one up.
//!
//! | a turn | what the next one goes on with |
//! |---|---|
//! | finishes, is halted, comes to a limit, or is [cancelled](Session::cancel) while it runs | what was said, every round of it closed |
//! | is interrupted | it waits: only [replies](concentric_core::ChatRequest::replying) are taken now, or [`give_up`](Session::give_up) |
//! | fails, ends early, is dropped, or is cancelled or late while it waits for its turn | the history and the slots from before it |
//! | takes replies, and fails, ends early or is dropped before it has done anything | it waits as before: its replies came to nothing, and can be given again |
//! | the same, once it has done something | what was said before the turn that asked: nobody can reply to that any more |
//!
//! It has done something once a tool that may change anything was started since the replies were
//! taken ([`Context::effect_count`](concentric_core::Context::effect_count)), or its error
//! [says](concentric_core::Error::effects) more than was so when it waited. Read-only tools and what
//! a model has said do not count: they come anew. A call of another tool counts when its function, or
//! a layer around it, is about to be called; with a round service other than `Toolset`, once it is
//! handed to that. A reply whose decision is [remembered](concentric_core::store::Decisions) counts
//! before the decision is stored. [`SuspendLayer`](crate::suspend::SuspendLayer)
//! decides in the same way.
//!
//! A tool that had an effect in a turn that failed has had it; the error
//! [says so](concentric_core::Error::effects).
//!
//! # State
//!
//! The runs of a session have the [slots](concentric_core::state) of its conversation, and those of the
//! session. A turn changes a copy of the conversation's, which is put in place together with the
//! history: a turn that leaves no trace in the one leaves none in the other, and a turn that waits for
//! replies has its changes back when it continues. Slots of the session are changed at once.
//! [`fork`](Session::fork) copies the first, and shares the second;
//! [`reset`](Session::reset) forgets the first, and keeps the second.
//!
//! # Place in the stack
//!
//! Around an agent, outside of all that is once per run. A layer around the session sees the new
//! turns only. [`DetachLayer`](crate::detach::DetachLayer) goes around the session: inside, the run of
//! a turn that was dropped would continue while its place is given to the next one, so the run fails
//! with [`Configuration`](concentric_core::ErrorKind::Configuration) before anything is called. So does a
//! session inside of a [`SuspendLayer`](crate::suspend::SuspendLayer): both would keep the run that
//! waits; a session in the place of an agent's model, whose history would grow with each call; and a
//! session of a session, which would put the whole history behind its own at each turn.
//!
//! # Backpressure
//!
//! A session is always ready. A turn waits for its place in its future, until its run is cancelled
//! ([`Cancelled`](concentric_core::ErrorKind::Cancelled)) or late
//! ([`Timeout`](concentric_core::ErrorKind::Timeout)), and then for its agent's readiness.
//!
//! # Cancel safety
//!
//! Dropping the future or the body of a turn stops its run, gives its place to the next, and leaves
//! the history as it was before it; one that takes replies and has not done anything waits on.

mod body;
mod future;
mod make;
mod service;
mod state;
mod watch;

pub use self::{
    body::TurnBody,
    future::ResponseFuture,
    make::{MakeFuture, SessionTarget, Sessions},
    service::Session,
};
