//! Persists runs, so that suspended and abandoned runs can be resumed, also by another process.
//!
//! A run that waits for a reply may wait for days, and the reply may arrive at any process.
//! [`Suspend`] stores the state of the run before it emits the interrupt, finds the run by the
//! reply, and ensures that only one process resumes it. It also stores a run before its tools are
//! executed, so that another process can resume the run if this one dies.
//!
//! ```
//! use concentric_core::{AgentLayer, ChatRequest, Context, Error, Reply, ThreadId};
//! use concentric_layers::SuspendLayer;
//! use concentric_store::MemoryStore; // or `SqliteStore`
//! use concentric_test::{ScriptedModel, ScriptedTools};
//! use serde_json::json;
//! use std::sync::Arc;
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let store = Arc::new(MemoryStore::new());
//! let tools = ScriptedTools::new().asks("pay", "paid");
//! let model = ScriptedModel::new().tool_call("pay", json!({})).then().text("Done.");
//! let agent = ServiceBuilder::new()
//!     .layer(SuspendLayer::new(store))
//!     .layer(AgentLayer::new(tools.clone()))
//!     .service(model);
//!
//! let thread = || Context::builder().thread_id(ThreadId::new("thread_1")).build();
//! let request = ChatRequest::user("Pay them.").with_context(thread());
//! let answer = agent.clone().oneshot(request).await?.collect().await?;
//! let question = answer.finish.interrupts()[0].id.clone();
//!
//! // Later, possibly in another process: only the reply is needed.
//! let request = ChatRequest::replying(vec![Reply::approve(question)]).with_context(thread());
//! let answer = agent.oneshot(request).await?.collect().await?;
//! assert_eq!((answer.text().as_str(), tools.done()), ("Done.", 1));
//! # Ok(())
//! # }
//! ```
//!
//! # Run ids
//!
//! A run is stored by its [`Tenant`](concentric_core::store::Tenant), its conversation
//! ([`Context::thread_id`](concentric_core::Context::thread_id)) and an id that this layer makes
//! ([`RunKey::of`](concentric_core::store::RunKey::of)), which stays the same while other requests
//! continue the run. The id of the first request
//! ([`Context::run_id`](concentric_core::Context::run_id)) is stored beside it.
//!
//! # Repeated run ids
//!
//! Clients choose the ids of their requests and may reuse them, for example to retry a request. A
//! request without a `resume` whose id was already used in the same conversation of the same tenant
//! is handled as follows:
//!
//! | the run with that id | the request |
//! |---|---|
//! | is driven, by this process or another | fails with [`Conflict`](concentric_core::ErrorKind::Conflict), `run_live`, before a model is called. A run that another process drives and that has not executed a tool yet is not stored: in that case, the request fails before its own first tools |
//! | was abandoned by a process that died | fails in the same way, until the run is resumed and has ended |
//! | waits for replies: it has ended for its client | starts a new run; the waiting run may be [withdrawn](#withdrawn-interrupts) |
//! | has ended | starts a new run |
//!
//! Clones of one request are attempts of the same run, and may overlap.
//!
//! # When a run is stored
//!
//! | the run | is stored | if the store fails |
//! |---|---|---|
//! | calls no tool | never | |
//! | is about to execute its first tools | with a claim, which tools can read ([`RunClaim::of`](concentric_core::store::RunClaim::of)) | the run fails, and no tool is executed |
//! | is about to execute further tools | in its new state, with all calls marked as started | the run fails, no further tool is executed, and the run is abandoned: it is resumed from its last stored state |
//! | is interrupted before it has executed a tool, in a conversation of a [`ConversationLayer`](crate::ConversationLayer) | with a claim, before its turn is | the turn is stored when the run is resumed, if the run can be stored as waiting |
//! | is driven | with a renewed lease, every third of the [lease](SuspendLayer::lease), even if its body is not read | the run continues for four fifths of the lease, counted from before the last write or renewal that succeeded, and then fails, also if a renewal has no answer yet |
//! | was claimed by another process, or could not be driven for four fifths of the lease, for example because its process was stopped | | the run is cancelled, its tools are dropped before they continue, and its last item is an error ([`Conflict`](concentric_core::ErrorKind::Conflict), `stale_claim`) |
//!
//! A state that cannot be stored because it is too large or nested too deeply fails with
//! [`TooLarge`](concentric_core::ErrorKind::TooLarge), `unwritable`, and is not retried. A run that
//! is interrupted while the store's limit of waiting runs is reached fails with
//! [`Conflict`](concentric_core::ErrorKind::Conflict), `too_many_waiting`, and has ended; see
//! [withdrawn interrupts](#withdrawn-interrupts).
//!
//! # The task
//!
//! Until a run is stored, it is driven by the polls of its future and body; from then on, and so when it executes its
//! first tools, by a task on tokio's runtime. Its lease is therefore renewed however slowly its consumer reads.
//!
//! | event | effect |
//! |---|---|
//! | the consumer is [64 events](SuspendLayer::buffer) behind | the run waits for it and renews its lease; independent work, such as a blocking tool, continues |
//! | the same, and the run is cancelled or its deadline passes | the run ends without waiting |
//! | the future or the body is dropped | the task is stopped, and the run with it |
//! | the run panics | the last item is an error ([`Other`](concentric_core::ErrorKind::Other)), and the panic is logged |
//! | the runtime shuts down | the last item is an error ([`Cancelled`](concentric_core::ErrorKind::Cancelled), `task_stopped`), and the run can be resumed after its lease expires |
//! | there is no runtime | the run is driven by polls, and its lease is renewed only then: it fails if it is not polled for four fifths of the lease |
//!
//! The task inherits the [span](tracing::Span) and the subscriber of the poll that started it.
//!
//! # Cancellation while the store is accessed
//!
//! | the run waits for the store | effect of a cancellation or a passed deadline |
//! |---|---|
//! | before it starts, to find and claim a run | fails with [`Cancelled`](concentric_core::ErrorKind::Cancelled) or [`Timeout`](concentric_core::ErrorKind::Timeout), and the replies can be sent again; a claim that the store still makes is released |
//! | before a round of tools | the round is not executed, and the run ends accordingly |
//! | to record the end of the run | the wait continues, for 30 seconds in total; after that, the last item is an error, and the run can be resumed after its lease expires |
//!
//! Until the run starts, the server's response head is [held
//! back](concentric_core::Context::hold_head), so that a refused request is answered with an error
//! status.
//!
//! # The ends of a body
//!
//! The body yields its last item after the store has recorded it.
//!
//! | the body | the run |
//! |---|---|
//! | finishes with [`Interrupted`](concentric_core::Outcome::Interrupted) and a state | waits in that state |
//! | the same, and the state cannot be stored | is interrupted again when it is resumed; the item is an error, and the interrupt is not emitted. If no attempt can store the state, the run has ended |
//! | finishes otherwise | has ended; if that cannot be stored, the item is an error |
//! | fails, or ends early | has ended |
//! | is dropped, or its future is | has ended: dropping stops the run, as without this layer |
//! | fails, because the store does not write its state before further tools | is abandoned, unless it waits as before (below) |
//! | fails, and the store does not write the turn of its conversation ([`ConversationLayer`](crate::ConversationLayer)) | is abandoned: it is resumed, and then stores its turn |
//! | fails, ends early or is dropped before the resumed run had effects | waits as before; the replies can be sent again |
//! | the same, and the run was abandoned before | is abandoned again, unless [the error](#errors-of-recovered-runs) ends it |
//! | is lost with its process | can be resumed after its lease expires, by the next reply, by [`SuspendLayer::claim_abandoned`], or by a [`Sweeper`]; accepted replies are kept |
//!
//! The [outcome](concentric_core::store::RunStore::end) of a run that has ended is stored with it: that of its
//! [`Finish`](concentric_core::Finish), the kind of its error, or
//! [`Truncated`](concentric_core::ErrorKind::Truncated) if it ended early. A run that is dropped is
//! [aborted](concentric_core::Outcome::Aborted), for the reason of its cancellation or as
//! [disconnected](concentric_core::CancelReason::Disconnected).
//!
//! A resumed run has had effects if a tool that may have side effects was started after the replies
//! were accepted ([`Context::effect_count`](concentric_core::Context::effect_count)), or if its
//! error [reports](concentric_core::Error::effects) more effects than its stored state did.
//! Read-only tools and model output do not count, because they can be repeated. A call of another
//! tool counts when its function, or a layer around it, is about to be called, after the gates have
//! decided and the ledger has recorded the start of the effect. A reply whose decision is
//! [remembered](concentric_core::store::Decisions) counts before the decision is stored, because
//! other calls depend on it from then on. The calls of a round service other than `Toolset` that
//! does not [count effects](concentric_core::ToolRound::counts_effects) count when they are passed
//! to the service. A [session](crate::session) uses the same rules.
//!
//! An accepted reply is therefore durable: between the claim and the start of a tool, it survives a
//! crash of the process, and if the consumer disconnects, the interrupt waits again. If the
//! consumer disconnects later, or while the decision is being stored for other calls, the run has
//! ended and the stored decision remains. A run that must outlive its consumer needs a
//! [`DetachLayer`](crate::detach::DetachLayer) outside this layer. The end of a dropped run is
//! reported to the store by a task on tokio's runtime; without a runtime, the lease expires.
//!
//! # Errors of recovered runs
//!
//! A run whose process died is resumed until it has an outcome, because another attempt may have
//! what this one lacks. It ends only with an error that every attempt would return, and only if
//! this attempt had no effects:
//!
//! | [`ErrorKind`](concentric_core::ErrorKind) | the run |
//! |---|---|
//! | `InvalidRequest`, `ContextWindow`, `ContentFilter`, `TooLarge`, `Tool`, `Conflict` | ends: its content or its replies are invalid |
//! | `Configuration`, `Authentication`, `Permission`, `NotFound`, `Quota` | stays abandoned: this process lacks a tool, a key, a model or credit |
//! | `RateLimited`, `Overloaded`, `Server`, `Timeout`, `Connection`, `Truncated`, `Protocol` | stays abandoned: the failure is temporary |
//! | `Cancelled`, `Other`, future kinds | stays abandoned, because the error may not recur |
//!
//! A run may therefore fail each time it is resumed: monitor these errors. A run whose processes die
//! without an error is quarantined after [5 takeovers](concentric_core::store::MAX_TAKEOVERS) between two
//! writes of its state, because it may be the reason. A reply to it fails with
//! [`Conflict`](concentric_core::ErrorKind::Conflict), `run_quarantined`, until an operator
//! [releases](concentric_core::store::RunStore::release) it.
//!
//! # Requested cancellation
//!
//! [`RunStore::cancel`](concentric_core::store::RunStore::cancel) cancels a run that any process drives:
//! its next renewal, after at most a third of the lease, cancels the run
//! ([`CancelReason::User`](concentric_core::CancelReason::User)). A process that takes the run over
//! cancels it as well.
//!
//! # After a crash
//!
//! *Calls.* A round is stored before it starts, so after a crash it is unknown which of its calls
//! have started. Without a ledger (`Toolset::ledger` of `concentric-tools`), all calls of the round
//! are indeterminate, except those of read-only tools and of tools that may be executed again; the
//! resumed run is interrupted to find out their outcomes. A ledger records each call before it
//! takes effect: then only calls that were started and not finished are indeterminate, calls that
//! were not started are executed, and finished calls keep their outcomes.
//!
//! *The answer.* The run has ended in the store before its last item is yielded. If the process
//! dies in between, the ledger contains the outcomes of the tools, the last item is lost, and the
//! next request fails with `run_ended`. A layer between this one and the agent can store the answer
//! before it yields [`Finish`](concentric_core::Event::Finish), and thus before the run has ended:
//! if the process dies there, the run is resumed and answers again. A
//! [`ConversationLayer`](crate::ConversationLayer) over the same store writes the answer and the end of the run
//! at once.
//!
//! # How replies find a run
//!
//! A request resumes a stored run if its [`resume`](concentric_core::ChatRequest::resume) contains
//! no state:
//!
//! | the reply is to | result |
//! |---|---|
//! | an open interrupt | the run is resumed, with the stored transcript; the client's history is ignored |
//! | an open interrupt, but is invalid, expired, or incomplete | [`InvalidRequest`](concentric_core::ErrorKind::InvalidRequest), with the code of the [`ReplyError`](concentric_core::ReplyError); nothing is executed, and the run still waits |
//! | an interrupt with an accepted reply | [`Conflict`](concentric_core::ErrorKind::Conflict), `already_resumed` |
//! | several interrupts of the run, of which some are open | the run is resumed with the replies to these; `already_resumed` if another one contradicts the accepted reply of the current round |
//! | an interrupt of a run that has ended, or that the store has purged | [`Conflict`](concentric_core::ErrorKind::Conflict), `run_ended` |
//! | an unknown interrupt, with a history ([`ResumePoint::UnverifiedHistory`](concentric_core::ResumePoint::UnverifiedHistory)) | passed to the agent, which requires an approval token |
//! | an unknown interrupt, without a history | [`NotFound`](concentric_core::ErrorKind::NotFound), `run_not_found` |
//! | nothing, because there are no replies | the waiting or abandoned run of the conversation is resumed, and is interrupted again; `ambiguous_resume` if there are several |
//!
//! Interrupts of several runs of a conversation may have the same id, if a client chooses it; the newest run is resumed.
//! A caller that has shown one of them to a person adds its [`RunKey`](concentric_core::store::RunKey) to the
//! [extensions](concentric_core::Context::extensions_mut) of the request's context: then replies that would resume
//! another run fail with [`Conflict`](concentric_core::ErrorKind::Conflict), `already_resumed`.
//!
//! Results of the client's own tools need no reply: the layer reads them from the history.
//!
//! | the history | effect |
//! |---|---|
//! | is declared to be open ([`ResumePoint::UnverifiedHistory`](concentric_core::ResumePoint::UnverifiedHistory)) | the results in it that the run waits for are added to the replies |
//! | ends with results of the client's tools, without a `resume` | the run that requested them is resumed with them; its other interrupts are emitted again |
//! | the same, and the run has ended or is unknown | a new run starts |
//! | ends otherwise, without a `resume` | a new run starts. The store is read only to check whether a [run with its id](#repeated-run-ids) is live, and for runs that the request [withdraws](#withdrawn-interrupts) |
//!
//! More than 256 replies or client tool results are refused with
//! [`InvalidRequest`](concentric_core::ErrorKind::InvalidRequest), `too_many_replies`.
//!
//! The response of a resumed run has the [`OpenRound`](concentric_core::OpenRound) that it continues, if there is
//! one, in its [extensions](concentric_core::ChatResponse::extensions), for a layer whose consumer does not have the
//! calls.
//!
//! A request that contains the state itself is treated as a new run. If an attempt fails before the
//! run is claimed, the replies are returned to the request, so that a retry layer around this one
//! can use them.
//!
//! # Messages that come with replies
//!
//! A user may send a message with a reply
//! ([`Resume::with_messages`](concentric_core::Resume::with_messages)). The message is stored in
//! the waiting run's state before the replies are accepted
//! ([`RunStore::amend`](concentric_core::store::RunStore::amend)), and joins the transcript when
//! the open round is closed, before the model is called. If the request fails in between, or its
//! process dies, the run already has the message; a repeated request with the same message id adds
//! nothing. A run that waits before its end, or in an agent in place of its model, accepts no
//! message: the request fails with [`InvalidRequest`](concentric_core::ErrorKind::InvalidRequest),
//! `unexpected_message`, and the error names the message.
//!
//! # Withdrawn interrupts
//!
//! A user may send a new message instead of replies. With
//! [`OpenInterrupts::Withdraw`](concentric_core::store::OpenInterrupts::Withdraw) in its context, a
//! request without a `resume` that ends with a user message ends the waiting runs of its
//! conversation and tenant before it begins its own run. A late reply to one of them fails with
//! `run_ended`. Ignored interrupts therefore do not add up to the store's limit. `AgUiLayer` of
//! `concentric-http` inserts the value; without it, runs of one conversation wait side by side.
//!
//! | at the same time | the waiting run |
//! |---|---|
//! | a reply resumes it | continues if it was claimed first; otherwise the reply fails with `run_ended` |
//! | it is driven, by this process or another | continues, and may be interrupted again |
//! | its process died | can still be resumed, and may be interrupted again |
//! | the store fails | still waits, and the request fails before a model is called |
//! | the new run fails | has ended all the same |
//!
//! # Interrupts that did not arrive
//!
//! A client may miss the interrupts of its run because its connection was lost, and a run that is
//! recovered after a crash has no client. With
//! [`OpenInterrupts::Show`](concentric_core::store::OpenInterrupts::Show) in its context, a request
//! without a `resume` receives these interrupts:
//!
//! | the newest user message of the request | the request |
//! |---|---|
//! | is in the transcript of a waiting run | is answered with the interrupts in the state of that run: nothing is called, claimed or written |
//! | is in the transcript of a run whose process died | resumes that run without a reply, so that it is interrupted again |
//! | is in the transcript of a run that is driven, or is not in that of a waiting run while another one is driven | fails with [`Conflict`](concentric_core::ErrorKind::Conflict), `already_resumed` |
//! | is in no such transcript, and no assistant message follows it | begins a run, and [withdraws](#withdrawn-interrupts) the open interrupts |
//! | is in no such transcript, and an assistant message follows it | fails with [`NotFound`](concentric_core::ErrorKind::NotFound), `run_not_found` |
//! | does not exist | is answered with the interrupts of the conversation's run, or resumes that run, as above; or fails with `run_not_found` |
//!
//! Messages are compared by id. One transcript is read, however many runs are open: that of the
//! conversation's newest waiting run, or that of the run whose lease ends last if none waits. If it
//! cannot be read, the request fails. Any number of requests may read the same interrupts at once,
//! and none of them delays a reply. The answer is a single
//! [`Finish`](concentric_core::Event::Finish).
//!
//! # Place in the stack
//!
//! - Directly outside [`AgentLayer`](concentric_core::AgentLayer), once per run. A layer between
//!   the two receives the stored transcript, and may end the run before the store is updated.
//! - Layers that show events to other consumers go outside, so that they show no interrupt that
//!   cannot be replied to.
//! - Layers that authenticate the [`Tenant`](concentric_core::store::Tenant) go outside, and so
//!   does a [`DetachLayer`](crate::detach::DetachLayer).
//!
//! In an agent that is used as a tool, the layer has no effect, because the calling agent stores
//! the run. Inside a loop, inside another `SuspendLayer`, or around a `DetachLayer`, the first call
//! fails with [`Configuration`](concentric_core::ErrorKind::Configuration) and names both layers.
//!
//! The layer may wrap a model without a loop, for example one that a router calls instead of an
//! agent. Such a call has no tools and no interrupts, so it is not stored. A router must send a
//! request with a [`resume`](concentric_core::ChatRequest::resume) to the agent, because a model
//! without a loop ignores the replies.
//!
//! The other parts of a request (system instructions, client tools, options) are not stored; the
//! request that resumes the run must contain them.
//!
//! See the [recommended order](crate::order).
//!
//! # Backpressure
//!
//! The service is always ready. The future waits for the inner service once it is known that it
//! will be called.
//!
//! # Cost
//!
//! Each run has a boxed service, a boxed future and a boxed body. A run that calls no tool has no task and needs one read of the store, or two if it
//! withdraws interrupts.

mod body;
mod claim;
mod future;
mod layer;
mod live;
pub mod policy;
mod recover;
mod run;
mod service;
mod sweep;
mod take_up;
mod task;

pub use self::{
    body::SuspendBody, future::ResponseFuture, layer::SuspendLayer, service::Suspend,
    sweep::Sweeper,
};
