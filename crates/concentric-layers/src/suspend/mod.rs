//! A layer that has runs gone on with elsewhere: those that wait for somebody, and those whose
//! process died.
//!
//! A run that asks something may wait for days, and the reply comes to whichever process there is
//! then. [`Suspend`] writes the run down before its question is shown, finds it by the reply, and has
//! one process go on with it. A run whose tools run is written down, too, so that another process
//! takes it up if this one dies.
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
//! // Later, and maybe in another process: the reply is all there is.
//! let request = ChatRequest::replying(vec![Reply::approve(question)]).with_context(thread());
//! let answer = agent.oneshot(request).await?.collect().await?;
//! assert_eq!((answer.text().as_str(), tools.done()), ("Done.", 1));
//! # Ok(())
//! # }
//! ```
//!
//! # The names of runs
//!
//! A run is stored by its [`Tenant`](concentric_core::store::Tenant), its conversation
//! ([`Context::thread_id`](concentric_core::Context::thread_id)) and an id that this layer makes
//! ([`RunKey::of`](concentric_core::store::RunKey::of)), which stays the same while other requests
//! continue the run. The id of the first request
//! ([`Context::run_id`](concentric_core::Context::run_id)) is stored beside it.
//!
//! # A run id that repeats
//!
//! Clients choose the ids of their requests, and may send one twice: to retry a request, or by habit.
//! A request without a `resume` whose id was used in the same conversation of the same tenant is
//! treated so:
//!
//! | the run of that id | the request |
//! |---|---|
//! | is driven, by this process or another | fails with [`Conflict`](concentric_core::ErrorKind::Conflict), `run_live`, before a model is called. One that another process drives and that has run no tool yet is in no store: this request fails before its own first tools |
//! | was left by a process that died | fails in the same way, until the run is resumed and has ended |
//! | waits for replies: it has ended for its client | starts a new run; the waiting run may be [withdrawn](#withdrawn-interrupts) |
//! | is over | starts a new run |
//!
//! Clones of one request are attempts at the same run, and may overlap.
//!
//! # What the store is told
//!
//! | the run | the store is told | if that fails |
//! |---|---|---|
//! | calls no tool | nothing | |
//! | is about to run its first tools | of the run, and its claim is there for tools ([`RunClaim::of`](concentric_core::store::RunClaim::of)) | it fails, and no tool runs |
//! | is about to run the next tools | of its state, with all their calls as begun | the same |
//! | lives | so, every third of the [lease](SuspendLayer::lease), whether or not its body is read | it goes on until the lease is over, and fails then |
//! | has been taken over | | it is cancelled, its tools are dropped, and its last item is an error ([`Conflict`](concentric_core::ErrorKind::Conflict), `stale_claim`) |
//!
//! A state that no attempt can write, since it is too large or nested too deep, fails with
//! [`TooLarge`](concentric_core::ErrorKind::TooLarge), `unwritable`, and is not retried. A run that
//! asks something when as many wait as the store allows fails with
//! [`Conflict`](concentric_core::ErrorKind::Conflict), `too_many_waiting`, and is over; see
//! [withdrawn interrupts](#withdrawn-interrupts).
//!
//! # The task
//!
//! A run is driven where its future and body are polled until it is stored, and by a task on tokio's
//! runtime from then on. So its lease is renewed however slowly its consumer reads.
//!
//! | | |
//! |---|---|
//! | the consumer is [64 events](SuspendLayer::buffer) behind | the run waits for it, with its lease renewed; what runs by itself, such as a blocking tool, continues |
//! | the same, and the run is cancelled or its deadline is over | it ends without waiting |
//! | the future or the body is dropped | the task is stopped, and the run with it |
//! | the run panics | its last item is an error ([`Other`](concentric_core::ErrorKind::Other)), and the panic is logged |
//! | the runtime shuts down | the last item is an error ([`Cancelled`](concentric_core::ErrorKind::Cancelled), `task_stopped`), and the run can be resumed once its lease is over |
//! | there is no runtime | the run is driven where it is polled, and its lease is renewed only then |
//!
//! The task has the [span](tracing::Span) and the subscriber of the poll by which it was started.
//!
//! # Waits for the store
//!
//! | the run waits for the store | and is cancelled, or passes its deadline |
//! |---|---|
//! | before it begins: to find and to claim it | it fails with [`Cancelled`](concentric_core::ErrorKind::Cancelled) or [`Timeout`](concentric_core::ErrorKind::Timeout), and its replies can be given again; a claim that the store makes all the same is given back |
//! | before a round of tools | the round does not begin, and the run ends as such a run |
//! | to record what becomes of the run | the wait continues, for 30 seconds in all; then the last item is an error, and the run can be resumed once its lease is over |
//!
//! Before the run begins, the response head of its server is [held
//! back](concentric_core::Context::hold_head), so that a request that is refused is answered with a
//! status.
//!
//! # The ends of a body
//!
//! The last item is yielded when the store knows of it.
//!
//! | the body | the run |
//! |---|---|
//! | finishes with [`Interrupted`](concentric_core::Outcome::Interrupted) and a state | waits, in that state |
//! | the same, and that cannot be written | asks again when it is taken up; the item is an error, and no question is shown. If it is the state that no attempt can write, the run is over |
//! | finishes otherwise | is over; if that cannot be written, the item is an error |
//! | fails, or ends early | is over |
//! | is dropped, or its future is | is over, too: whoever hangs up stops the run, as without this layer |
//! | fails, ends early or is dropped before it has done anything, and it had waited | waits as before: its replies came to nothing, and can be given again |
//! | the same, and its process had died before | is left for the next to take up, unless [the error](#errors-of-a-run-that-was-taken-up) is its own |
//! | is lost with its process | is taken up when its lease is over, by the next reply or by [`abandoned`]; replies that were accepted count |
//!
//! It has done something once a tool that may change anything was started since the replies were
//! taken ([`Context::effect_count`](concentric_core::Context::effect_count)), or its error
//! [says](concentric_core::Error::effects) more than was so when it waited. Read-only tools and what
//! a model has said do not count: they come anew. A call of another tool counts when its function, or
//! a layer around it, is about to be called; until then the gates decide and the ledger records that
//! the effect is about to begin. A reply whose decision is
//! [remembered](concentric_core::store::Decisions) counts before the decision is stored, because other
//! calls depend on it from then on. A round service other than `Toolset` may not
//! [tell](concentric_core::ToolRound::counts_effects): its calls count once they are handed to it. A
//! [session](crate::session) decides in the same way.
//!
//! So an accepted reply is durable: from the claim until a tool starts, it is not lost when the process
//! crashes, and if the consumer leaves, the question waits again. If the consumer leaves after that,
//! or after its decision begins to be stored for other calls, the run is over, and the stored decision
//! holds. A run that must outlive its consumer needs a [`DetachLayer`](crate::detach::DetachLayer)
//! outside of this one. A run that is dropped is reported to the store by a task on tokio's runtime;
//! without a runtime, its lease runs out.
//!
//! # Errors of a run that was taken up
//!
//! One whose process died is gone on with until it has its outcome: what one process lacks, another
//! may have, or the same one once it is mended. Only an error that would come again wherever the run
//! goes on ends it, if this attempt has not done anything:
//!
//! | [`ErrorKind`](concentric_core::ErrorKind) | the run |
//! |---|---|
//! | `InvalidRequest`, `ContextWindow`, `ContentFilter`, `TooLarge`, `Tool`, `Conflict` | is over: what it says, or is replied to, is wrong, or too much |
//! | `Configuration`, `Authentication`, `Permission`, `NotFound`, `Quota` | is left: a tool, a key, a model or money is missing here |
//! | `RateLimited`, `Overloaded`, `Server`, `Timeout`, `Connection`, `Truncated`, `Protocol` | is left: something does not work now |
//! | `Cancelled`, `Other`, any to come | is left, since nothing says that it would come again |
//!
//! So a run may be taken up, and left, as often as [`abandoned`] is called: look at the errors.
//!
//! # What a crash leaves open
//!
//! *Calls.* A round is written down before it begins, so of a round whose process died nobody knows
//! which calls had started. Without a ledger (`Toolset::ledger` of `concentric-tools`) every call of
//! it that is not of a read-only tool, or of one that may run again, is in doubt, those too that
//! never started: somebody is asked what each has done. A ledger has each call written down as it is
//! about to take effect: then those are in doubt that had begun and were not done, the others run, and
//! what is done keeps its outcome.
//!
//! *The answer.* The run is over in the store before its last item is yielded. If the process dies
//! between the two, what the tools did stands in their ledger, the run is over, and nobody has its
//! last item: the next to ask is told `run_ended`. A layer between this one and the agent that writes the
//! answer away, before it hands [`Finish`](concentric_core::Event::Finish) on, does so before the run is over:
//! if the process dies there, the run is taken up, and answers again.
//!
//! # What a reply finds
//!
//! A request goes on with a run of the store if its [`resume`](concentric_core::ChatRequest::resume) holds no state:
//!
//! | the reply is to | comes out as |
//! |---|---|
//! | a question that waits | the run goes on, with the transcript that was written down; what the client says it was is not looked at |
//! | such a one, and is wrong, late, or one of several that must come together | [`InvalidRequest`](concentric_core::ErrorKind::InvalidRequest), with the code of the [`ReplyError`](concentric_core::ReplyError); nothing runs, and the run waits on |
//! | a question that was answered, or is just being | [`Conflict`](concentric_core::ErrorKind::Conflict), `already_resumed` |
//! | one of a run that is over, also because it waited for longer than the store keeps it | [`Conflict`](concentric_core::ErrorKind::Conflict), `run_ended` |
//! | nothing that the store knows, with a history ([`Suspended::Claimed`](concentric_core::Suspended::Claimed)) | it goes to the agent as it is, which asks for a proof |
//! | nothing that the store knows, without | [`NotFound`](concentric_core::ErrorKind::NotFound), `run_not_found` |
//! | nothing: there are no replies | the run of the conversation that waits, or whose process died, goes on, and asks again; `ambiguous_resume` if there are several |
//!
//! Results of the client's own tools need no reply: they stand in the history, and what the run waits
//! for is taken from there.
//!
//! | the history, beside what is replied to | |
//! |---|---|
//! | is claimed to be open ([`Suspended::Claimed`](concentric_core::Suspended::Claimed)) | the results in it that the run waits for go with the replies |
//! | ends with results of the client's tools, and there is no `resume` | the run that has asked for them goes on, with those that it waits for; what else it waits for is asked again |
//! | the same, and the run is over, or unknown | it is a conversation like any other |
//! | ends otherwise, and there is no `resume` | it is a conversation like any other, and the store is asked only whether a [run of its id](#a-run-id-that-repeats) is live, and for runs that the request [withdraws](#withdrawn-interrupts) |
//!
//! More than 256 replies, or results of the client's tools, are refused with
//! [`InvalidRequest`](concentric_core::ErrorKind::InvalidRequest), `too_many_replies`.
//!
//! A request that holds the state itself is treated as a new run. An attempt that fails before the run
//! is claimed gives the reply back, for a retry around this layer.
//!
//! # Messages that come with replies
//!
//! A user may send a message with a reply
//! ([`Resume::with_messages`](concentric_core::Resume::with_messages)). The message is stored in the
//! waiting run's state before the replies are accepted
//! ([`RunStore::amend`](concentric_core::store::RunStore::amend)), and joins the transcript when the open
//! round is closed, before the model is called. If the request fails in between, or its process dies, the
//! run already has the message; a repeated request with the same message id adds nothing. A run that waits
//! before its end, or in an agent in place of its model, accepts no message: the request fails with
//! [`InvalidRequest`](concentric_core::ErrorKind::InvalidRequest), `unexpected_message`, and the error
//! names the message.
//!
//! # Withdrawn interrupts
//!
//! A user may send a new message instead of replies. With
//! [`OpenInterrupts::Withdraw`](concentric_core::store::OpenInterrupts::Withdraw) in its context, a request
//! without a `resume` that ends with a user message ends the waiting runs of its conversation and tenant
//! before it begins its own run. A late reply to one of them fails with `run_ended`. Ignored interrupts
//! therefore do not add up to the store's limit. `AgUiLayer` of `concentric-http` inserts the value; without
//! it, runs of one conversation wait side by side.
//!
//! | at the same time | the waiting run |
//! |---|---|
//! | a reply resumes it | continues if it was claimed first; otherwise the reply fails with `run_ended` |
//! | it is driven, by this process or another | continues, and may ask again |
//! | its process died | can still be resumed, and may ask again |
//! | the store fails | still waits, and the request fails before a model is called |
//! | the new run fails | has ended all the same |
//!
//! # Interrupts that did not arrive
//!
//! A client whose connection was cut may have missed the interrupts of its run, and a run that was
//! recovered after a crash has no client when it asks. With
//! [`OpenInterrupts::Show`](concentric_core::store::OpenInterrupts::Show) in its context, a request without a
//! `resume` gets them:
//!
//! | the newest user message of the request | the request |
//! |---|---|
//! | is in the transcript of a waiting run | is answered with the interrupts in the state of that run: nothing is called, claimed or written |
//! | is in the transcript of a run whose process died | resumes that run without a reply, so that it asks again |
//! | is in the transcript of a run that is driven, or is not in that of a waiting run while another one is driven | fails with [`Conflict`](concentric_core::ErrorKind::Conflict), `already_resumed` |
//! | is in no such transcript, and no assistant message follows it | begins a run, and [withdraws](#withdrawn-interrupts) the open interrupts |
//! | is in no such transcript, and an assistant message follows it | fails with [`NotFound`](concentric_core::ErrorKind::NotFound), `run_not_found` |
//! | does not exist | is answered with the interrupts of the conversation's run, or resumes that run, as above; or fails with `run_not_found` |
//!
//! Messages are compared by id. One transcript is read, however many runs are open: that of the
//! conversation's newest waiting run, or that of the run whose lease ends last if none waits. If it cannot be
//! read, the request fails. Any number of requests may read the same interrupts at once, and none of them
//! delays a reply. The answer is a single [`Finish`](concentric_core::Event::Finish).
//!
//! # Place in the stack
//!
//! Outside [`AgentLayer`](concentric_core::AgentLayer), once per run, and next to it: what stands between the two sees the
//! transcript that was written down, and may end the run before the store is told. Outside it belong
//! layers that show events to somebody else, so that they show no question that nobody can answer,
//! and those that authenticate the [`Tenant`](concentric_core::store::Tenant). A [`DetachLayer`](crate::detach::DetachLayer)
//! belongs outside, too. In an agent that is a tool it does nothing: the run is the calling agent's.
//! Inside of a loop, of itself, or around a `DetachLayer`, the first call fails with
//! [`Configuration`](concentric_core::ErrorKind::Configuration) and names both layers.
//!
//! It may stand around a model without a loop, such as one that a router calls for small talk and an
//! agent for the rest. Such a call has no tools to run and no question to wait for, so nothing of it is
//! stored. A router must send a request with a [`resume`](concentric_core::ChatRequest::resume) to the
//! agent: a model without a loop ignores the replies.
//!
//! What a request says besides its transcript (the system's instructions, the client's tools,
//! options) is not written down, and comes with the request that goes on.
//!
//! # Backpressure
//!
//! It is always ready, and waits for the inner service when it knows that it is to be called.
//!
//! # Cost
//!
//! The inner service is erased once, when the layer is applied: its future and its body are in boxes.
//! A run that calls no tool has no task, and one read of the store; two if it withdraws questions.

mod body;
mod claim;
mod future;
mod layer;
mod live;
mod recover;
mod run;
mod service;
mod take_up;
mod task;

pub use self::{
    body::SuspendBody, future::ResponseFuture, layer::SuspendLayer, recover::abandoned,
    service::Suspend,
};
