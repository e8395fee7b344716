//! Compares the marker traits with the capabilities of the layers.
#![cfg(feature = "full")]

use concentric_core::{ChatRequest, Message, Turn};
use concentric_providers::{
    AnthropicLayer, ApiKey, Capabilities, GeminiLayer, OllamaLayer, OpenAiLayer,
    OpenAiResponsesLayer, Sources, openai::Profile, supports,
};
use std::marker::PhantomData;
use tower::Layer;

/// Whether a type implements a trait: an inherent constant takes precedence over a trait's.
macro_rules! implements {
    ($type:ty: $trait:path) => {{
        #[allow(dead_code, reason = "where the other trait is implemented")]
        trait Otherwise {
            const IS: bool = false;
        }
        impl<T> Otherwise for Of<T> {}
        struct Of<T>(PhantomData<T>);
        #[allow(dead_code, reason = "where the trait is not implemented")]
        impl<T: $trait> Of<T> {
            const IS: bool = true;
        }
        <Of<$type>>::IS
    }};
}

/// The implemented traits of a layer, in the order of [`known`].
macro_rules! promised {
    ($type:ty) => {
        [
            implements!($type: supports::Tools),
            implements!($type: supports::ToolChoice),
            implements!($type: supports::ParallelToolCalls),
            implements!($type: supports::OutputSchema),
            implements!($type: supports::OutputSchemaWithTools),
            implements!($type: supports::Images),
            implements!($type: supports::Audio),
            implements!($type: supports::Files),
            implements!($type: supports::ReasoningEffort),
            implements!($type: supports::Prefill),
        ]
    };
}

fn known(capabilities: Capabilities) -> [bool; 10] {
    let any = |sources: Sources| sources != Sources::NONE;
    [
        capabilities.tools,
        capabilities.tool_choice,
        capabilities.parallel_tool_calls,
        capabilities.output_schema,
        capabilities.output_schema_with_tools,
        any(capabilities.images),
        any(capabilities.audio),
        any(capabilities.files),
        capabilities.reasoning_effort,
        capabilities.prefill,
    ]
}

/// The capabilities of a layer. Prefill also depends on its check.
macro_rules! reported {
    ($layer:expr) => {{
        let layer = $layer;
        let mut capabilities = layer.supports();
        let words = Turn::message(Message::assistant("One, two,"));
        let mut request = ChatRequest::user("Count to three.");
        request.transcript.push(words.expect("a turn"));
        capabilities.prefill &= layer.check(&request).is_empty();
        known(capabilities)
    }};
}

#[test]
fn layer_traits_match_the_newest_models() {
    let key = || ApiKey::new("key");
    let responses = reported!(OpenAiResponsesLayer::new("gpt-5.5", key()));
    assert_eq!(promised!(OpenAiResponsesLayer), responses);
    let anthropic = reported!(AnthropicLayer::new("claude-opus-4-8", key()));
    assert_eq!(promised!(AnthropicLayer), anthropic);
    let gemini = reported!(GeminiLayer::new("gemini-3.5-flash", key()));
    assert_eq!(promised!(GeminiLayer), gemini);
    let ollama = reported!(OllamaLayer::new("qwen3"));
    assert_eq!(promised!(OllamaLayer), ollama);
}

#[test]
fn chat_traits_match_every_profile() {
    let mut all = [true; 10];
    for profile in Profile::ALL {
        let layer = OpenAiLayer::profile(*profile, "m", None);
        for (all, one) in all.iter_mut().zip(reported!(layer)) {
            *all &= one;
        }
    }
    assert_eq!(promised!(OpenAiLayer), all);
}

#[test]
fn model_traits_match_the_layer() {
    fn model_of<L: Layer<()>>(_: fn() -> L) -> PhantomData<L::Service> {
        PhantomData
    }
    fn is_able<M: supports::Tools + supports::Audio>(_: PhantomData<M>) {}
    is_able(model_of::<GeminiLayer>(|| unreachable!()));
}
