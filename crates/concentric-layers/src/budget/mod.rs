//! Layers that limit what runs spend: money, tokens, calls, time.
//!
//! The cost of a model call is known when it is over, and by then others may have begun. So each call
//! sets aside beforehand what it is thought to need, and pays afterwards what it took. Of two that don't
//! fit together one is refused; and a limit is exceeded by no more than what the estimates of the calls
//! under way were too low.
//!
//! ```
//! use concentric_core::{AgentLayer, ChatRequest, Error, Layers, Outcome};
//! use concentric_layers::budget::{BudgetLayer, Limits};
//! use concentric_test::ScriptedModel;
//! use concentric_tools::{NoArguments, Toolset, tool};
//! use serde_json::json;
//! use tower::ServiceExt;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! // Two dollars a run, and 3 model calls.
//! let budget = BudgetLayer::new(Limits::new().money(2_000_000).model_calls(3))
//!     // In micro-dollars: 2.5 dollars for a million tokens of input, 10 for one of output.
//!     .price(|usage| {
//!         usage.input_tokens.unwrap_or(0) * 5 / 2 + usage.output_tokens.unwrap_or(0) * 10
//!     });
//!
//! let search = tool("search", "Searches.", |NoArguments {}| async { "nothing" });
//! let tools = Toolset::new().layer(budget.tool()).tool(search);
//! let model = ScriptedModel::new().tool_call("search", json!({})).repeat();
//! let agent = Layers::new()
//!     .with(budget.run())
//!     .layer(AgentLayer::new(tools))
//!     .with(budget.model())
//!     .service(model.clone());
//!
//! let answer = agent.oneshot(ChatRequest::user("Search.")).await?.collect().await?;
//! assert!(matches!(answer.finish.outcome, Outcome::Halted { .. }));
//! assert_eq!(model.calls(), 3);
//! # Ok(())
//! # }
//! ```
//!
//! # When what is spent
//!
//! A model call, in the layer of [`BudgetLayer::model`]:
//!
//! | the call | is charged |
//! |---|---|
//! | waits for the model's readiness | nothing, and nothing is set aside |
//! | is made | its [estimate](BudgetLayer::estimate), set aside |
//! | yields [`Event::Finish`](concentric_core::Event::Finish) | its usage; what the provider does not report, as estimated |
//! | was not sent, or the provider refused it | nothing |
//! | fails before its first token, when it may have been working: a timeout, an error of the server | the estimate |
//! | fails or ends early after that, or is dropped once it was sent | the estimate, or what was heard of it if that is more |
//!
//! A tool call, in the layer of [`BudgetLayer::tool`]:
//!
//! | the call | is charged |
//! |---|---|
//! | was refused or denied, and is only shown to the layers | nothing |
//! | is made | one call, set aside |
//! | waits for somebody | nothing: it is made again |
//! | has an outcome, fails or is dropped | one call |
//!
//! Each is charged its [time](Dimension::TimeMs), too. How long a run may take in all is for its
//! [deadline](concentric_core::context::ContextBuilder::deadline) to say.
//!
//! # When there is no more
//!
//! Between two steps, before a model call that is thought not to fit, the run ends with
//! [`Outcome::Halted`](concentric_core::Outcome::Halted): what was paid for is kept, and the
//! conversation can be gone on with. Or it [asks](BudgetLayer::ask):
//!
//! ```
//! use concentric_core::{AgentLayer, ChatRequest, Error, Outcome, Reply};
//! use concentric_layers::budget::{Amounts, BUDGET, BudgetLayer, Limits};
//! use concentric_test::{ScriptedModel, ScriptedTools};
//! use serde_json::json;
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let budget = BudgetLayer::new(Limits::new().model_calls(1)).ask(Amounts::new().model_calls(5));
//! let agent = ServiceBuilder::new()
//!     .layer(budget.run())
//!     .layer(AgentLayer::new(ScriptedTools::new().answers("search", "42")))
//!     .layer(budget.model())
//!     .service(ScriptedModel::new().tool_call("search", json!({})).then().text("It is 42."));
//!
//! let answer = agent.clone().oneshot(ChatRequest::user("Search.")).await?.collect().await?;
//! assert_eq!(answer.finish.interrupts()[0].reason, BUDGET);
//!
//! let question = answer.finish.interrupts()[0].id.clone();
//! let state = *answer.finish.state.unwrap();
//! let request = ChatRequest::resume(state, vec![Reply::approve(question)]);
//! let answer = agent.oneshot(request).await?.collect().await?;
//! assert_eq!(answer.text(), "It is 42.");
//! # Ok(())
//! # }
//! ```
//!
//! What the next call needs is guessed there: what the last one did, and what was said since. A call
//! that turns out to need more is refused by the layer around the model, with an error of the kind
//! [`Halted`](concentric_core::ErrorKind::Halted) and the code [`OVER_BUDGET`], which halts the run
//! unless a layer in between, as a fallback to a cheaper model, makes something of it. A tool call that
//! does not fit is denied, and the model is told why.
//!
//! # Whose budget it is
//!
//! A [`Budget`] is a capability of the run's context. Each run that passes [`BudgetLayer::run`] has one
//! with the layer's limits, within the one that is there already, which may be a user's or a tenant's:
//!
//! ```
//! use concentric_core::ChatRequest;
//! use concentric_layers::budget::{Budget, Limits};
//!
//! // Kept by the host, for all runs of the tenant.
//! let tenant = Budget::new(Limits::new().money(50_000_000));
//!
//! let mut request = ChatRequest::user("hi");
//! request.context.provide(tenant.clone());
//! // Both limits hold, the layer's and the tenant's.
//! ```
//!
//! What a run has spent, and what was added to its limits, is kept with the run (in the
//! [slot](concentric_core::state) `concentric/budget`), so that it goes on where it was when it is
//! resumed, in whichever process. It is read when the run's own loop asks first; a layer between
//! [`BudgetLayer::run`] and the agent that spends something does so of a budget of its own. What was
//! spent of a budget that the host gives is for the host to keep ([`Budget::spent`],
//! [`Budget::charge`]).
//!
//! An agent that is a tool spends of the budget of the run that calls it. It has a [`BudgetLayer::run`]
//! around it, too, with limits of its own or with none, so that it is halted between its steps, or asks,
//! as the outer run does; else it fails with the call that does not fit. One that is to be sure of a part
//! takes it:
//!
//! ```
//! use concentric_core::{
//!     AgentLayer, BoxModel, ChatRequest, ChatResponse, Error, EventStream, NoTools,
//!     layers::{Next, from_fn},
//! };
//! use concentric_layers::budget::{Budget, BudgetLayer, Limits};
//! use concentric_tools::{Tool, agent_tool};
//! use tower::ServiceBuilder;
//!
//! /// Up to 20 cents are the researcher's; what it does not spend comes back when its run is over.
//! async fn part(
//!     mut request: ChatRequest,
//!     mut next: Next,
//! ) -> Result<ChatResponse<EventStream>, Error> {
//!     let budget = request.context.require::<Budget>()?;
//!     let part = budget.split(Limits::new().money(200_000))?;
//!     request.context.provide(part);
//!     next.run(request).await
//! }
//!
//! fn research(model: BoxModel, budget: &BudgetLayer) -> Tool {
//!     let researcher = ServiceBuilder::new()
//!         .layer(from_fn(part))
//!         .layer(budget.run())
//!         .layer(AgentLayer::new(NoTools))
//!         .layer(budget.model())
//!         .service(model);
//!     agent_tool("research", "Finds out about a subject.", researcher)
//! }
//! # let _ = research;
//! ```
//!
//! A part is not kept: a researcher that waits for somebody gives the rest back, and takes 20 cents
//! anew when it goes on. Its caller's budget is.
//!
//! # Place in the stack
//!
//! [`BudgetLayer::run`] stands around the agent, inside of what finds the run of a reply
//! (`SuspendLayer`) or outside of it. [`BudgetLayer::model`] stands inside of a retry, a fallback or a
//! hedge, so that each attempt is charged, and around the one model whose prices it has; around an
//! agent in a model's place it would count what is counted inside, and the call fails with
//! [`Configuration`](concentric_core::ErrorKind::Configuration). So it does where one of the two is
//! missing: a [`BudgetLayer::run`] that limits what model calls need, and none around a model; or the
//! other way round. [`BudgetLayer::model`] around the whole agent and [`BudgetLayer::run`] inside of
//! it are errors, too. [`BudgetLayer::tool`] stands inside of a retry, too. A layer that makes model
//! calls of its own, as one that shortens the conversation, makes them through a
//! [`BudgetLayer::model`].
//!
//! Whether a [`BudgetLayer::model`] is missing is known before anything is sent, if the model
//! [checks its stack](concentric_core::Context::check_stack) as those of `concentric-providers` do.
//! Else the first call of the model is made, and the run fails when it is answered. A layer that
//! answers in place of the model, as a cache does, may stand outside of [`BudgetLayer::model`]. If
//! that is of another `BudgetLayer` than [`BudgetLayer::run`], the layer calls
//! [`Context::skip_stack_check`](concentric_core::Context::skip_stack_check) when it answers.
//!
//! # Backpressure
//!
//! The layer around an agent passes readiness on. The others are always ready, and wait for the
//! service inside in the call's future: a call sets something aside when it can be made.

mod amounts;
mod estimate;
mod gate;
mod handle;
mod layer;
mod model;
mod over;
mod run;
mod tool;

pub use self::{
    amounts::{Amounts, Dimension, Limits},
    gate::BUDGET,
    handle::{Budget, Lease},
    layer::{BudgetLayer, ChargedCall, ModelBudgetLayer, RunBudgetLayer, ToolBudgetLayer},
    model::{ModelBudget, ModelBudgetBody, ResponseFuture},
    over::{OVER_BUDGET, OverBudget},
    run::RunBudget,
    tool::{ResponseFuture as ToolResponseFuture, ToolBudget},
};

use concentric_core::Context;
use std::time::SystemTime;

/// How long ago `since` is by the clock of the run.
fn millis(context: &Context, since: SystemTime) -> u64 {
    let took = context.now().duration_since(since).unwrap_or_default();
    u64::try_from(took.as_millis()).unwrap_or(u64::MAX)
}
