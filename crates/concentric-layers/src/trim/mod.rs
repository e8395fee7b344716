//! A layer that sends the newest turns of a long conversation.
//!
//! ```
//! use concentric_core::{AgentLayer, ChatRequest, Error, Message, NoTools, Transcript, Turn};
//! use concentric_layers::TrimLayer;
//! use concentric_test::ScriptedModel;
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let model = ScriptedModel::new().text("Fine.");
//! let agent = ServiceBuilder::new()
//!     .layer(AgentLayer::new(NoTools))
//!     .layer(TrimLayer::turns(10).head(1).marker("(Earlier messages were removed.)"))
//!     .service(model.clone());
//! let history: Transcript = (0..30).map(|n| Turn::user(n.to_string())).collect();
//! let mut request = ChatRequest::new(history);
//! request.transcript.push(Turn::message(Message::assistant("Yes."))?);
//! request.transcript.push_user("How are you?");
//! let answer = agent.oneshot(request).await?.collect().await?;
//! // The first turn, the marker, and the newest six.
//! assert_eq!(model.request(0).transcript.len(), 8);
//! // The conversation has all turns.
//! assert_eq!(answer.transcript().unwrap().len(), 33);
//! # Ok(())
//! # }
//! ```
//!
//! # What is sent
//!
//! The first turns ([`head`](TrimLayer::head)), and the newest ones within the limit. A round, that is, the tool
//! calls of a message and their results, is one turn, so a call is never sent without its result. The current
//! exchange, from the user's newest message, is always sent whole. So are earlier messages to which the model had
//! not answered, such as the one before a message that was added to a running run, if they are within the limit.
//!
//! | limit | counts |
//! |---|---|
//! | [`turns`](TrimLayer::turns) | turns of the conversation |
//! | [`messages`](TrimLayer::messages) | messages as providers have them: each result is one |
//! | [`tokens`](TrimLayer::tokens) | tokens of the whole request: system prompt, tools and turns |
//!
//! | moment | effect |
//! |---|---|
//! | a request is within the limit | it passes unchanged, after the earlier cut of its run and without the reasoning to [drop](TrimLayer::drop_reasoning) |
//! | it exceeds the limit | so many turns are left out that the rest is at most 80 % of it. The cut stays until the limit is exceeded again, so that the provider's prompt cache applies to the steps between |
//! | the head and the current exchange alone exceed it | they are sent, with the marker, and no other turns |
//!
//! Each change emits a custom event `concentric.trim` with the value `{"turns": n, "over": false}`: the
//! number of turns that are left out, and whether the request exceeds the limit nevertheless.
//!
//! A token limit follows a [`ContextBudget`](crate::tokens::ContextBudget) that is lower: a host provides one for
//! a part of a model's window, which this layer does not know. The provider's usage is reported to the counter
//! ([`observe`](crate::tokens::TokenCounter::observe)).
//!
//! # Place in the stack
//!
//! Inside the loop, once per model call: the conversation of the run and its store keep all turns. Inside
//! [`CompactionLayer`](crate::CompactionLayer), of which it is the cheap form. Around an agent, the run has what is
//! left, and no other turns return. One layer in a loop: of two, each forgets the cut of the other.
//!
//! See the [recommended order](crate::order).
//!
//! # State
//!
//! A durable slot of the run, `concentric/trim`, has the cut, so a resumed run sends the same turns. A cut
//! that does not match the conversation is ignored.
//!
//! # Backpressure, errors and cancellation
//!
//! Readiness is forwarded, responses and errors pass unchanged; the layer does not wait for anything. A step
//! in which nothing is cut costs as much for a long conversation as for a short one.

mod layer;
mod service;

pub use self::{layer::TrimLayer, service::Trim};
pub use crate::window::{ResponseFuture, WindowBody};
