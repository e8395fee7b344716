//! Skills: instructions that a model loads when it needs them.
//!
//! A skill is a folder with a `SKILL.md`, in the format of Agent Skills
//! (<https://agentskills.io/specification>, as of 2026), or is created in code. The system prompt
//! has one line per skill; the model loads the instructions of a skill when a task requires them,
//! and reads the skill's files when the instructions refer to them. Fifty skills therefore cost few
//! tokens until one is used.
//!
//! ```
//! use concentric_core::{AgentLayer, BoxModel};
//! use concentric_tools::{Approval, Skill, Skills, Toolset, skills::SkillError};
//! use tower::ServiceBuilder;
//!
//! fn agent(model: BoxModel, tools: Toolset) -> Result<BoxModel, SkillError> {
//!     let skills = Skills::from_dir("./skills")?
//!         .skill(
//!             Skill::new("refunds", "How to refund orders.", "Look up the order first. …")
//!                 // Hidden until the skill is loaded.
//!                 .unlocks(["refund", "orders_*"]),
//!         );
//!     // While the skill is active, calls require an approval.
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
//! # When
//!
//! | event | effect |
//! |---|---|
//! | the model is called | the system prompt contains the catalogue, sorted by name and with identical bytes in each call ([`Stability::Fixed`]); tools of skills that are not loaded are not offered |
//! | it calls `load_skill` | the result has the instructions and the names of the skill's files; the skill becomes active, and its tools are offered from the next step on |
//! | the skill was not active | the step is [not charged](concentric_core::ToolOutcome::free_of_charge) to the step limit, if all of its calls activated a skill |
//! | it was active | the result has the instructions again, and the step is charged |
//! | the model calls `read_skill_file` | the result has the text of a skill's file |
//! | it calls a tool of an inactive skill | the call is not run; the model reads which skill to load |
//! | the run is suspended and resumed | active skills stay active |
//! | the conversation continues with another run | active skills stay active if the host stores the slots of the conversation; otherwise they must be loaded again |
//! | the history is permanently shortened | active skills stay active, and the model can load them again to read their instructions |
//!
//! # Active skills
//!
//! A skill is active after `load_skill` has loaded it. Active skills are stored in a durable
//! [slot](concentric_core::state) of the conversation, with a suspended run, and from run to run if
//! the host stores conversations ([`set_thread_slots`], as a session of `concentric-layers` does); a
//! fork of a conversation has a copy. Loads in the history do not count: a client of a stateless
//! server writes the history, and could add any load. Behind such a server each run starts without
//! active skills: their tools are not offered and [`Skills::active`] does not match until the model
//! has loaded the skill again, as the catalogue instructs.
//!
//! The run of a nested agent has its own active skills.
//!
//! # Place of the instructions
//!
//! The instructions are in the history, as the result of `load_skill`. Earlier messages are
//! unchanged, which preserves the provider's prompt cache. With [`Skills::instructions_in_system`]
//! they are in the system prompt instead, in load order: for models that follow the system prompt
//! better, and for inner layers that shorten the history. This invalidates the cache, since the
//! system prompt precedes all messages and changes with each load.
//!
//! # Limits
//!
//! | item | limit |
//! |---|---|
//! | `SKILL.md`, or a skill's instructions | 256 KiB |
//! | its front matter | 32 KiB, 8 levels deep, no YAML anchors |
//! | `name` | 1–64 of `a-z`, `0-9` and `-`, none of these at an end or doubled; the folder's name |
//! | `description` | 1–1024 characters |
//! | `compatibility` | 500 characters |
//! | files of a skill | 256, in folders at most 8 deep; names that start with a dot are ignored |
//! | a file that the model reads | 256 KiB of UTF-8 |
//!
//! # Trust
//!
//! A skill is part of the prompt: load only trusted ones. Nothing in a skill is executed, and
//! nothing outside of its folder is read: a symbolic link that points outside is an error. Its
//! `allowed-tools` is [available](Skill::allowed_tools), but grants nothing. Hidden tools are not
//! forbidden, and the model decides which skills it loads: use a [gate](crate::gate) to forbid
//! calls.
//!
//! # Place in the stack
//!
//! Inside of the agent, directly below it, once per model call: outside of layers that shorten the
//! history. The layer does nothing if the request does not offer `load_skill`. Around an agent it
//! fails the run with [`Configuration`](concentric_core::ErrorKind::Configuration), and in
//! [`Layers`](concentric_core::Layers) it does not compile.
//!
//! [`Stability::Fixed`]: concentric_core::Stability::Fixed
//! [`set_thread_slots`]: concentric_core::Context::set_thread_slots

mod active;
mod catalogue;
mod error;
mod files;
mod lifecycle;
mod parse;
mod set;
mod skill;
mod tools;

pub use self::{error::SkillError, set::Skills, skill::Skill};
