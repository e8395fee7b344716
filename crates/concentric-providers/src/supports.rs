//! Marker traits for the features that a provider layer supports, so that missing features are
//! detected at compile time.
//!
//! The traits correspond to [`Capabilities`](crate::Capabilities) that every layer and model of an
//! API has, for any [profile](crate::openai::Profile) of a server. Restrictions of a single model,
//! or those [configured](crate::ProviderLayer::capabilities) on a layer, are reported at run time
//! by [`check`](crate::ProviderLayer::check). Implement the traits for your own models where they
//! apply.
//!
//! ```
//! use concentric_core::{Error, ModelService};
//! use concentric_providers::{AnthropicLayer, ApiKey, supports};
//! use tower::Layer;
//! # fn http() -> impl Clone {}
//!
//! /// Classifies with a forced tool call, which the model must support.
//! fn classifier<M>(model: M) -> M
//! where
//!     M: supports::Tools + supports::ToolChoice,
//! {
//!     model
//! }
//!
//! let layer = AnthropicLayer::new("claude-opus-4-8", ApiKey::new("key"));
//! let model = classifier(layer.layer(http()));
//! # let _ = model;
//! ```
//!
//! With [`OllamaLayer`](crate::OllamaLayer), this does not compile:
//!
//! ```compile_fail,E0277
//! # use concentric_providers::{OllamaLayer, supports};
//! # use tower::Layer;
//! # fn http() -> impl Clone {}
//! # fn classifier<M: supports::Tools + supports::ToolChoice>(model: M) -> M { model }
//! let model = classifier(OllamaLayer::new("qwen3").layer(http()));
//! ```

use crate::{
    Model, ProviderLayer, anthropic::Messages, gemini::GenerateContent, ollama::Ollama,
    openai::Chat, responses::Responses,
};

macro_rules! supports {
    ($($(#[$doc:meta])* $name:ident, $what:literal: $($api:ty)+;)+) => {$(
        $(#[$doc])*
        #[diagnostic::on_unimplemented(
            message = "`{Self}` is not known to support this feature",
            label = $what,
            note = "see `concentric_providers::support` for the features of each service"
        )]
        pub trait $name {}
        $(
            impl $name for ProviderLayer<$api> {}
            impl<S> $name for Model<S, $api> {}
        )+
    )+};
}

supports! {
    /// Models that call tools ([`Capabilities::tools`](crate::Capabilities::tools)).
    Tools, "does not call tools": Responses Messages GenerateContent Ollama;
    /// Models that support a forced tool choice
    /// ([`Capabilities::tool_choice`](crate::Capabilities::tool_choice)).
    ToolChoice, "does not support a forced tool choice": Responses Messages GenerateContent;
    /// Models with control over parallel tool calls
    /// ([`Capabilities::parallel_tool_calls`](crate::Capabilities::parallel_tool_calls)).
    ParallelToolCalls, "does not support `parallel_tool_calls`": Responses Messages;
    /// Models that support an output schema
    /// ([`Capabilities::output_schema`](crate::Capabilities::output_schema)).
    OutputSchema, "does not support an output schema": Responses Messages GenerateContent Ollama;
    /// Models that support an output schema in requests with tools
    /// ([`Capabilities::output_schema_with_tools`](crate::Capabilities::output_schema_with_tools)).
    OutputSchemaWithTools, "does not support an output schema together with tools":
        Responses Messages GenerateContent;
    /// Models that accept images in a request
    /// ([`Capabilities::images`](crate::Capabilities::images)).
    Images, "does not accept images": Responses Messages GenerateContent Ollama;
    /// Models that accept audio in a request ([`Capabilities::audio`](crate::Capabilities::audio)).
    Audio, "does not accept audio": GenerateContent;
    /// Models that accept documents in a request
    /// ([`Capabilities::files`](crate::Capabilities::files)).
    Files, "does not accept documents": Responses Messages GenerateContent;
    /// Models that support a reasoning effort
    /// ([`Capabilities::reasoning_effort`](crate::Capabilities::reasoning_effort)).
    ReasoningEffort, "does not support a reasoning effort":
        Chat Responses Messages GenerateContent Ollama;
    /// Models that continue an assistant message at the end of a conversation
    /// ([`Capabilities::prefill`](crate::Capabilities::prefill)).
    Prefill, "does not continue an assistant message": Responses Ollama;
}
