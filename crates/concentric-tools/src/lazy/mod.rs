//! Which of its tools a step offers.
//!
//! An agent offers all its tools in every step. That is wrong for two hundred of them: their schemas
//! cost tokens in each call, and a model that has to choose among many chooses worse. [`LazyTools`]
//! hides some behind a tool that finds them; [`offer_tools`] decides by a function; and
//! [`Skills`](crate::Skills) hide what belongs to a skill until it is loaded.
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
//!             // In the first step, nothing is changed.
//!             .layer(offer_tools(|request, tool| {
//!                 request.context.step() > 0 || tool.annotations.read_only
//!             }))
//!             .service(model),
//!     )
//! }
//! # let _ = agent;
//! ```
//!
//! # When what happens
//!
//! | | |
//! |---|---|
//! | the model is called | the tools that are hidden are taken out of this one request; the head of the answer says what was offered ([`Head::tools`]) |
//! | it calls `find_tools` | it reads the names and descriptions of what fits; from the next step on these are offered, behind the others and in the order they were found |
//! | something is found that was not found before | the step is [not charged](concentric_core::ToolOutcome::free_of_charge) to the step limit, if it made no other calls |
//! | it calls a tool that is hidden | the call is not run; the model reads how to find the tool |
//! | the run is resumed, or the conversation goes on elsewhere | what was found is read from the history, and from nowhere else |
//!
//! What is hidden is not forbidden: whoever writes the history says what was found. To forbid a call
//! is a [gate](crate::gate)'s work.
//!
//! # Place in the stack
//!
//! Inside the agent, once per model call, and next to it: outside of layers that shorten the
//! history, so that the layer sees what was found long ago. It hides nothing if the discovery tool is
//! not among the request's tools, so that one without the other does no harm. Around an agent, a layer
//! of this module fails the run with [`Configuration`](concentric_core::ErrorKind::Configuration), and
//! in [`Layers`](concentric_core::Layers) it does not compile.
//!
//! If there are skills, too, [`wrap`](LazyTools::wrap) the toolset for lazy tools first: else the tools
//! that skills bring are hidden by both. The tools that load skills and find tools are never hidden.
//!
//! [`Head::tools`]: concentric_core::Head::tools

mod future;
mod offer;
mod only;
mod search;
mod service;
mod tools;

pub use self::{
    future::ResponseFuture,
    only::{OfferTools, OfferToolsLayer, offer_tools},
    service::{Lazy, LazyLayer},
    tools::LazyTools,
};

pub(crate) use self::{
    offer::{Place, is_about, offer},
    search::one_line,
};
