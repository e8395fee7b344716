//! Skills: instructions that a model loads when it needs them.
//!
//! A skill is a folder with a `SKILL.md` in it, in the format of Agent Skills
//! (<https://agentskills.io/specification>, as of 2026), or is written in code. A model is told of
//! each in a line; it loads the instructions of one when a task asks for it, and reads the skill's
//! files when the instructions say so. So fifty skills cost little until one is used.
//!
//! ```
//! use concentric_core::{AgentLayer, BoxModel};
//! use concentric_tools::{Approval, Skill, Skills, Toolset, skills::SkillError};
//! use tower::ServiceBuilder;
//!
//! fn agent(model: BoxModel, tools: Toolset) -> Result<BoxModel, SkillError> {
//!     let skills = Skills::from_dir("./skills")?
//!         .skill(
//!             Skill::new("refunds", "How to pay orders back.", "Look the order up first. …")
//!                 // Hidden until the skill is loaded.
//!                 .unlocks(["refund", "orders_*"]),
//!         );
//!     // While the skill is active, its calls are asked about.
//!     let tools = tools.gate(Approval::for_tools(skills.active("refunds")));
//!     let (tools, skills) = skills.wrap(tools)?;
//!     Ok(BoxModel::new(
//!         ServiceBuilder::new()
//!             .layer(AgentLayer::new(tools))
//!             .layer(skills)
//!             .service(model),
//!     ))
//! }
//! # let _ = agent;
//! ```
//!
//! # When what happens
//!
//! | | |
//! |---|---|
//! | the model is called | the catalogue is in its system prompt, in the order of the names and always the same bytes ([`Stability::Fixed`]); tools of skills that are not loaded are not offered |
//! | it calls `load_skill` | it reads the instructions and the names of the skill's files; the skill is active from now on, and its tools are offered from the next step on |
//! | the skill was not active | the step is [not charged](concentric_core::ToolOutcome::free_of_charge) to the step limit, if all of its calls are such |
//! | it was active | the instructions are given again, and the step is charged |
//! | the model calls `read_skill_file` | it reads a file of a skill |
//! | it calls a tool of a skill that is not active | the call is not run; the model reads which skill to load |
//! | the run is suspended and resumed | what was active is active |
//! | the conversation continues with another run | what was active is active if the host keeps the slots of the conversation; else it must be loaded again |
//! | the history is shortened for good | what was active is active, and can be loaded again, so that the model reads its instructions |
//!
//! # Which skills are active
//!
//! Those that `load_skill` loaded here. They are kept in a durable [slot](concentric_core::state) of the
//! conversation, which is stored with a suspended run, and from run to run where the host keeps
//! conversations ([`ThreadSlots`], as a session of `concentric-layers` does); a fork of a conversation
//! has a copy. Loads in the history do not count: a client of a server that keeps nothing writes its
//! history, and could claim what it likes. Behind such a server each run begins without an active
//! skill: its tools are not offered and [`Skills::active`] does not match until the model has loaded
//! the skill again, as the catalogue tells it to.
//!
//! The run of an agent that is a tool has active skills of its own.
//!
//! # Where the instructions are
//!
//! In the history, as the result of `load_skill`. What was sent before stays as it was, so that the
//! provider's prompt cache holds. With [`Skills::instructions_in_system`] they are in the system
//! prompt instead, in the order in which the skills were loaded: for models that heed it better, and
//! for layers inside that shorten the history. It costs the cache: the system prompt stands before
//! all messages, and changes with each load.
//!
//! # Limits
//!
//! | | |
//! |---|---|
//! | `SKILL.md`, or a skill's instructions | 256 KiB |
//! | its front matter | 32 KiB, 8 levels deep, no YAML anchors |
//! | `name` | 1–64 of `a-z`, `0-9` and `-`, none of these at an end or doubled; the folder's name |
//! | `description` | 1–1024 characters |
//! | `compatibility` | 500 characters |
//! | files of a skill | 256, in folders at most 8 deep; what begins with a dot is passed over |
//! | a file that the model reads | 256 KiB of UTF-8 |
//!
//! # Trust
//!
//! A skill is a part of the prompt: load what you would write. Nothing in one is executed, and
//! nothing outside its folder is read: a symbolic link that leads out is an error. Its
//! `allowed-tools` is [known](Skill::allowed_tools), and grants nothing. What is hidden is not
//! forbidden, and the model decides what it loads: to forbid a call is a [gate](crate::gate)'s work.
//!
//! # Place in the stack
//!
//! Inside the agent, once per model call, and next to it: outside of layers that shorten the
//! history. The layer does nothing if the request does not offer `load_skill`. Around an agent it
//! fails the run with [`Configuration`](concentric_core::ErrorKind::Configuration), and in
//! [`Layers`](concentric_core::Layers) it does not compile.
//!
//! [`Stability::Fixed`]: concentric_core::Stability::Fixed
//! [`ThreadSlots`]: concentric_core::state::ThreadSlots

mod active;
mod catalogue;
mod error;
mod files;
mod layer;
mod parse;
mod service;
mod set;
mod skill;
mod tools;

pub use self::{
    error::{SkillError, SkillErrorKind},
    layer::SkillsLayer,
    service::WithSkills,
    set::Skills,
    skill::Skill,
};

#[doc(no_inline)]
pub use crate::lazy::ResponseFuture;
