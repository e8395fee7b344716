//! The hooks of other frameworks and their equivalents.
//!
//! Covers [TanStack AI](#tanstack-ai), [HPD-Agent](#hpd-agent), [Alloy](#alloy), [Crux](#crux) and
//! [LangChain](#langchain). Each table lists the hooks of one framework, followed by examples.
//!
//! Three differences apply to all of them:
//!
//! - The place of a hook determines how long a change lasts. Changes by [`before_run`] apply to the
//!   run; changes by [`before_model`] apply to one model call, and the next call starts from the
//!   conversation again. Use [`before_step`] to insert messages that stay in the conversation.
//! - A run has one end and one method for it: [`after_run`] is called exactly once and receives the
//!   kind of the end.
//! - [`Hooks`] decide whether a model is called, and observe its answer. To change the answer or to
//!   wrap a call, use a layer: [`map_events`] or a [`Transform`] for events, [`from_fn`] and
//!   [`tool_from_fn`] for calls.
//!
//! The tables name the places of [`HooksLayers`]: *run* (around the loop), *steps* (between model
//! calls), *model* (inside the loop) and *tools*. [`AgentHooks::hooks`] adds one value at all
//! places, for all calls of an `AgentLayer` with a [`Toolset`], and declares no capabilities. For
//! other tools, for some calls only, or in [`Layers`], add the layers of [`HooksLayers`]
//! individually.
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
//! [`map_events`]: crate::map_events()
//! [`Transform`]: crate::Transform
//! [`from_fn`]: crate::from_fn()
//! [`tool_from_fn`]: crate::tool_from_fn
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
