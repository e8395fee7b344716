//! What the traits say of the layers is what the layers say of themselves.

use concentric_core::{ChatRequest, Message, Turn};
use concentric_providers::{
    AnthropicLayer, ApiKey, Capabilities, GeminiLayer, OllamaLayer, OpenAiLayer,
    OpenAiResponsesLayer, Sources, openai::Profile, supports,
};
use std::marker::PhantomData;
use tower::Layer;

/// Whether a type implements a trait: what is inherent goes before what is a trait's.
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

/// What the traits say of a layer, in the order of [`known`].
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

/// What a layer says. Whether it goes on with words depends on more than its capabilities.
macro_rules! said {
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
fn a_layer_promises_what_it_says_of_its_newest_models() {
    let key = || ApiKey::new("key");
    let responses = said!(OpenAiResponsesLayer::new("gpt-5.5", key()));
    assert_eq!(promised!(OpenAiResponsesLayer), responses);
    let anthropic = said!(AnthropicLayer::new("claude-opus-4-8", key()));
    assert_eq!(promised!(AnthropicLayer), anthropic);
    let gemini = said!(GeminiLayer::new("gemini-3.5-flash", key()));
    assert_eq!(promised!(GeminiLayer), gemini);
    let ollama = said!(OllamaLayer::new("qwen3"));
    assert_eq!(promised!(OllamaLayer), ollama);
}

#[test]
fn chat_completions_promise_what_every_server_of_theirs_does() {
    let mut all = [true; 10];
    for profile in Profile::ALL {
        let layer = OpenAiLayer::profile(*profile, "m", None);
        for (all, one) in all.iter_mut().zip(said!(layer)) {
            *all &= one;
        }
    }
    assert_eq!(promised!(OpenAiLayer), all);
}

#[test]
fn a_model_promises_what_its_layer_does() {
    fn model_of<L: Layer<()>>(_: fn() -> L) -> PhantomData<L::Service> {
        PhantomData
    }
    fn is_able<M: supports::Tools + supports::Audio>(_: PhantomData<M>) {}
    is_able(model_of::<GeminiLayer>(|| unreachable!()));
}
