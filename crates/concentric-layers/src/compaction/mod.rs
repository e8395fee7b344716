//! A layer that summarises the older part of a conversation before it exceeds the model's context window.
//!
//! ```
//! use concentric_core::{AgentLayer, BoxModel};
//! use concentric_layers::{CompactionLayer, compaction::Trigger};
//! use concentric_tools::Toolset;
//! use tower::ServiceBuilder;
//!
//! fn agent(tools: Toolset, model: BoxModel, small_model: BoxModel) -> BoxModel {
//!     BoxModel::new(
//!         ServiceBuilder::new()
//!             .layer(AgentLayer::new(tools))
//!             .layer(CompactionLayer::new(small_model, 200_000).when(Trigger::fraction(0.8)))
//!             .service(model),
//!     )
//! }
//! # let _ = agent;
//! ```
//!
//! # What the model receives
//!
//! | part | |
//! |---|---|
//! | the first turns ([`head`](CompactionLayer::head)) | unchanged |
//! | the turns after them | one message of this layer with a summary |
//! | the newest turns, up to [`keep`](CompactionLayer::keep) tokens, at least the current exchange | unchanged |
//!
//! A round, that is, the tool calls of a message and their results, is one turn, so a call is never without its
//! result, and turns that are kept have all of their parts, with signatures. The current exchange begins with
//! the user's newest message, and with earlier ones that the model had not answered. If it is too long by itself,
//! its older rounds are summarised as well; its messages of the user and its last round stay.
//!
//! A later compaction summarises the earlier summary with the turns since, so there is one summary. Media are
//! named, not sent, to the model that summarises, and reasoning is left out.
//!
//! # When it compacts
//!
//! | cause | |
//! |---|---|
//! | a [`Trigger`] holds before a call | by default at 85 % of the window. The tokens are the larger of the counter's estimate and of the usage that the provider reported for the last call, with the turns since |
//! | the model fails with [`ContextWindow`](concentric_core::ErrorKind::ContextWindow) before its answer began | compacts to 40 % of the window, and calls the model once more, if the conversation has changed. Once per call, and not if the failed call may have had [effects](concentric_core::Error::effects); both count as [attempts](concentric_core::Error::attempts); [`no_recovery`](CompactionLayer::no_recovery) disables it |
//! | [`request()`] was called, such as by a tool | before the next call of the run |
//!
//! The window is that of [`new`](CompactionLayer::new), or a
//! [`ContextBudget`](crate::tokens::ContextBudget), if a layer outside provides one.
//!
//! # The conversation is kept
//!
//! The conversation of the run, its store and its consumer keep all turns: the summary is a view. It is a durable
//! slot of the thread, `concentric/compaction`, with a digest of the turns that it covers. Later steps, resumed runs
//! and later runs of the thread use it as long as these turns are the same. A nested run has its own, since it
//! has another conversation.
//!
//! With [`commit`](CompactionLayer::commit), the conversation of the run is rewritten instead, for a store that must
//! shrink. The loop emits [`TranscriptReplaced`](concentric_core::Event::TranscriptReplaced). No layer outside this one
//! may change the conversation of the request then.
//!
//! Each compaction emits a custom event `concentric.compacted` with the value
//! `{"turns": n, "tokens_before": n, "tokens_after": n, "summarised": true}`; `turns` is the number of
//! leading turns that are not sent as they are.
//!
//! # The summary
//!
//! A call of the model given to [`new`](CompactionLayer::new), in a [child](concentric_core::Context::child)
//! of the run: the deadline and the cancellation of the run apply, and its usage is recorded with that of the run.
//! Wrap the model in [`BudgetPlugin::model`](crate::BudgetPlugin::model) to charge it. It receives the turns as a
//! JSON string and no tools.
//!
//! If it fails, exceeds its [time](CompactionLayer::timeout), ends otherwise than by
//! [`Stop`](concentric_core::FinishReason::Stop), is empty, or is not shorter than the turns, these turns are left out without a summary in this run, and a `WARN` is logged. The next attempt of the run is made
//! when the trigger is exceeded by a further 10 %.
//!
//! # Hooks
//!
//! [`before`](CompactionLayer::before) may skip a compaction or replace the summary, and receives the turns, such as
//! to store them; [`after`](CompactionLayer::after) receives a [`Report`]. A hook that panics is ignored.
//!
//! # A tool for the model
//!
//! ```
//! use concentric_core::Context;
//! use concentric_layers::compaction;
//! use concentric_tools::{NoArguments, ToolError, tool_with_context};
//!
//! let compact = tool_with_context(
//!     "compact_conversation",
//!     "Summarises the earlier conversation to free space. Call it when a task is completed.",
//!     |NoArguments {}, context: Context| async move {
//!         compaction::request(&context)?;
//!         Ok::<_, ToolError>("The conversation will be summarised before the next step.")
//!     },
//! );
//! # let _ = compact;
//! ```
//!
//! # Place in the stack
//!
//! Inside the loop, around [`ClearToolResultsLayer`](crate::ClearToolResultsLayer),
//! [`TrimLayer`](crate::TrimLayer), retries and fallbacks: it receives the whole conversation, and the
//! final error of the layers inside.
//!
//! Around an agent, it would compact once for each run, and an overflow would repeat the run from its start.
//!
//! The model that summarises reads the conversation as this layer receives it: what a
//! [`GuardLayer`](crate::GuardLayer) inside this one removes for the main model, it gets, and the summary may keep.
//! Put a guard around that model as well.
//!
//! See the [recommended order](crate::order).
//!
//! # Backpressure
//!
//! The layer is always ready. Its future waits for the summary, and for the readiness of a clone of the inner
//! service.
//!
//! # Errors
//!
//! [`ContextWindow`](concentric_core::ErrorKind::ContextWindow) with the code [`NO_PROGRESS`], with the model's
//! error as its source, if the model rejects a conversation of which nothing can be summarised. Those of the
//! inner service pass unchanged. [`Cancelled`](concentric_core::ErrorKind::Cancelled) and
//! [`Timeout`](concentric_core::ErrorKind::Timeout) if the run is cancelled or its deadline passes during the
//! summary or the hook before it.
//!
//! # Cancel safety
//!
//! Dropping the future drops the call that summarises. Nothing is stored then.

mod call;
mod future;
mod hooks;
mod layer;
mod plan;
mod render;
mod service;
mod state;
mod summary;
mod trigger;

pub use self::{
    future::ResponseFuture,
    hooks::{Cause, CompactionDecision, Plan, Report},
    layer::CompactionLayer,
    service::Compaction,
    state::request,
    trigger::Trigger,
};
pub use crate::window::WindowBody;

/// The [code](concentric_core::Error::code) of an error if nothing of a rejected conversation can be
/// summarised.
pub const NO_PROGRESS: &str = "compaction_no_progress";

/// The name of the author of summaries.
const NAME: &str = "concentric/compaction";
