//! Inserts messages into an active run.
//!
//! [`Steering`] inserts messages that a user sends while the agent works: before the next model
//! call, or when the run would end. It does not interrupt model calls or tool calls that are in
//! progress.
//!
//! ```
//! use concentric_core::{AgentLayer, ChatRequest, Error, Message, RunOverrides, ToolOutcome};
//! use concentric_layers::Steering;
//! use concentric_test::{ScriptedModel, ScriptedTools};
//! use serde_json::json;
//! use tower::{Layer, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let steering = Steering::new(8);
//!
//! // Sends a message while the tool call is in progress.
//! let user = steering.clone();
//! let tools = ScriptedTools::new().tool("search", move |_| {
//!     let queued = user.at_next_step(Message::user("Only this year's."));
//!     async move { queued.map_or(ToolOutcome::failed("full"), |()| ToolOutcome::done("42")) }
//! });
//! # let model = ScriptedModel::new().tool_call("search", json!({})).then().text("Done.");
//! let agent = AgentLayer::new(tools).layer(model.clone());
//!
//! let own = RunOverrides::new().step_gate(steering.gate());
//! let request = ChatRequest::user("Search.").with_overrides(own);
//! agent.oneshot(request).await?.collect().await?;
//!
//! let second = model.request(1).transcript;
//! assert_eq!(second.last().unwrap().as_message().text(), "Only this year's.");
//! # Ok(())
//! # }
//! ```
//!
//! # When messages are inserted
//!
//! | a message | is inserted |
//! |---|---|
//! | queued [for the next step](Steering::at_next_step) | before the next model call, or when the run would end, which adds a step |
//! | queued [for the idle run](Steering::when_idle) | when the run would end, which adds a step |
//! | of either kind, when the run reaches its step limit | at the end of the run, without a further step |
//! | of either kind, when another gate finishes or halts the run at that moment | at the end of the run, without a further step |
//! | of either kind, when an earlier gate adds a step before the run ends | at the next step, or when the run would end again |
//! | of either kind, when the run is interrupted, cancelled, has failed or has ended | not at all; the message stays in the handle |
//!
//! Messages are inserted in the order in which they were queued. They are identified by their ids,
//! so two messages must not have the same id. A message without an id is given one.
//!
//! # Place in the stack
//!
//! Before the end of a run, gates are called in order until one of them requires another step
//! ([`StepGate`](concentric_core::agent::StepGate)). The gates of the run are called before those
//! of its agent, and this gate must be the first among them. A message that arrives as the answer
//! ends is then answered with all tools before a typed answer is requested, which takes another
//! call without tools, or before an `OutputConstraint` judges the answer. A message that arrives
//! while the model writes a typed answer is answered with another value. A steering gate after one
//! of these gates fails every run with
//! [`Configuration`](concentric_core::ErrorKind::Configuration).
//!
//! # Delivery
//!
//! A message leaves the handle once it is seen in the run's conversation. A message that a run did
//! not insert is inserted by the next run that uses the handle, for example when an interrupted run
//! is resumed, or is [taken back](Steering::take_back).
//!
//! # One run at a time
//!
//! A handle has one active gate, the one created last. A gate is for one run
//! ([`RunOverrides::step_gate`](concentric_core::RunOverrides::step_gate)), not for all runs of an
//! agent. A retry of the run's request counts as the same run. An agent whose runs are sequential,
//! such as that of a session, may own the gate: `AgentLayer::new(tools).with(steering.clone())`
//! adds it as a [plugin](concentric_core::Plugin). If two runs use a gate concurrently, the one that started first fails
//! at its next step with [`Configuration`](concentric_core::ErrorKind::Configuration).

mod gate;
mod handle;

pub use self::handle::{SteerError, Steering};
