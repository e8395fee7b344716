//! A layer that removes personal data, credentials and other texts from inputs and answers.
//!
//! ```
//! use concentric_core::{AgentLayer, ChatRequest, Error};
//! use concentric_layers::guard::{GuardLayer, Parts, Rule, Rules, pii, secrets};
//! use concentric_test::{ScriptedModel, ScriptedTools};
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let mut rules = vec![
//!     pii::card().mask(4),
//!     pii::email(),
//!     Rule::literals("codename", ["Bluebird"]).block(),
//! ];
//! rules.extend(secrets::all());
//! let rules = Rules::new(rules).expect("the patterns are valid");
//!
//! let agent = ServiceBuilder::new()
//!     .layer(AgentLayer::new(ScriptedTools::new()))
//!     .layer(
//!         GuardLayer::new(rules)
//!             .input(Parts::USER | Parts::RESULTS)
//!             .output(Parts::TEXT | Parts::REASONING | Parts::REFUSAL | Parts::ARGUMENTS),
//!     )
//!     .service(ScriptedModel::new().deltas(["Write to ann@exam", "ple.com."]));
//! let answer = agent.oneshot(ChatRequest::user("Who can help?")).await?;
//! assert_eq!(answer.text().await?, "Write to [email].");
//! # Ok(())
//! # }
//! ```
//!
//! The modules [`pii`] and [`secrets`] have rules; [`Rule`] makes others. [`Rules::apply`] applies them to a
//! text, such as that of a log line: `LogLayer::redact(move |text| rules.apply(text).into_owned())`. `Rules` is
//! also a classifier of `GuardrailLayer`: it blocks texts in which a rule that [blocks](Rule::block) matches,
//! and flags those in which another one does.
//!
//! Compile a set once, when the application starts: [`Rules::new`] states the cost.
//!
//! # Held text
//!
//! A match is replaced as a whole, also if it arrives in several events. Text is held from the first place at
//! which a match may begin, until no match can begin there or the longest one has ended: at most the length of
//! the longest match, and one event. All other text is released at once. What follows a match of the
//! [maximum length](Rule::at_most) and belongs to it is not held, but dropped. The output of a stream is that
//! of the whole text, for any way to divide it.
//!
//! Text that is held is released, in an event of its kind, before the end of its part, a part of another kind,
//! a complete tool call, the end of the step or of the answer, and an error. A match does not extend over two parts.
//! The start of a call is a preview, and does not end the text before it.
//!
//! # Events
//!
//! | event | with | treatment |
//! |---|---|---|
//! | text, reasoning, refusal | `TEXT`, `REASONING`, `REFUSAL` | as above |
//! | end of a part | | without its provider data if its text was changed, since that may be a signature |
//! | complete part | the kind of its content | changed; without its provider data if it was; file names and URLs included, not the content of files, which has other forms than text |
//! | text of a request with an [output schema](concentric_core::ChatOptions::output_schema) | `TEXT` | held until the part is complete; as JSON, see below |
//! | start of a tool call and pieces of its arguments | `ARGUMENTS` | held until the call, then in one piece; without `ARGUMENTS`, if text is held in front of it |
//! | tool call | `ARGUMENTS` | as JSON, with the name of the tool; inside the loop, gates and tools get the changed call |
//! | tool result | `RESULTS` | the content, the structured data and the reason of a halt, as JSON |
//! | state, custom event | `CUSTOM` | strings, numbers and names of fields; text that is held stays held |
//! | custom event `interrupt` | | passes: the person that decides must see the exact arguments |
//! | event of a nested run | | as an event of the run, with texts of its own |
//! | replaced transcript | the kinds of its parts; all with `TRANSCRIPT` | changed |
//! | finish | `TEXT` | the reason of the outcome |
//! | | `TRANSCRIPT` | the transcript, wholly; the state of an interrupted run passes, since the run is resumed from it |
//! | error | `TEXT` | the message, the code and the type; a match in the message or a source also removes the sources |
//! | errors of other models ([`FailedAttempts`](crate::fallback::FailedAttempts)), in the extensions of the answer | `TEXT` | as an error |
//! | part or data of a provider | `PROVIDER_DATA` | removed if a rule matches in it |
//! | name of a custom event, ids of calls, messages and runs | | pass: programs compare them, and a result belongs to the call with its id |
//! | reset | | held text is dropped |
//! | start and end of a step, resumed | | pass |
//!
//! In JSON, rules apply to each string without its escapes, to numbers, and to names of fields; for
//! `"password": "..."`, also to the name and the value together. A string that is itself a JSON object or array
//! is edited likewise, up to 8 of them inside of each other, as is a text of a user that is one. What replaces a number is a string, so the text
//! remains JSON. Of several names in one object that are replaced by the same one, each further one gets a
//! number, so that no field is lost. Unchanged values keep their exact form. Arguments that are not JSON are a
//! text, which is changed rather than blocked: no tool accepts them, and the model sees its mistake.
//!
//! In all texts, `\b`, `\f`, `\n`, `\r` and `\t` are also white space in front of a match, since a text may have
//! JSON or program code in it.
//!
//! # Input
//!
//! | text | with |
//! |---|---|
//! | messages of users, messages and replies that resume a run | `USER` |
//! | the system prompt, messages of the operator | `SYSTEM` |
//! | earlier answers and calls | `TEXT`, `REASONING`, `REFUSAL`, `ARGUMENTS` |
//! | results of tools | `RESULTS` |
//!
//! Each turn is edited once per run.
//!
//! # Place in the stack
//!
//! Inside the loop, the transcript, the next request and the consumer get the changed answer; a changed
//! request is a view for one call. Outside the loop, only the consumer gets the changed answer, and a changed
//! request lasts for the run. A layer outside the guard sees, logs and stores what the guard has released of an
//! answer, and a layer inside what it has released of a request. For the rest:
//!
//! - A log outside the guard has the input as it arrived, unless its texts are redacted, as above.
//! - A response cache inside the guard has the answers of the model, and the guard changes them each time.
//! - A model that summarises for a [`CompactionLayer`](crate::CompactionLayer) around the guard, or that another layer
//!   calls, needs a guard of its own.
//! - Caches of tools, the conversation and stored runs have the results as the tools return them. A layer on the
//!   tools, such as [`tool_from_fn`](crate::tool_from_fn), can apply the rules first.
//!
//! Outside the loop the layer cannot know whether the agent's answer is typed, so replacements in it are not
//! those of JSON. See the [recommended order](crate::order).
//!
//! # Matches that block
//!
//! | match in | result |
//! |---|---|
//! | the input | the inner service is not called; the future fails |
//! | an answer, before content is released | the future fails |
//! | an answer, later | the body ends with the error |
//! | any, with [`block_with`](GuardLayer::block_with) | the text, and a finish with [`ContentFilter`](concentric_core::FinishReason::ContentFilter) |
//!
//! The text before the match is released, nothing of the match is. The inner call is dropped: inside the loop,
//! a blocked tool call is not executed.
//!
//! # Errors
//!
//! [`ErrorKind::ContentFilter`](concentric_core::ErrorKind::ContentFilter) with the code [`BLOCKED`] and the
//! name of the rule in the message. Most callers treat it as they treat a filter of the provider; those that do
//! not compare one code for all rules. [`ErrorKind::TooLarge`](concentric_core::ErrorKind::TooLarge) for a typed answer beyond
//! [`limit`](GuardLayer::limit). The rules themselves cannot fail.
//!
//! # Backpressure and commit point
//!
//! The layer is always ready, since it may answer itself; its future waits for the inner service. The future
//! resolves with the first released content. Services of one layer value share the rules; held text belongs
//! to one call.
//!
//! # Cancel safety
//!
//! Dropping the future or the body drops the inner call and the held text.

mod automaton;
mod body;
#[cfg(feature = "guardrail")]
mod classifier;
mod edit;
mod future;
mod input;
mod json;
mod lane;
mod layer;
mod parts;
pub mod pii;
mod rule;
mod rules;
mod scan;
pub mod secrets;

use self::edit::Edit;
pub use self::{
    body::GuardBody,
    future::ResponseFuture,
    layer::{BLOCKED, Found, Guard, GuardLayer},
    parts::Parts,
    rule::Rule,
    rules::{Rules, RulesError},
};
