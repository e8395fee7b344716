//! The data types and the agent loop of Concentric, without I/O.
//!
//! This crate defines messages, transcripts in which every tool call has an outcome, events,
//! errors, interrupts and replies, and the stored state of a run. It implements the agent loop as a
//! [state machine](machine::Machine) that receives inputs and returns actions. It has no I/O,
//! clock, randomness, locks or async code, and does not depend on tokio, tower or http.
//!
//! Most programs use it through `concentric-core`, which re-exports it and drives the machine as a
//! tower service. A driver for another runtime, such as a durable execution engine, needs only this
//! crate.
//!
//! | feature | effect |
//! |---|---|
//! | `tower` | [`Error::of`] recognises the errors of tower's `Timeout`, `LoadShed` and `Buffer`, and of tokio's timeouts |

/// Implements `Debug` for types whose fields have nothing to print.
#[doc(hidden)]
#[macro_export]
macro_rules! opaque_debug {
    ($name:ident $(<$($of:ident),*>)?) => {
        impl $(<$($of),*>)? ::std::fmt::Debug for $name $(<$($of),*>)? {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    };
}

mod builder;
pub mod call;
mod error;
mod event;
mod finish;
pub mod id;
pub mod interrupt;
pub mod machine;
pub mod message;
mod options;
mod phase;
mod rate_limits;
mod response_head;
pub mod run_state;
mod run_usage;
mod spec;
mod text;
pub mod transcript;
mod usage;

pub use self::{
    builder::MessageBuilder,
    call::{Clearance, Delivery, LimitScope, Refusal, RoundCall, RoundEvent},
    error::{BoxError, Error, ErrorKind, SideEffects},
    event::{
        CustomEvent, Event, PartEnd, StepFinish, StepStart, SubAgentEvent, ToolCallDelta,
        ToolCallEvent, ToolCallStart,
    },
    finish::Finish,
    id::{CallId, InterruptId, MessageId, RequestId, RunId, StreamId, ThreadId},
    interrupt::{Decision, Interrupt, Reply, ReplyError, ReplyKind, ReplyStatus, Suspension},
    message::{
        Arguments, Author, Executor, Media, MediaSource, Message, OutcomeSource, Part, PartKind,
        ProviderData, Role, ToolCallPart, ToolContent, ToolOutcome, ToolResult, ToolStatus,
    },
    options::{ChatOptions, OutputSchema, Stability, System, SystemSegment, ToolChoice},
    phase::Phase,
    rate_limits::{Allowance, RateLimits},
    response_head::ResponseHead,
    run_usage::{ModelUsage, RunUsage},
    spec::{Annotations, ToolNameTaken, ToolSpec, ToolSpecs},
    text::Str,
    transcript::{HistoryError, OpenRound, Repair, Round, Transcript, Turn},
    usage::{CancelReason, FinishReason, Outcome, Usage},
};
