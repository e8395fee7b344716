//! Messages for a run that runs.
//!
//! A user thinks of something while the agent is at work: [`Steering`] puts it into the run, before the
//! next model call, or when the run would end. Nothing that is running is interrupted by it.
//!
//! ```
//! use concentric_core::{AgentLayer, ChatRequest, Error, Message, ToolOutcome, agent::StepGates};
//! use concentric_layers::Steering;
//! use concentric_test::{ScriptedModel, ScriptedTools};
//! use serde_json::json;
//! use tower::{Layer, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let steering = Steering::new(8);
//!
//! // Elsewhere, while the agent searches.
//! let user = steering.clone();
//! let tools = ScriptedTools::new().tool("search", move |_| {
//!     let said = user.at_next_step(Message::user("Only this year's."));
//!     async move { said.map_or(ToolOutcome::failed("full"), |()| ToolOutcome::done("42")) }
//! });
//! # let model = ScriptedModel::new().tool_call("search", json!({})).then().text("Done.");
//! let agent = AgentLayer::new(tools).layer(model.clone());
//!
//! let mut request = ChatRequest::user("Search.");
//! request.context.own_mut().insert(StepGates::new().gate(steering.gate()));
//! agent.oneshot(request).await?.collect().await?;
//!
//! let second = model.request(1).transcript;
//! assert_eq!(second.last().unwrap().as_message().text(), "Only this year's.");
//! # Ok(())
//! # }
//! ```
//!
//! # When what is said
//!
//! | a message | is said |
//! |---|---|
//! | [at the next step](Steering::at_next_step) | before the next model call; if the run would end first, then, and it makes another step |
//! | [when idle](Steering::when_idle) | when the run would end, and it makes another step |
//! | of either kind, when the run is at its step limit | then, and the run ends; its history has the message |
//! | of either kind, when another gate finishes or halts the run at that moment | then; its history has the message |
//! | of either kind, when the run would end, and a gate before this one has it go on | at the next step, or when it would end again |
//! | of either kind, when the run is interrupted, cancelled or fails, or ended before | not: it stays in the handle |
//!
//! Messages are said in the order in which they came. One that has an id keeps it, and is known by it:
//! no two may have the same.
//!
//! # Place in the stack
//!
//! Before the end, the first gate that has the run go on is the last that is asked
//! ([`StepGate`](concentric_core::agent::StepGate)). The gates of one run are asked before those of its
//! agent, and this one goes first among them: so a message that comes as the answer ends is answered
//! with all tools, and only then is a typed answer asked for, which takes one more call without tools,
//! or the answer judged by an `OutputConstraint`. What comes while a typed answer is written is
//! answered by another value. A steering gate behind one of these fails each run with
//! [`Configuration`](concentric_core::ErrorKind::Configuration).
//!
//! # Nothing is lost
//!
//! A message leaves the handle when it was seen in the run's conversation. What a run did not come to
//! say is said by the next run that the handle is given to, such as the one that goes on after an
//! interrupt, or is [taken back](Steering::take_back).
//!
//! # One run at a time
//!
//! A handle has one gate that counts, the last one made; a gate is for one run, by
//! [`StepGates`](concentric_core::agent::StepGates), and not for all runs of an agent. A retry of the
//! run's request is the same run. An agent whose runs follow one another, as that of a session, may
//! have the gate itself; of two runs at once, the one that began first fails at its next step with
//! [`Configuration`](concentric_core::ErrorKind::Configuration).

mod gate;
mod handle;

pub use self::{
    gate::SteeringGate,
    handle::{SteerError, Steering},
};
