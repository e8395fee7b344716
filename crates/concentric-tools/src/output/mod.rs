//! Typed answers: the last answer of a run is a value of a type.
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
//!     /// What it is for.
//!     purpose: String,
//!     files: Vec<String>,
//! }
//!
//! async fn describe(model: BoxModel, tools: Toolset) -> Result<Folder, Error> {
//!     let folder = output::<Folder>("folder");
//!     let agent = ServiceBuilder::new()
//!         .layer(AgentLayer::new(tools).gate(folder.gate()))
//!         .layer(folder.layer())
//!         .service(model);
//!     let answer = agent.oneshot(ChatRequest::user("What is in here?")).await?;
//!     Ok(folder.of_answer(&answer.collect().await?)?)
//! }
//! # let _ = describe;
//! ```
//!
//! # Two ways
//!
//! | | the schema is sent | for |
//! |---|---|---|
//! | by default | with every call of the model, beside the tools | providers that combine the two |
//! | [`separately`](Output::separately) | with one more call once the model has answered, which offers no tools | the others, and models that answer worse while they have to write JSON |
//!
//! The further call is a step of the same run: it goes through the same layers, its usage counts, and
//! its events are of a step of their own. A layer inside of [`OutputLayer`] sees the schema in the
//! request's options, and may change it, either way.
//!
//! Whoever reads the run's events tells what is said for the value from what is said before it: the
//! first event of an answer that is to be the value is an [`Event::Custom`] named [`VALUE_FOLLOWS`],
//! whose value is `{"schema": name}`. It holds to the end of the step, is said again where a
//! [`Event::Reset`] makes it void, and goes out to the clients of a server like the others.
//!
//! # While it is written
//!
//! [`Partials`] read the value from a run's events as it grows:
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
//! # An answer that does not fit
//!
//! The [gate](Output::gate) rejects it: the consumer receives an
//! [`Event::Reset`](concentric_core::Event::Reset), and the model is called again with the reason,
//! [twice](Output::tries) by default. Then the run fails with an error whose
//! [source](std::error::Error::source) is an [`OutputError`], which has the last answer. Without the gate
//! there is one try, and [`of_answer`](Output::of_answer) returns that error.
//!
//! # Place in the stack
//!
//! The layer goes just inside of the loop, the gate on the loop. A run that is given another schema
//! for its answers keeps that ([`ChatOptions::output_schema`](concentric_core::ChatOptions)), and the
//! gate lets its answers be.
//!
//! Around an agent the layer fails the run with
//! [`Configuration`](concentric_core::ErrorKind::Configuration), and so do gates in another order than
//! that of the table.
//!
//! Gates that have a run go on are asked one after the other, and the first that does so is the last
//! that is asked ([`StepGate`](concentric_core::agent::StepGate)). So among the gates of a loop
//!
//! | gate | goes | since |
//! |---|---|---|
//! | one that puts messages in, as `Steering` does | before this one | what is said as the model's answer ends is answered with tools, and the value is asked for after that |
//! | one that judges the answer, as `OutputConstraint` does | after this one | it is asked about a value that fits, and not about what is said before it, nor about one that is tried again |
//!
//! The gates of one run, as that of a steering, are before those of its agent by themselves. Once the
//! value is asked for, whatever else has the run go on is answered by another value, without tools.
//!
//! # An agent in a model's place
//!
//! Its typed answer is its own: it is asked for by itself, has tries of its own, and begins anew with
//! each call. If the agent around it asks for a typed answer, too, that is another schema that its run
//! is given: it answers with that, and the gate of the outer one judges it.
//!
//! | the outer one's | what the inner one answers |
//! |---|---|
//! | by default | the outer one's value, always |
//! | [`separately`](Output::separately) | its own, and in the further call, the outer one's |
//!
//! The further call offers none of the outer one's tools; the inner one has its own.
//!
//! [`Event::Custom`]: concentric_core::Event::Custom
//! [`Event::Reset`]: concentric_core::Event::Reset

mod body;
mod future;
mod gate;
mod layer;
mod partial;
mod progress;

pub use self::{
    body::OutputBody,
    future::ResponseFuture,
    gate::OutputGate,
    layer::{OutputLayer, WithOutput},
    partial::Partials,
};

use crate::{
    arguments::{Validator, decode, generate},
    overlong::short,
};
use concentric_core::{Answer, Error, ErrorKind, Finish, OutputSchema, Str};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use std::{error::Error as StdError, fmt, marker::PhantomData, sync::Arc};

/// Names the event that the text of the step is the value from here on.
///
/// See the [module docs](self).
pub const VALUE_FOLLOWS: Str = Str::from_static("value-follows");

/// Describes answers that are a `T`, under a name that a provider is told.
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

/// Answers that are a `T`.
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
    // Why the schema cannot be enforced, if that is so: no answer fits then.
    validator: Result<Validator, String>,
}

impl<T> Output<T>
where
    T: DeserializeOwned,
{
    /// Sets how often the model may try again, if its answer does not fit; the default is 2, and 0
    /// fails the run with the first such answer. The steps of the run are limited as well.
    #[must_use]
    pub const fn tries(mut self, tries: u32) -> Self {
        self.tries = tries;
        self
    }

    /// Asks for the value by a call of its own, once the model has answered.
    #[must_use]
    pub const fn separately(mut self) -> Self {
        self.separately = true;
        self
    }

    /// The schema.
    pub fn schema(&self) -> &OutputSchema {
        &self.inner.schema
    }

    /// The layer that sends the schema.
    pub fn layer(&self) -> OutputLayer {
        OutputLayer::new(self.inner.schema.clone(), self.separately)
    }

    /// The gate that has the model try again.
    pub fn gate(&self) -> OutputGate<T> {
        OutputGate::new(self.clone())
    }

    /// Reads the value while it is written, as a `P`: a [`Value`](serde_json::Value), or a type
    /// that bears that something is still missing.
    pub fn partials<P>(&self) -> Partials<P>
    where
        P: DeserializeOwned,
    {
        Partials::new(self.schema().name.clone())
    }

    /// Reads the value out of a text. Whitespace, a byte order mark, a fence around the value
    /// (` ```json `, in any spelling) and sentences around the fence are ignored. A whole number may
    /// be written as `1.0`.
    ///
    /// # Errors
    ///
    /// It is not JSON, or does not fit the schema or the type.
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

    /// Reads the value out of a run's last answer.
    ///
    /// # Errors
    ///
    /// Those of [`of_text`](Self::of_text).
    pub fn of_answer(&self, answer: &Answer) -> Result<T, OutputError> {
        // What the run's last message says: not what was said before it was asked for the value.
        self.of_text(&last_text(&answer.finish).unwrap_or_else(|| answer.text()))
    }

    /// Reads the value out of a run's last event, for whoever reads the events one by one.
    ///
    /// # Errors
    ///
    /// Those of [`of_text`](Self::of_text). A model's own answer has no conversation in it, and so no
    /// value.
    pub fn of_finish(&self, finish: &Finish) -> Result<T, OutputError> {
        self.of_text(&last_text(finish).unwrap_or_default())
    }
}

fn last_text(finish: &Finish) -> Option<String> {
    let last = finish.transcript.as_ref()?.last()?;
    Some(last.as_message().text())
}

/// The value in a whole text: without a byte order mark, and of a text with one fenced block, what is
/// in the block. Sentences around the block are left out.
fn unfenced(text: &str) -> &str {
    let text = text.trim_matches(is_blank);
    // A string in the block may have a fence in it; nothing after the block does.
    match after_fence(text).and_then(|rest| rest.rsplit_once(FENCE)) {
        Some((inside, _)) => without_info(inside).trim_end_matches(is_blank),
        None => text,
    }
}

/// The value at the start of a text that is still written: [`unfenced`] without the end.
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

/// The text of a fenced block without the info string: one word, such as `json` or `JSON`, which may
/// be left out. On one line, `json` may touch the value.
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

/// An answer is not of the type that it is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutputError {
    /// What was received, whole.
    pub received: Str,
    /// Where and why it does not fit.
    pub why: Str,
}

impl fmt::Display for OutputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MAX: usize = 500;
        write!(
            f,
            "the answer does not fit its type: {}",
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
