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

macro_rules! supports {
    ($($(#[$doc:meta])* $name:ident, $what:literal;)+) => {$(
        $(#[$doc])*
        #[diagnostic::on_unimplemented(
            message = "`{Self}` is not known to support this feature",
            label = $what,
            note = "see `concentric_providers::support` for the features of each service"
        )]
        pub trait $name {}
    )+};
}

supports! {
    /// Models that call tools ([`Capabilities::tools`](crate::Capabilities::tools)).
    Tools, "does not call tools";
    /// Models that support a forced tool choice
    /// ([`Capabilities::tool_choice`](crate::Capabilities::tool_choice)).
    ToolChoice, "does not support a forced tool choice";
    /// Models with control over parallel tool calls
    /// ([`Capabilities::parallel_tool_calls`](crate::Capabilities::parallel_tool_calls)).
    ParallelToolCalls, "does not support `parallel_tool_calls`";
    /// Models that support an output schema
    /// ([`Capabilities::output_schema`](crate::Capabilities::output_schema)).
    OutputSchema, "does not support an output schema";
    /// Models that support an output schema in requests with tools
    /// ([`Capabilities::output_schema_with_tools`](crate::Capabilities::output_schema_with_tools)).
    OutputSchemaWithTools, "does not support an output schema together with tools";
    /// Models that accept images in a request
    /// ([`Capabilities::images`](crate::Capabilities::images)).
    Images, "does not accept images";
    /// Models that accept audio in a request ([`Capabilities::audio`](crate::Capabilities::audio)).
    Audio, "does not accept audio";
    /// Models that accept documents in a request
    /// ([`Capabilities::files`](crate::Capabilities::files)).
    Files, "does not accept documents";
    /// Models that support a reasoning effort
    /// ([`Capabilities::reasoning_effort`](crate::Capabilities::reasoning_effort)).
    ReasoningEffort, "does not support a reasoning effort";
    /// Models that continue an assistant message at the end of a conversation
    /// ([`Capabilities::prefill`](crate::Capabilities::prefill)).
    Prefill, "does not continue an assistant message";
}

macro_rules! supported {
    ($feature:literal, $api:path: $($name:ident)+) => {$(
        #[cfg(feature = $feature)]
        impl $name for crate::ProviderLayer<$api> {}
        #[cfg(feature = $feature)]
        impl<S> $name for crate::Model<S, $api> {}
    )+};
}

supported!("openai", crate::openai::Chat: ReasoningEffort);
supported!("responses", crate::responses::Responses:
    Tools ToolChoice ParallelToolCalls OutputSchema OutputSchemaWithTools Images Files
    ReasoningEffort Prefill);
supported!("anthropic", crate::anthropic::Messages:
    Tools ToolChoice ParallelToolCalls OutputSchema OutputSchemaWithTools Images Files
    ReasoningEffort);
supported!("gemini", crate::gemini::GenerateContent:
    Tools ToolChoice OutputSchema OutputSchemaWithTools Images Audio Files ReasoningEffort);
supported!("ollama", crate::ollama::Ollama: Tools OutputSchema Images ReasoningEffort Prefill);
