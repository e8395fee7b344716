//! A layer that has the input or the answer of a call judged before it takes effect.
//!
//! A classifier is a [`Service`] from a [`Subject`] to an [`Assessment`], so
//! tower's layers limit, time out or buffer it. [`ModelClassifier`] asks a model.
//!
//! [`Service`]: https://docs.rs/tower-service/0.3/tower_service/trait.Service.html
//!
//! ```
//! use concentric_core::{BoxError, BoxModel};
//! use concentric_layers::guardrail::{Assessment, GuardrailLayer, Input, ModelClassifier, Output, Subject};
//! use tower::{ServiceBuilder, service_fn};
//!
//! fn guarded(agent: BoxModel, small_model: BoxModel) -> BoxModel {
//!     let topic = ModelClassifier::new(small_model, "off-topic: not about our shop");
//!     let codename = service_fn(async |subject: Subject| {
//!         Ok::<_, BoxError>(match subject.text.contains("Bluebird") {
//!             true => Assessment::Block(vec!["codename".into()]),
//!             false => Assessment::Pass,
//!         })
//!     });
//!     BoxModel::new(
//!         ServiceBuilder::new()
//!             // Runs beside the call: nothing is shown, and no tool starts, before it has passed.
//!             .layer(GuardrailLayer::new("topic", topic).input(Input::Parallel))
//!             // The answer is released in windows of 400 characters.
//!             .layer(GuardrailLayer::new("codename", codename).output(Output::windows(400, 100)))
//!             .service(agent),
//!     )
//! }
//! # let _ = guarded;
//! ```
//!
//! # What is judged
//!
//! | option | subject | before the verdict |
//! |---|---|---|
//! | [`Input::Blocking`] | the text and the images in the messages of the user since the last answer; on a resumed run, the text of the replies | the inner service is not called |
//! | [`Input::Parallel`] | the same | the inner service is called, and its body is not read: no event is emitted, and no tool starts ([`Context::hold_effects`](concentric_core::Context::hold_effects)) |
//! | [`Output::Whole`] | all text of the answer | no event is emitted |
//! | [`Output::Windows`] | pieces of the text, each with the end of the one before it | the text of the piece, and everything after it, is held |
//!
//! Text is that of text, reasoning and refusal events, also of nested runs. The answer of each run, with its
//! refusals, and the reasoning of each run are texts of their own, since consumers show them apart; a subject has the
//! new text of each on lines of its own. Tool calls, tool results, the end of a step and the end of the answer wait
//! until all text before them has passed, and cause its judgement. Custom events and the shared state do not: they
//! are held with the text before them. An answer without text is not judged, nor an input without text and images:
//! audio and documents are judged by no classifier that does not find them in [`Subject::transcript`]. Inside the
//! loop, the input is judged in the first step of a run, and in each before which messages were added to the run, as
//! by [`Steering`](crate::Steering). Around an agent, such messages are not judged, since the layer receives the
//! request alone. A message that a layer wrote, such as the summary of a [`CompactionLayer`](crate::CompactionLayer)
//! in the place of earlier turns, is not one of the user.
//!
//! An answer that fails or ends early loses the text that was not judged, as does a step that is
//! [discarded](concentric_core::Event::Reset): such text is neither judged nor emitted. The text of an interrupted run
//! is judged like any other.
//!
//! # When a subject is blocked
//!
//! [`OnBlock`] decides: the call fails, the run is halted, or a fixed text takes the place of what was
//! held. The inner call is dropped at once. Each `Block` and `Flag` emits a
//! [`CustomEvent`](concentric_core::CustomEvent) named `concentric.guardrail` with the name, the direction, the
//! categories and whether it was blocked, and no text.
//!
//! A classifier that fails, panics or exceeds its [time](GuardrailLayer::timeout) blocks, with the code
//! [`FAILED`]; [`fail_open`](GuardrailLayer::fail_open) reverses that. A warning with the target
//! `concentric::guardrail` has the kind and the code of its error, and not the message, which may quote the text.
//!
//! # What the classifier decides
//!
//! The layer has no thresholds, scores or rewriting: a classifier knows the scale of its scores, and blocks or
//! flags by them. One that only observes flags all that it finds. The moderation of a provider is a service
//! around its client: that of OpenAI, `OpenAiLayer::moderation` of `concentric-providers`, is a classifier with
//! tower's `map_request` and `map_response`, as the [docs of its
//! module](https://docs.rs/concentric-providers/latest/concentric_providers/activity/) show. Texts are changed by
//! [rules](crate::GuardLayer), which need no other text than their own, or by a
//! [`TransformLayer`](crate::TransformLayer). The kind of the error is that of a provider's filter, as callers
//! treat both alike; the code tells them apart, and [`Blocked`] has the name.
//!
//! # Place in the stack
//!
//! Around an agent, once per run: a rejected input starts no run. Inside the loop, once per model call:
//! the transcript has only what was released. With [`Input::Parallel`], layers inside may read the body before
//! the verdict, as [`Output::Whole`] and [`SuspendLayer`](crate::SuspendLayer) do: their loops call the model,
//! and wait before their first tool. A [`DetachLayer`](crate::DetachLayer) belongs around this layer, since it
//! would continue a run whose input is blocked; inside, it fails the call with
//! [`Configuration`](concentric_core::ErrorKind::Configuration) and names both layers.
//! [`OutputConstraint`](crate::stop::OutputConstraint) asks the model for another answer, which this layer does
//! not: it may have released the beginning.
//!
//! See the [recommended order](crate::order).
//!
//! # Backpressure
//!
//! The layer is always ready. Its future waits for the readiness of the classifier and of a clone of the inner
//! service. While a verdict is pending, the inner body is not read.
//!
//! # Errors
//!
//! [`ContentFilter`](concentric_core::ErrorKind::ContentFilter) with the code [`BLOCKED`] or [`FAILED`];
//! the source is a [`Blocked`] or the classifier's error.
//! [`TooLarge`](concentric_core::ErrorKind::TooLarge) if more than the [limit](GuardrailLayer::limit) is held.
//!
//! # Cancel safety
//!
//! Dropping the future or the body drops the classification and the inner call. A cancelled run, or one whose
//! deadline passes, stops waiting for a verdict.

mod body;
mod classifier;
mod future;
mod layer;
mod model;
mod verdict;

#[cfg(feature = "detach")]
pub(crate) use self::future::Unjudged;
pub use self::{
    body::GuardrailBody,
    classifier::{Assessment, Subject},
    future::ResponseFuture,
    layer::{Guardrail, GuardrailLayer, Input, OnBlock, Output},
    model::ModelClassifier,
    verdict::{BLOCKED, Blocked, FAILED},
};
