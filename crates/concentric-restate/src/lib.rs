//! Runs of agents as durable invocations of [Restate](https://restate.dev).
//!
//! [`RestateAgents`] serves an agent as a virtual object of Restate with one object per conversation: Restate
//! calls it, records the result of each model call and of each round of tool calls, and calls it again after a
//! crash, in this process or another. The stack of the agent is that of one machine, with two layers that have no
//! effect without an engine: `DurableLayer` and `DurableTools` of `concentric-layers`.
//!
//! ```no_run
//! use concentric_core::{BoxModel, Error};
//! use concentric_restate::RestateAgents;
//! use std::time::Duration;
//! use tokio::net::TcpListener;
//!
//! async fn serve(agent: BoxModel) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//!     let endpoint = RestateAgents::new("Clerk", agent)
//!         .deadline(Duration::from_secs(600))
//!         .endpoint()?;
//!     let listener = TcpListener::bind("127.0.0.1:9080").await?;
//!     endpoint.serve(listener, std::future::pending()).await?;
//!     Ok(())
//! }
//! # let _ = serve;
//! ```
//!
//! # Handlers
//!
//! The key of an object is the id of the conversation.
//!
//! | handler | input | result |
//! |---|---|---|
//! | `run` | [`RunInput`] | [`RunOutput`]; one run of a conversation at a time |
//! | `reply` | [`ReplyInput`] | [`RunOutput`] of the run that waited, at its end or at its next wait |
//! | `cancel` (shared) | – | whether an invocation drove a run, or awaited its replies |
//! | `state` (shared) | – | [`ThreadState`] |
//!
//! A wait ends the invocation: the state of the run is kept in the object, and `reply` is a new invocation that
//! resumes it. So a wait of days needs no process and no invocation, and continues with the code that is deployed
//! when the reply arrives.
//!
//! With [`Waits::Await`], the invocation of `run` awaits the replies instead, and has the end of the run as its result.
//! `reply` is shared then, and passes the replies by an awakeable, whose id is in the object's state and never leaves the
//! service. Two more handlers, which only the service can call, deliver the first of several replies to a wait (`deliver`)
//! and resume runs that no invocation awaits (`resume`).
//!
//! # What happens once
//!
//! | | |
//! |---|---|
//! | an answer of a model, once recorded | is not requested again |
//! | a tool call, once its round is recorded | is not executed again |
//! | a tool call whose process ended before that | as behind `SuspendLayer`: a ledger knows what it did; a read-only, idempotent or keyed tool is called again; otherwise the run is interrupted, and a person reports the outcome |
//! | a run with an idempotency key | has one invocation |
//!
//! A step has one attempt; retries are those of the stack, inside the step.
//!
//! # Determinism
//!
//! The code of a run is executed again after a crash. Its clock stands at the time of the last recorded step, its
//! ids and random numbers are derived from a seed that the journal has, and steps are made one after another. A layer
//! outside of the steps that decides by other means, such as the system's time, breaks the replay (`check_replay` of
//! `concentric-test` finds it); the invocation
//! then fails, and is retried until the code that began it is back. So does code that changed: the first record of
//! each invocation has the [version](RestateAgents::version) of the code, and other code refuses to continue it
//! before Restate compares the journals.
//!
//! # Limits
//!
//! | | default | |
//! |---|---|---|
//! | an invocation, or its part between two waits | 10 minutes | [`deadline`](RestateAgents::deadline), enforced inside each step |
//! | Restate's abort timeout | 30 minutes | [`abort_timeout`](RestateAgents::abort_timeout); [`endpoint`](RestateAgents::endpoint) refuses one that is not longer than the deadline, since Restate would discard the results of steps that are still made, and make them again |
//! | a record | 32 MiB | the step fails with [`UNWRITABLE`] |
//! | a value of the object's state | 8 MiB | the run fails with [`UNWRITABLE`], and the conversation stays as it was |
//!
//! # Errors in the journal
//!
//! The journal has the kind and the code of an error and a sentence of this library. The texts of providers and tools
//! are logged by the process.
//!
//! # Licence
//!
//! This crate and the SDK of Restate are free software. The server is under the Business Source License 1.1, which
//! forbids offering it to third parties as a service and becomes the Apache License 2.0 after four years.

mod agents;
mod client;
mod drive;
mod endpoint;
mod events;
mod journal;
mod live;
mod object;
mod shared;
mod wire;

pub use self::{
    agents::RestateAgents,
    client::{RestateClient, register},
    drive::UNWRITABLE,
    endpoint::RestateEndpoint,
    events::{Attached, RunEvents},
    shared::Waits,
    wire::{ReplyInput, RunFailure, RunInput, RunOutput, ThreadState},
};
