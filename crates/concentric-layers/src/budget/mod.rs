//! Limits the cost, tokens, calls and time of runs.
//!
//! The cost of a model call is known only after the call, when other calls may have started. Each
//! call therefore reserves an estimate before it starts, and settles the actual amounts afterwards.
//! If two calls do not fit together, one of them is refused. A limit can be exceeded only by the
//! amount by which the estimates of the calls in progress were too low.
//!
//! ```
//! use concentric_core::{AgentLayer, ChatRequest, Error, Layers, Outcome};
//! use concentric_layers::budget::{BudgetPlugin, Limits};
//! use concentric_test::ScriptedModel;
//! use concentric_tools::{NoArguments, Toolset, tool};
//! use serde_json::json;
//! use tower::ServiceExt;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! // Two dollars and 3 model calls per run.
//! let budget = BudgetPlugin::new(Limits::new().money(2_000_000).model_calls(3))
//!     // In micro-dollars: $2.50 per million input tokens, $10 per million output tokens.
//!     .price(|usage| {
//!         usage.input_tokens().unwrap_or(0) * 5 / 2 + usage.output_tokens().unwrap_or(0) * 10
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
//! # When calls are charged
//!
//! Model calls, by the layer of [`BudgetPlugin::model`]:
//!
//! | the model call | charge |
//! |---|---|
//! | waits for the model's readiness | none, and no reservation |
//! | starts | its [estimate](BudgetPlugin::estimate) is reserved |
//! | yields [`Event::Finish`](concentric_core::Event::Finish) | its usage, with estimates for values that the provider does not report |
//! | was not sent: there was no connection (an error with the code `not_connected`), or a layer or an adapter inside rejected it | none |
//! | is answered by the provider with an error that has a [status](concentric_core::Error::status), or is about the request | one call and its time |
//! | fails before its first token, when the provider may have processed it: a timeout, a broken connection, a content filter, also a wait in a layer inside that is cancelled or takes too long | the estimate |
//! | fails or ends early after that, or is dropped after it was sent | the estimate, or the received output if that is more |
//!
//! The received output is counted, 4 bytes to a token, if a limit depends on it: one on money, output tokens
//! or all tokens, of this budget or an outer one. Without such a limit, it is the estimate.
//!
//! Tool calls, by the layer of [`BudgetPlugin::tool`]:
//!
//! | the tool call | charge |
//! |---|---|
//! | is already refused or denied when it reaches the layer | none |
//! | starts | one call is reserved |
//! | is suspended | none, because it is made again |
//! | has an outcome, fails or is dropped | one call |
//!
//! Both kinds are also charged their [time](Dimension::TimeMs). To limit the total time of a run,
//! use its [deadline](concentric_core::context::ContextBuilder::deadline).
//!
//! # When the budget is used up
//!
//! Before a model call that does not fit by estimate, the run ends with
//! [`Outcome::Halted`](concentric_core::Outcome::Halted). Its results are kept, and the
//! conversation can be continued. Alternatively, the run is [interrupted](BudgetPlugin::ask):
//!
//! ```
//! use concentric_core::{AgentLayer, ChatRequest, Error, Outcome, Reply};
//! use concentric_layers::budget::{Amounts, BUDGET, BudgetPlugin, Limits};
//! use concentric_test::{ScriptedModel, ScriptedTools};
//! use serde_json::json;
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let budget = BudgetPlugin::new(Limits::new().model_calls(1)).ask(Amounts::new().model_calls(5));
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
//! The next call is estimated from the last call and the turns added since. If the actual request
//! needs more, the layer around the model refuses the call with an error of the kind
//! [`Halted`](concentric_core::ErrorKind::Halted) and the code [`OVER_BUDGET`]. This error halts
//! the run, unless a layer in between handles it, for example a fallback to a cheaper model. A tool
//! call that does not fit is denied, and its outcome contains the reason.
//!
//! # Nested budgets
//!
//! A [`Budget`] is a capability of the run's context. Each run that passes [`BudgetPlugin::run`] has
//! a budget with the limits of the layer, within the budget that the context already provides, for
//! example that of a user or a tenant:
//!
//! ```
//! use concentric_core::ChatRequest;
//! use concentric_layers::budget::{Budget, Limits};
//!
//! // Shared by all runs of the tenant.
//! let tenant = Budget::new(Limits::new().money(50_000_000));
//!
//! let mut request = ChatRequest::user("hi");
//! request.context.provide(tenant.clone());
//! // The limits of the layer and of the tenant both apply.
//! ```
//!
//! The spending of a run and the extensions of its limits are part of the run's state (in the
//! [slot](concentric_core::state) `concentric/budget`), so they are restored when the run is
//! resumed, also in another process. They are restored when the run's own loop first accesses the
//! budget; a layer between [`BudgetPlugin::run`] and the agent must use a separate budget. The
//! application must persist the spending of the budgets that it provides ([`Budget::spent`],
//! [`Budget::charge`]).
//!
//! An agent that is used as a tool is charged to the budget of the calling run. Wrap it with
//! [`BudgetPlugin::run`], with or without additional limits, so that it is halted or interrupted
//! between its steps like the outer run; otherwise it fails with the first call that does not fit.
//! To reserve a part of the budget for it, use [`Budget::split`]:
//!
//! ```
//! use concentric_core::{
//!     AgentLayer, BoxModel, ChatRequest, ChatResponse, Error, EventStream, NoTools,
//! };
//! use concentric_layers::{Next, from_fn};
//! use concentric_layers::budget::{Budget, BudgetPlugin, Limits};
//! use concentric_tools::{Tool, agent_tool};
//! use tower::ServiceBuilder;
//!
//! /// Reserves 20 cents for the researcher. The unspent rest is returned when its run ends.
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
//! fn research(model: BoxModel, budget: &BudgetPlugin) -> Tool {
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
//! A part is not stored with the run: when the researcher is suspended, the rest is returned, and
//! when it is resumed, 20 cents are reserved again. The budget of its caller is stored.
//!
//! # Several processes
//!
//! With [`BudgetPlugin::shared`], model calls are also charged to budgets in a
//! [`BudgetStore`](concentric_core::store::BudgetStore), such as that of PostgreSQL, which all processes share:
//!
//! ```
//! use concentric_core::store::{BudgetStore, BudgetWindow, Limits, SharedBudget, Tenant};
//! use concentric_layers::BudgetPlugin;
//! use std::sync::Arc;
//!
//! fn budget(store: Arc<dyn BudgetStore>) -> BudgetPlugin {
//!     let month = BudgetWindow::Month { offset: 0 };
//!     BudgetPlugin::new(Limits::new().money(2_000_000)).shared(store, move |context| {
//!         let tenant = Tenant::of(context).0;
//!         // 100 dollars a month for the tenant, and 10 an hour.
//!         let limits = |money| Limits::new().money(money);
//!         vec![
//!             SharedBudget::new(format!("tenant/{tenant}"), limits(100_000_000)).per(month),
//!             SharedBudget::new(format!("tenant/{tenant}"), limits(10_000_000)).per(BudgetWindow::Hour),
//!         ]
//!     })
//! }
//! # let _ = budget;
//! ```
//!
//! | moment | effect |
//! |---|---|
//! | a call starts | its estimate is reserved of all these budgets, or of none; it fails with the name of the first one that has less left, with [`OVER_BUDGET`] |
//! | a call ends | the reservation is replaced by what the table above charges, in the windows in which it began |
//! | the process dies, or a call takes longer than the [lease](BudgetPlugin::lease) | the reservation is charged in full, since the provider may have been paid; a settlement within an hour corrects that |
//! | the store does not answer within a second, or fails | the call fails with its error, or is charged to what this process [may spend](BudgetPlugin::allow_in_outage) meanwhile |
//!
//! The sum of concurrent calls exceeds a limit only by the amount by which their estimates were too low. Tool calls, and
//! the check before each step, use the budgets of the run only.
//!
//! # Place in the stack
//!
//! - [`BudgetPlugin::run`] goes around the agent, inside or outside `SuspendLayer`.
//! - [`BudgetPlugin::model`] goes inside a retry, fallback or hedge layer, so that each attempt is
//!   charged, and around the one model that its prices are for.
//! - [`BudgetPlugin::tool`] also goes inside a retry layer.
//! - A layer that makes additional model calls, for example to summarize the conversation, must
//!   make them through a [`BudgetPlugin::model`].
//!
//! An agent in place of a model has a [`BudgetPlugin::model`] around its own model. One around the agent charges a run
//! that ends as one call, with the usage of the whole run.
//!
//! The following stacks fail with [`Configuration`](concentric_core::ErrorKind::Configuration): a
//! [`BudgetPlugin::model`] both around such an agent and inside it, which would charge each call twice; a
//! [`BudgetPlugin::run`] that limits the spending of model calls without a
//! [`BudgetPlugin::model`], or the reverse; and a [`BudgetPlugin::model`] around the whole agent with
//! [`BudgetPlugin::run`] inside it.
//!
//! A missing [`BudgetPlugin::model`] is detected before anything is sent if the model [checks its
//! stack](concentric_core::ChatRequest::check_stack), as those of `concentric-providers` do. With other
//! models, the first model call is made, and the run fails when it is answered. A layer that
//! answers in place of the model, such as a cache, may be outside [`BudgetPlugin::model`]. If that
//! belongs to a different `BudgetPlugin` than [`BudgetPlugin::run`], the caching layer must call
//! [`Context::skip_stack_check`](concentric_core::Context::skip_stack_check) when it answers.
//!
//! See the [recommended order](crate::order).
//!
//! # Backpressure
//!
//! The layer around an agent forwards readiness. The other layers are always ready and wait for the
//! inner service in the future of the call, so that a call reserves its estimate only when it can
//! start.

mod gate;
mod handle;
mod layer;
mod model;
mod run;
mod shared;
mod tool;

pub use self::{
    gate::BUDGET,
    handle::{Budget, Lease},
    layer::{BudgetPlugin, ModelBudgetLayer, RunBudgetLayer, ToolBudgetLayer},
    model::{ModelBudget, ModelBudgetBody, ResponseFuture},
    run::RunBudget,
    tool::{ResponseFuture as ToolResponseFuture, ToolBudget},
};

pub use concentric_core::store::{Amounts, Dimension, Limits, OVER_BUDGET, OverBudget};

use concentric_core::Context;
use std::time::SystemTime;

/// Returns the time since `since` by the run's clock, in milliseconds.
fn millis(context: &Context, since: SystemTime) -> u64 {
    let took = context.now().duration_since(since).unwrap_or_default();
    u64::try_from(took.as_millis()).unwrap_or(u64::MAX)
}
