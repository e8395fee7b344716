//! Counts of the tokens of requests.
//!
//! A [`TokenCounter`] counts before a call; [`Usage`](concentric_core::Usage) is the provider's own count
//! after it. The layers that limit requests by tokens take any counter:
//!
//! | counter | accuracy | cost |
//! |---|---|---|
//! | [`Estimator`] | within a third of plain text and JSON; corrected by the usage that providers report | one pass over new text, no dependency |
//! | `BpeCounter`, of the feature `tokens-openai` | exact for the text of OpenAI's models | about 30 ms per MiB of new text |
//!
//! Each layer has a counter of its own, since a stack may have a model with other tokens at another place; pass one
//! to several layers to share its corrections.
//!
//! ```
//! use concentric_core::{ChatRequest, Usage};
//! use concentric_layers::tokens::{Estimator, TokenCounter};
//!
//! let estimator = Estimator::new();
//! let request = ChatRequest::user("What is the weather in Zürich?");
//! let counted = estimator.request(&request);
//! assert_eq!(counted, 7);
//!
//! // The provider reported twice as many: so will the next estimate.
//! estimator.observe(None, counted, &Usage::new(14, 5));
//! assert_eq!(estimator.request(&request), 14);
//! ```

#[cfg(feature = "tokens-openai")]
mod bpe;
mod budget;
mod counter;
mod estimator;

#[cfg(feature = "tokens-openai")]
pub use self::bpe::BpeCounter;
pub use self::{budget::ContextBudget, counter::TokenCounter, estimator::Estimator};

#[cfg(any(feature = "budget", feature = "rate-limit"))]
pub(crate) use self::estimator::BYTES;
#[cfg(feature = "compaction")]
pub(crate) use self::estimator::scaled;
