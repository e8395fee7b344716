//! Layers that restrict the tools offered in a step.
//!
//! By default an agent offers all its tools in every step. With hundreds of tools, the schemas cost
//! tokens in each call, and the model chooses worse. [`LazyTools`] hides some of them behind a
//! discovery tool; [`offer_tools`] restricts them by a function; [`Skills`](crate::Skills) hide the
//! tools of a skill until it is loaded.
//!
//! ```
//! use concentric_core::{AgentLayer, BoxModel};
//! use concentric_tools::{LazyTools, Toolset, lazy::offer_tools};
//! use tower::ServiceBuilder;
//!
//! fn agent(model: BoxModel, tools: Toolset) -> BoxModel {
//!     let (tools, lazy) = LazyTools::new(["crm_*", "jira_*"]).wrap(tools);
//!     BoxModel::new(
//!         ServiceBuilder::new()
//!             .layer(AgentLayer::new(tools))
//!             .layer(lazy)
//!             // The first step offers only read-only tools.
//!             .layer(offer_tools(|request, tool| {
//!                 request.context.step() > 0 || tool.annotations.read_only
//!             }))
//!             .service(model),
//!     )
//! }
//! # let _ = agent;
//! ```
//!
//! # When
//!
//! | event | effect |
//! |---|---|
//! | the model is called | hidden tools are removed from this request; the response head lists the offered ones ([`ResponseHead::tools`]) |
//! | it calls `find_tools` | the result has the names and descriptions of matching tools; from the next step on they are offered, after the others and in the order they were found |
//! | a search finds a new tool | the step is [not charged](concentric_core::ToolOutcome::free_of_charge) to the step limit, if it made no other calls |
//! | it calls a hidden tool | the call is not run; the model reads how to find the tool |
//! | the run is resumed, or the conversation continues in another process | the found tools are read from the history, and from nowhere else |
//!
//! Hidden tools are not forbidden: the author of the history controls the found tools. Use a
//! [gate](crate::gate) to forbid calls. Of a search result in the history, only the first 1,000
//! lines are read, or more if [`max_results`](LazyTools::max_results) is larger.
//!
//! # Place in the stack
//!
//! Inside of the agent, directly below it, once per model call: outside of layers that shorten the
//! history, so that earlier searches are visible. The layer hides nothing if the request does not
//! offer the discovery tool. Around an agent, a layer of this module fails the run with
//! [`Configuration`](concentric_core::ErrorKind::Configuration), and in
//! [`Layers`](concentric_core::Layers) it does not compile.
//!
//! If there are also skills, [`wrap`](LazyTools::wrap) the toolset for lazy tools first: otherwise
//! the tools of skills are hidden by both. The tools that load skills and find tools are never
//! hidden.
//!
//! [`ResponseHead::tools`]: concentric_core::ResponseHead::tools

mod future;
mod offer;
mod only;
mod search;
mod tools;

pub use self::{
    future::ResponseFuture,
    only::{OfferTools, OfferToolsLayer, offer_tools},
    tools::LazyTools,
};

pub(crate) use self::offer::{Place, is_about, offer};
#[cfg(feature = "skills")]
pub(crate) use self::search::one_line;
