//! The recommended order of the layers in one stack.
//!
//! The first layer is the outermost one. Layers that a stack does not use are left out; the order of the others
//! is unchanged. The example `production` of the repository and its test
//! `application` have most of them.
//!
//! # Once per run, around the agent
//!
//! | layer | its place |
//! |---|---|
//! | `AgUiLayer`, of `concentric-http` | outermost: every outcome becomes a terminal event for the client |
//! | [`DetachLayer`](crate::DetachLayer) | the layers inside receive the end of a run whose consumer has disconnected |
//! | [`LogLayer`](crate::LogLayer) | logs what the layers inside reject, too |
//! | `EventLogLayer`, of `concentric-http` | keeps the events that the layers inside let a consumer see, also without the first consumer |
//! | [`GuardLayer`](crate::GuardLayer) | the input is redacted before anything reads or stores it; the consumer alone gets a redacted answer |
//! | [`GuardrailLayer`](crate::GuardrailLayer) | a rejected input is not stored, and starts no run; with `Input::Parallel`, it starts no tool |
//! | [`MakeSession`](crate::MakeSession), or the next two | a session keeps the conversation and its suspended runs |
//! | [`SuspendLayer`](crate::SuspendLayer) | outside the layers whose slots a resumed run restores |
//! | [`Otel::run`](crate::Otel::run) | has the slot of a resumed run for its links |
//! | [`ConversationLayer`](crate::ConversationLayer) | loads the history of a new run; a resumed run has its own |
//! | [`BudgetPlugin::run`](crate::BudgetPlugin::run) | its slot is restored with the run |
//! | [`RequestDefaultsLayer`](crate::RequestDefaultsLayer), [`StaticMemoryLayer`](crate::StaticMemoryLayer), [`DynamicMemoryLayer`](crate::DynamicMemoryLayer) | a suspended run does not contain the system prompt, so it is added each time |
//! | `AgentLayer`, of `concentric-core` | its step gates are called in this order: [`Steering`](crate::Steering), [`LoopDetector`](crate::stop::LoopDetector), [`ErrorLimit`](crate::stop::ErrorLimit), a typed output, [`OutputConstraint`](crate::stop::OutputConstraint) |
//!
//! # Once per model call, inside the agent
//!
//! | layer | its place |
//! |---|---|
//! | [`CompactionLayer`](crate::CompactionLayer) | it receives the whole conversation, and the final error of the layers inside |
//! | [`ClearToolResultsLayer`](crate::ClearToolResultsLayer), [`TrimLayer`](crate::TrimLayer) | shorten what a compaction has left |
//! | [`TransformLayer`](crate::TransformLayer), [`GuardLayer`](crate::GuardLayer), [`GuardrailLayer`](crate::GuardrailLayer) | the transcript records what they release |
//! | [`DurableLayer`](crate::DurableLayer) | one step has all attempts at a call; the layers outside run again in a replay |
//! | [`ResponseCacheLayer`](crate::ResponseCacheLayer) | inside all layers that change a request, since the request is the key, and outside all attempts |
//! | [`FallbackLayer`](crate::FallbackLayer) | each of its models has the layers below for itself |
//! | tower's `RetryLayer` with [`RetryModel`](crate::RetryModel) | repeats the attempts of one model |
//! | [`CircuitBreakerLayer`](crate::CircuitBreakerLayer) | counts attempts; a retry does not repeat what it rejects, and a fallback calls another model |
//! | [`CommitLayer`](crate::CommitLayer) | a late failure becomes one of the future, which a retry repeats |
//! | [`Otel::model`](crate::Otel::model), [`LogLayer`](crate::LogLayer) | have a span or lines for each attempt |
//! | [`RateLimitLayer`](crate::RateLimitLayer), [`InFlightLimitLayer`](crate::InFlightLimitLayer) | count requests to the provider, so attempts |
//! | [`BudgetPlugin::model`](crate::BudgetPlugin::model) | each attempt is charged |
//! | tower's `TimeoutLayer` | limits the time to the first content of one attempt |
//! | a layer of `concentric-providers` | the HTTP layers of the provider's requests are inside it |
//!
//! The custom events of these layers are among those of the run. Around a model without an agent, they are lost.
//!
//! A model that a layer calls by itself, to summarise ([`CompactionLayer`](crate::CompactionLayer)), to judge
//! ([`GuardrailLayer`](crate::GuardrailLayer)) or to extract facts
//! ([`DynamicMemoryLayer`](crate::DynamicMemoryLayer)), is outside of this stack. It reads what that layer receives, and
//! has the layers around itself only: a [`GuardLayer`](crate::GuardLayer) around the main model does not protect it.
//!
//! # Once per tool call, on the toolset
//!
//! Gates decide before all of these layers, and their order does not matter: the strictest verdict counts.
//!
//! | layer | its place |
//! |---|---|
//! | [`Otel::tool`](crate::Otel::tool), [`LogLayer`](crate::LogLayer) | record calls that the layers inside answer; added with `Toolset::hooks`, also those that do not run |
//! | [`ToolCacheLayer`](crate::ToolCacheLayer) | a hit is neither repeated nor charged |
//! | tower's `RetryLayer` with `RetryTool`, tower's `TimeoutLayer` | one attempt has one time limit |
//! | [`BudgetPlugin::tool`](crate::BudgetPlugin::tool) | each attempt is charged |
//!
//! # At the wrong place
//!
//! | layer | at the wrong place |
//! |---|---|
//! | [`DetachLayer`](crate::DetachLayer), [`SuspendLayer`](crate::SuspendLayer), [`MakeSession`](crate::MakeSession), [`ConversationLayer`](crate::ConversationLayer), [`DynamicMemoryLayer`](crate::DynamicMemoryLayer), [`BudgetPlugin::run`](crate::BudgetPlugin::run) inside a loop | the first call fails with [`Configuration`](concentric_core::ErrorKind::Configuration) and names the layers, as it does if these layers are around each other in an order that would break them |
//! | [`ConversationLayer`](crate::ConversationLayer), [`DynamicMemoryLayer`](crate::DynamicMemoryLayer) around `SuspendLayer`, `DetachLayer` or a session | the same, since a resumed run would be a new one for them |
//! | [`BudgetPlugin::model`](crate::BudgetPlugin::model) around a loop | the first call fails with `Configuration` |
//! | [`CompactionLayer`](crate::CompactionLayer), [`ClearToolResultsLayer`](crate::ClearToolResultsLayer), [`TrimLayer`](crate::TrimLayer) around a loop | shorten the conversation that a run begins with, and not what it adds. Inside a [`ConversationLayer`](crate::ConversationLayer) or a session, the run fails with `Configuration`, since it would store the shortened conversation in place of the whole one; `Layers` rejects the place in any case |
//! | [`RetryModel`](crate::RetryModel), [`FallbackLayer`](crate::FallbackLayer), [`CircuitBreakerLayer`](crate::CircuitBreakerLayer), [`RateLimitLayer`](crate::RateLimitLayer), [`InFlightLimitLayer`](crate::InFlightLimitLayer) around a loop | repeat, count and limit runs in place of model calls; a run with effects is not repeated |
//! | [`ResponseCacheLayer`](crate::ResponseCacheLayer) around a loop | has no effect, since it stores no answers of agents |
//!
//! A layer of runs is rejected and not skipped, since a conversation that is not stored or a run that is not
//! suspended would be noticed only when it is missed. A layer of model calls is accepted around a loop: nothing
//! distinguishes its call from that of a model without a loop, where it is right. In an agent that is a tool, the
//! layers of runs are those of its own stack; `DetachLayer`, `SuspendLayer` and `ConversationLayer` have no effect
//! there, since the run of the caller has them.
