//! What a provider's layer supports, as traits: for code that is to compile with those only whose
//! service does what it needs.
//!
//! They are [`Capabilities`](crate::Capabilities) that are known before the program runs: of each
//! layer, and of the models that it makes, those that its API has, whatever the
//! [profile](crate::openai::Profile) of a server. What a single model of the service can't do
//! besides, or what a layer was [told](crate::ProviderLayer::capabilities) that it can't,
//! [`check`](crate::ProviderLayer::check) says when the program runs. A model of your own implements
//! those that it can promise.
//!
//! ```
//! use concentric_core::{Error, ModelService};
//! use concentric_providers::{AnthropicLayer, ApiKey, supports};
//! use tower::Layer;
//! # fn http() -> impl Clone {}
//!
//! /// Classifies by a tool that the model must call, so that it must be one that can be told to.
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
//! With [`OllamaLayer`](crate::OllamaLayer), that does not compile:
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
            message = "`{Self}` is not known to support this: its service may not take it",
            label = $what,
            note = "`concentric_providers::support` is a page of what each service does"
        )]
        pub trait $name {}
        $(
            impl $name for ProviderLayer<$api> {}
            impl<S> $name for Model<S, $api> {}
        )+
    )+};
}

supports! {
    /// It calls tools ([`Capabilities::tools`](crate::Capabilities::tools)).
    Tools, "does not call tools": Responses Messages GenerateContent Ollama;
    /// It can be told to call a tool, or which
    /// ([`Capabilities::tool_choice`](crate::Capabilities::tool_choice)).
    ToolChoice, "can't be told to call a tool": Responses Messages GenerateContent;
    /// It can be told to make one call at a time, or several
    /// ([`Capabilities::parallel_tool_calls`](crate::Capabilities::parallel_tool_calls)).
    ParallelToolCalls, "can't be told how many calls to make at a time": Responses Messages;
    /// It writes JSON of a schema ([`Capabilities::output_schema`](crate::Capabilities::output_schema)).
    OutputSchema, "does not write JSON of a schema": Responses Messages GenerateContent Ollama;
    /// It does so where it may call tools as well
    /// ([`Capabilities::output_schema_with_tools`](crate::Capabilities::output_schema_with_tools)).
    OutputSchemaWithTools, "does not write JSON of a schema where it may call tools":
        Responses Messages GenerateContent;
    /// It takes images in a request ([`Capabilities::images`](crate::Capabilities::images)).
    Images, "takes no images": Responses Messages GenerateContent Ollama;
    /// It takes sound in a request ([`Capabilities::audio`](crate::Capabilities::audio)).
    Audio, "takes no sound": GenerateContent;
    /// It takes documents in a request ([`Capabilities::files`](crate::Capabilities::files)).
    Files, "takes no documents": Responses Messages GenerateContent;
    /// It can be told how much to reason
    /// ([`Capabilities::reasoning_effort`](crate::Capabilities::reasoning_effort)).
    ReasoningEffort, "can't be told how much to reason":
        Chat Responses Messages GenerateContent Ollama;
    /// It goes on with an assistant's message at the end
    /// ([`Capabilities::prefill`](crate::Capabilities::prefill)).
    Prefill, "does not go on with an assistant's message": Responses Ollama;
}
