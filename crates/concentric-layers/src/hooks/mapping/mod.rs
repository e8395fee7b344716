//! The hooks of other frameworks, and what is here in their place.
//!
//! Of [TanStack AI](#tanstack-ai), [HPD-Agent](#hpd-agent), [Alloy](#alloy), [Crux](#crux) and
//! [LangChain](#langchain), hook by hook; below each table are examples that run.
//!
//! Three things are different for all of them:
//!
//! - Where a hook stands says how long a change lasts. What [`before_run`] changes holds for the run;
//!   what [`before_model`] changes holds for one model call, and the next one starts again from the
//!   conversation. What is to stay in the conversation is said by [`before_step`].
//! - A run has one end, and one method for it: [`after_run`] is called exactly once, and is told which
//!   end it was.
//! - A method of [`Hooks`] decides whether a model is called, and sees what it answers. What changes
//!   the answer, or stands around a call, is a layer: [`map_events`] or a [`Transform`] for events,
//!   [`from_fn`] and [`tool_from_fn`] for calls.
//!
//! The places are those of [`HooksLayers`]: the run, outside of the loop; the steps, between its model
//! calls; the model, inside of it; the tools. [`AgentHooks::hooks`] takes one value to all of them; it
//! is there for an `AgentLayer` of a [`Toolset`], for all calls, and declares no capabilities. For
//! other tools, for some calls only, or in [`Layers`], add the layers of [`HooksLayers`] one by one.
#![doc = include_str!("tanstack.md")]
#![doc = include_str!("hpd.md")]
#![doc = include_str!("alloy.md")]
#![doc = include_str!("crux.md")]
#![doc = include_str!("langchain.md")]
//!
//! [`Hooks`]: super::Hooks
//! [`HooksLayers`]: super::HooksLayers
//! [`AgentHooks::hooks`]: super::AgentHooks::hooks
//! [`Summary::usage`]: super::Summary::usage
//! [`RunFlow::Answer`]: super::RunFlow::Answer
//! [`ModelFlow::Answer`]: super::ModelFlow::Answer
//! [`before_run`]: super::Hooks::before_run
//! [`event`]: super::Hooks::event
//! [`step_started`]: super::Hooks::step_started
//! [`step_finished`]: super::Hooks::step_finished
//! [`round_finished`]: super::Hooks::round_finished
//! [`after_run`]: super::Hooks::after_run
//! [`before_step`]: super::Hooks::before_step
//! [`before_round`]: super::Hooks::before_round
//! [`before_finish`]: super::Hooks::before_finish
//! [`before_model`]: super::Hooks::before_model
//! [`model_event`]: super::Hooks::model_event
//! [`after_model`]: super::Hooks::after_model
//! [`before_call`]: super::Hooks::before_call
//! [`after_call`]: super::Hooks::after_call
//! [`on_call_error`]: super::Hooks::on_call_error
//! [`session_started`]: super::Hooks::session_started
//! [`session_ended`]: super::Hooks::session_ended
//! [`map_events`]: concentric_core::layers::map_events()
//! [`Transform`]: concentric_core::layers::Transform
//! [`from_fn`]: concentric_core::layers::from_fn()
//! [`tool_from_fn`]: concentric_core::layers::tool_from_fn
//! [`Capability`]: concentric_core::Capability
//! [`Declares`]: concentric_core::Declares
//! [`Layers`]: concentric_core::Layers
//! [`Slot`]: concentric_core::state::Slot
//! [`Context::cancel`]: concentric_core::Context::cancel
//! [`Context::defer`]: concentric_core::Context::defer
//! [`Context::emit`]: concentric_core::Context::emit
//! [`Context::ask`]: concentric_core::Context::ask
//! [`Error::halted`]: concentric_core::Error::halted
//! [`ErrorKind::ContextWindow`]: concentric_core::ErrorKind::ContextWindow
//! [`output_schema`]: concentric_core::ChatOptions::output_schema
//! [`BeforeStep`]: concentric_core::agent::BeforeStep
//! [`BeforeRound`]: concentric_core::agent::BeforeRound
//! [`BeforeFinish`]: concentric_core::agent::BeforeFinish
//! [`StepView::reply`]: concentric_core::agent::StepView::reply
//! [`StepView::message`]: concentric_core::agent::StepView::message
//! [`Flow`]: concentric_tools::Flow
//! [`set_arguments`]: concentric_tools::BeforeCall::set_arguments
//! [`Approval`]: concentric_tools::Approval
//! [`Approval::watch`]: concentric_tools::Approval::watch
//! [`scoped`]: concentric_tools::ToolHooksLayer::scoped
//! [`Toolset`]: concentric_tools::Toolset
//! [`Toolset::prepare`]: concentric_tools::Toolset::prepare
//! [`StopWhen`]: crate::stop::StopWhen
//! [`ErrorLimit`]: crate::stop::ErrorLimit
//! [`OutputConstraint`]: crate::stop::OutputConstraint
//! [`Sessions::hooks`]: crate::session::Sessions::hooks
//! [`Session::fork`]: crate::session::Session::fork
