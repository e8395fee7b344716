//! Typed answers: the last answer of a run as a value of a Rust type.
//!
//! ```
//! use concentric_core::{AgentLayer, BoxModel, ChatRequest, Error};
//! use concentric_tools::{Toolset, output};
//! use schemars::JsonSchema;
//! use serde::Deserialize;
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! #[derive(Deserialize, JsonSchema)]
//! struct Folder {
//!     /// The purpose of the folder.
//!     purpose: String,
//!     files: Vec<String>,
//! }
//!
//! async fn describe(model: BoxModel, tools: Toolset) -> Result<Folder, Error> {
//!     let folder = output::<Folder>("folder");
//!     let agent = ServiceBuilder::new()
//!         .layer(AgentLayer::new(tools).gate(folder.gate()))
//!         .layer(folder.clone())
//!         .service(model);
//!     let answer = agent.oneshot(ChatRequest::user("What is in here?")).await?;
//!     Ok(folder.of_answer(&answer.collect().await?)?)
//! }
//! # let _ = describe;
//! ```
//!
//! # When the schema is sent
//!
//! | | the schema is sent | for |
//! |---|---|---|
//! | by default | with every model call, together with the tools | providers that support this combination |
//! | [`separately`](Output::separately) | with one additional call after the model has answered, which offers no tools | other providers, and models whose answers are worse while they must write JSON |
//!
//! The additional call is a step of the same run: it passes through the same layers, its usage
//! counts, and its events belong to a separate step. A layer inside of it finds the
//! schema in the request's options, and may change it.
//!
//! The first event of an answer that is the typed value is an [`Event::Custom`] named
//! [`VALUE_FOLLOWS`] with the value `{"schema": name}`. It applies until the end of the step, is
//! repeated after an [`Event::Reset`], and is sent to the clients of a server like other events. Once
//! the [gate](Output::gate) has accepted the value, an event named [`VALUE_COMPLETE`] follows, with the
//! value `{"schema": name, "object": value, "raw": text}`. Hooks and layers read from the context
//! whether the present answer is the value: [`current_schema`].
//!
//! # Partial values
//!
//! [`Partials`] parse the value from a run's events while it is streamed:
//!
//! ```
//! # use concentric_core::{BoxModel, ChatRequest, Error, ErrorKind, Event};
//! # use concentric_tools::output;
//! # use futures_util::StreamExt;
//! # use schemars::JsonSchema;
//! # use serde::Deserialize;
//! # use serde_json::Value;
//! # use tower::ServiceExt;
//! # #[derive(Deserialize, JsonSchema)]
//! # struct Folder { purpose: String }
//! async fn show(agent: BoxModel) -> Result<Folder, Error> {
//!     let folder = output::<Folder>("folder");
//!     let mut partials = folder.partials::<Value>();
//!     let mut body = agent.oneshot(ChatRequest::user("What is in here?")).await?.body;
//!     while let Some(event) = body.next().await {
//!         let event = event?;
//!         if let Some(value) = partials.push(&event) {
//!             println!("{value}"); // {}, {"purpose":"Te"}, {"purpose":"Tests"}
//!         }
//!         if let Event::Finish(finish) = event {
//!             return Ok(folder.of_finish(&finish)?);
//!         }
//!     }
//!     Err(Error::new(ErrorKind::Truncated, "the answer broke off"))
//! }
//! # let _ = show;
//! ```
//!
//! # Answers that do not match
//!
//! The [gate](Output::gate) rejects them: the consumer receives an
//! [`Event::Reset`](concentric_core::Event::Reset), and the model is called again with the reason,
//! [twice](Output::tries) by default. Then the run fails with an error whose
//! [source](std::error::Error::source) is an [`OutputError`] that contains the last answer. Without
//! the gate there is one try, and [`of_answer`](Output::of_answer) returns that error.
//!
//! # Place in the stack
//!
//! The layer is placed directly inside of the loop, the gate on the loop. If a run's request has
//! another schema ([`ChatOptions::output_schema`](concentric_core::ChatOptions)), that schema takes
//! precedence, and the gate accepts any answer.
//!
//! Around an agent the layer fails the run with
//! [`Configuration`](concentric_core::ErrorKind::Configuration). So do gates in a wrong order.
//! Gates that may continue a run are called in order, and the first one that continues it is the
//! last one called ([`StepGate`]). Therefore:
//!
//! | gate | place | reason |
//! |---|---|---|
//! | one that adds messages, such as `Steering` | before this gate | a message that arrives at the end of an answer is answered with tools, before the value is requested |
//! | one that judges the answer, such as `OutputConstraint` | after this gate | it only receives values that match, no earlier answers and no rejected ones |
//!
//! The gates of a run, such as that of a steering, are always before those of its agent. After the
//! value has been requested, every further answer of the run is a value, without tools.
//!
//! # Nested agents
//!
//! An agent in a model's place has its own typed answer: it is requested separately, has its own
//! tries, and starts again with each call. If the outer agent requests a typed answer, too, the
//! inner run's request has another schema: the inner agent answers with that, and the outer agent's
//! gate checks it.
//!
//! | the outer agent's schema is sent | the inner agent answers with |
//! |---|---|
//! | by default | the outer agent's value, always |
//! | [`separately`](Output::separately) | its own value, and the outer agent's in the additional call |
//!
//! The additional call offers none of the outer agent's tools; the inner agent has its own.
//!
//! [`Event::Custom`]: concentric_core::Event::Custom
//! [`Event::Reset`]: concentric_core::Event::Reset

mod body;
mod future;
mod gate;
mod layer;
mod partial;
mod progress;

pub use self::{body::OutputBody, future::ResponseFuture, layer::WithOutput, partial::Partials};

use self::progress::Current;
use crate::{
    arguments::{Validator, decode, generate},
    truncation::short,
};
use concentric_core::{
    Answer, Context, Error, ErrorKind, Finish, OutputSchema, Str,
    agent::{Installer, Plugin, StepGate},
};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::{error::Error as StdError, fmt, marker::PhantomData, sync::Arc};

/// The name of the event after which the text of the step is the value.
///
/// See the [module docs](self#when-the-schema-is-sent).
pub const VALUE_FOLLOWS: Str = Str::from_static("value-follows");

/// The name of the event with a complete value that matches the type.
///
/// See the [module docs](self#when-the-schema-is-sent).
pub const VALUE_COMPLETE: Str = crate::outcome::VALUE_COMPLETE;

/// Returns the name of the schema if the answer of the run's newest model call is a typed value,
/// for layers and hooks that have no [`Output`]. `None` for other answers.
///
/// Set when the call reaches the layer of the [`Output`], so what is inside of that layer, and
/// whatever receives an event of the answer, reads the present call's. It corresponds to the events
/// named [`VALUE_FOLLOWS`].
pub fn current_schema(context: &Context) -> Option<Str> {
    // A run-scoped slot exists in every run, and this one is never stored.
    Current::of(context).ok().flatten()
}

/// Defines answers of type `T`, with a schema name that is sent to the provider.
///
/// See the [module docs](self) for an example.
pub fn output<T>(name: impl Into<Str>) -> Output<T>
where
    T: DeserializeOwned + JsonSchema,
{
    let generated = generate::<T>();
    let schema = Arc::new(generated.schema);
    Output {
        inner: Arc::new(Inner {
            validator: Validator::new(&schema),
            schema: OutputSchema::new(name, schema),
        }),
        tries: 2,
        separately: false,
        of: PhantomData,
    }
}

/// The JSON Schema of `T`, such as for the reply of an
/// [interrupt](concentric_core::Context::ask_as).
///
/// ```
/// use concentric_core::{Context, Interrupt, InterruptId, ask::AskError};
/// use concentric_tools::output::schema_of;
/// use schemars::JsonSchema;
/// use serde::Deserialize;
/// use std::time::Duration;
///
/// #[derive(Deserialize, JsonSchema)]
/// struct Seat {
///     row: u8,
/// }
///
/// async fn choose(context: &Context) -> Result<Seat, AskError> {
///     let id = InterruptId::new(context.new_id("ask_"));
///     let ask = Interrupt::new(id, "seat").with_response_schema(schema_of::<Seat>());
///     context.ask_as(ask, Duration::from_secs(60)).await
/// }
/// # let _ = choose;
/// ```
pub fn schema_of<T: JsonSchema>() -> Value {
    generate::<T>().schema
}

/// The definition of a typed answer: a [`Plugin`], or a layer and a [gate](Self::gate).
///
/// See the [module docs](self).
pub struct Output<T> {
    inner: Arc<Inner>,
    tries: u32,
    separately: bool,
    of: PhantomData<fn() -> T>,
}

struct Inner {
    schema: OutputSchema,
    // The reason if the schema cannot be enforced; then no answer matches.
    validator: Result<Validator, String>,
}

impl<T> Output<T>
where
    T: DeserializeOwned,
{
    /// Sets how often the model may try again after an answer that does not match; the default is
    /// 2, and 0 fails the run with the first such answer. The step limit of the run also applies.
    #[must_use]
    pub const fn tries(mut self, tries: u32) -> Self {
        self.tries = tries;
        self
    }

    /// Requests the value with an additional call, after the model has answered.
    #[must_use]
    pub const fn separately(mut self) -> Self {
        self.separately = true;
        self
    }

    /// The JSON Schema of `T`.
    pub fn schema(&self) -> &OutputSchema {
        &self.inner.schema
    }

    /// Returns the gate that makes the model try again.
    pub fn gate(&self) -> impl StepGate + use<T>
    where
        T: 'static,
    {
        gate::OutputGate {
            output: self.clone(),
        }
    }

    /// Returns a parser of partial values of type `P`: a [`Value`], or a type
    /// whose missing fields are optional.
    pub fn partials<P>(&self) -> Partials<P>
    where
        P: DeserializeOwned,
    {
        Partials::new(self.schema().name.clone())
    }

    /// Parses the value from a text. Ignores whitespace, a byte order mark, a fence around the
    /// value (` ```json `, in any spelling) and sentences around the fence. An integer may be
    /// written as `1.0`.
    ///
    /// # Errors
    ///
    /// Returns an error if the text is not JSON, or does not match the schema or the type.
    pub fn of_text(&self, text: &str) -> Result<T, OutputError> {
        let json = unfenced(text);
        let failed = |why: String| OutputError {
            received: text.into(),
            why: why.into(),
        };
        match &self.inner.validator {
            Ok(validator) => validator.check(json).map_err(failed)?,
            Err(why) => return Err(failed(format!("its schema cannot be enforced: {why}"))),
        }
        decode(json).map_err(|error| failed(error.to_string()))
    }

    /// Parses the value from a run's last answer.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`of_text`](Self::of_text).
    pub fn of_answer(&self, answer: &Answer) -> Result<T, OutputError> {
        // Only the last message: an answer before the value was requested is no part of it.
        self.of_text(&last_text(&answer.finish).unwrap_or_else(|| answer.text()))
    }

    /// Parses the value from a run's last event, for consumers that process events one by one.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`of_text`](Self::of_text). The finish event of a bare model contains
    /// no conversation, and therefore no value.
    pub fn of_finish(&self, finish: &Finish) -> Result<T, OutputError> {
        self.of_text(&last_text(finish).unwrap_or_default())
    }
}

fn last_text(finish: &Finish) -> Option<String> {
    let last = finish.transcript.as_ref()?.last()?;
    Some(last.as_message().text())
}

/// The value in a complete text: without a byte order mark and, if the text has one fenced block,
/// the content of the block. Sentences around the block are ignored.
fn unfenced(text: &str) -> &str {
    let text = text.trim_matches(is_blank);
    // A string in the block may contain a fence; the text after the block does not.
    match after_fence(text).and_then(|rest| rest.rsplit_once(FENCE)) {
        Some((inside, _)) => without_info(inside).trim_end_matches(is_blank),
        None => text,
    }
}

/// The value at the start of a partial text: [`unfenced`] without the end.
fn opened(text: &str) -> &str {
    let text = text.trim_start_matches(is_blank);
    after_fence(text).map_or(text, without_info)
}

const FENCE: &str = "```";

/// The text after the first fence, unless the fence is inside of a value.
fn after_fence(text: &str) -> Option<&str> {
    if text.starts_with(['{', '[', '"']) {
        return None;
    }
    text.split_once(FENCE).map(|(_, rest)| rest)
}

/// The content of a fenced block without the info string: an optional word such as `json` or
/// `JSON`. On one line, `json` may touch the value.
fn without_info(inside: &str) -> &str {
    let info = inside.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || "_+-.".contains(c));
    let value = info.trim_start_matches(is_blank);
    if value.len() < info.len() && !value.is_empty() {
        return value;
    }
    let inside = match inside.get(..4) {
        Some(word) if word.eq_ignore_ascii_case("json") => inside.get(4..).unwrap_or_default(),
        _ => inside,
    };
    inside.trim_start_matches(is_blank)
}

fn is_blank(c: char) -> bool {
    c.is_whitespace() || c == '\u{feff}'
}

/// Adds the layer and the gate.
impl<T> Plugin for Output<T>
where
    T: DeserializeOwned + 'static,
{
    fn install(self, at: &mut Installer<'_>) {
        at.model_layer(self.clone());
        at.step_gate(self.gate());
    }
}

impl<T> Clone for Output<T> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            tries: self.tries,
            separately: self.separately,
            of: PhantomData,
        }
    }
}

impl<T> fmt::Debug for Output<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output")
            .field("name", &self.inner.schema.name)
            .field("tries", &self.tries)
            .field("separately", &self.separately)
            .finish_non_exhaustive()
    }
}

/// An answer that does not match its type.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutputError {
    /// The whole answer.
    pub received: Str,
    /// The position and the reason.
    pub why: Str,
}

impl fmt::Display for OutputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MAX: usize = 500;
        write!(
            f,
            "the answer does not match its type: {}",
            short(&self.why, MAX)
        )
    }
}

impl StdError for OutputError {}

impl From<OutputError> for Error {
    fn from(error: OutputError) -> Self {
        Self::new(ErrorKind::Protocol, error.to_string())
            .with_code("output")
            .with_source(error)
    }
}
