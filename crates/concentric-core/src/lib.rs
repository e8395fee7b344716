//! The vocabulary, the loop and the building blocks of LLM agents as tower service stacks.
//!
//! An agent is a tower stack. A model is a [`Service`](tower_service::Service) from a
//! [`ChatRequest`] to a [`ChatResponse`], whose body is a stream of [`Event`]s; a tool is one from a
//! [`ToolCall`] to a [`ToolOutcome`]. Whatever watches or changes them is a
//! [`Layer`](https://docs.rs/tower-layer/0.3/tower_layer/trait.Layer.html), and so is the loop between them: [`AgentLayer`] makes of a model
//! and a set of tools a service that speaks the same two types as the model. What a layer sees
//! depends on where it stands:
//!
//! | place | runs | a change lasts |
//! |---|---|---|
//! | outside [`AgentLayer`] | once per user turn | to the request: for the run; to an event: for the consumer only |
//! | inside it | once per model call | to the request: for this call; to an event: in the transcript |
//! | on the tools | once per tool call | |
//!
//! ```
//! use concentric_core::{AgentLayer, ChatRequest, ChatResponse, Error, Event, FinishReason, NoTools, Usage};
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! // A model is any service of this shape; a provider's layer makes one of an HTTP client.
//! let model = service_fn(async |_: ChatRequest| {
//!     Ok::<_, Error>(ChatResponse::new(futures_util::stream::iter([
//!         Ok(Event::text("Hello!")),
//!         Ok(Event::finish(FinishReason::Stop, Usage::new(9, 2))),
//!     ])))
//! });
//! let agent = ServiceBuilder::new()
//!     .layer(AgentLayer::new(NoTools))
//!     .service(model);
//!
//! let answer = agent.oneshot(ChatRequest::user("hi")).await?.collect().await?;
//! assert_eq!(answer.text(), "Hello!");
//! assert_eq!(answer.transcript().map(|t| t.len()), Some(2));
//! # Ok(())
//! # }
//! ```

pub mod agent;
mod builder;
pub mod capability;
pub mod context;
pub mod describe;
pub mod envelope;
mod error;
mod event;
mod finish;
pub mod id;
pub mod interrupt;
pub mod layers;
pub mod live;
pub mod machine;
pub mod message;
#[doc(hidden)]
pub mod method;
mod request;
mod response;
pub mod service;
pub mod state;
pub mod store;
mod text;
pub mod tool;
pub mod transcript;

pub use self::{
    agent::{Agent, AgentLayer, NoTools, ToolSource},
    builder::MessageBuilder,
    capability::{Capability, Declares, Layers},
    context::{Context, EmitError, Environment, Phase},
    describe::Description,
    envelope::{Envelope, Envelopes},
    error::{Effects, Error, ErrorKind},
    event::{
        Custom, Event, PartEnd, StepFinish, StepStart, SubAgentEvent, ToolCallDelta, ToolCallEvent,
        ToolCallStart,
    },
    finish::{CancelReason, Finish, FinishReason, Outcome, Usage},
    id::{CallId, InterruptId, MessageId, RequestId, RunId, StreamId, ThreadId},
    interrupt::{Answered, Interrupt, Pending, Reply, ReplyError, ReplyKind, ReplyStatus, Ruling},
    live::LiveInterrupts,
    message::{
        Arguments, Author, Executor, Media, MediaSource, Message, Part, PartKind, ProviderData,
        Role, ToolCallPart, ToolResult,
    },
    request::{
        ChatOptions, ChatRequest, OutputSchema, Resume, Stability, Suspended, System,
        SystemSegment, ToolChoice,
    },
    response::{Answer, ChatResponse, Head, Incomplete},
    service::{BoxModel, BoxTool, EventStream, ModelService, RoundService, ToolService},
    text::Str,
    tool::{
        Annotations, Attempt, Attempts, LimitOf, Origin, OutcomeSource, Permit, Refusal, RoundCall,
        RoundEvent, Seal, ToolCall, ToolContent, ToolOutcome, ToolRound, ToolSpec, ToolSpecs,
        ToolStatus,
    },
    transcript::{History, HistoryError, OpenRound, Repair, Round, Transcript, Turn},
};
pub use tower::BoxError;
