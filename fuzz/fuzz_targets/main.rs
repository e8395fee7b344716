//! All fuzz targets in one program, which is linked once. `CONCENTRIC_FUZZ` has the name of the target to run.
#![no_main]

mod approval_token;
mod arguments;
mod cassette;
mod json_array;
mod json_patch;
mod machine_state;
mod matcher;
mod ndjson;
mod partial_arguments;
mod partials;
mod request;
mod skill_md;
mod sse;

use arbitrary::{Arbitrary, Unstructured};
use concentric_fuzz::Endpoint;
use libfuzzer_sys::{Corpus, fuzz_target};
use std::sync::OnceLock;

/// Runs a target with an input.
type Target = fn(&[u8]) -> Corpus;

const TARGETS: &[(&str, Target)] = &[
    ("ag_ui_input", |it| request(it, Endpoint::AgUi)),
    ("anthropic_messages", |it| raw("anthropic-messages", it)),
    ("approval_token", |it| typed(it, approval_token::run)),
    ("arguments", |it| typed(it, arguments::run)),
    ("cassette", |it| typed(it, cassette::run)),
    ("gemini_generate", |it| raw("gemini-generate", it)),
    ("json_array", |it| typed(it, json_array::run)),
    ("json_patch", |it| typed(it, json_patch::run)),
    ("machine_state", |it| typed(it, machine_state::run)),
    ("matcher", |it| typed(it, matcher::run)),
    ("ndjson", |it| typed(it, ndjson::run)),
    ("ollama_chat", |it| raw("ollama-chat", it)),
    ("ollama_generate", |it| raw("ollama-generate", it)),
    ("openai_chat", |it| raw("openai-chat", it)),
    ("openai_chat_request", |it| request(it, Endpoint::Chat)),
    ("openai_responses", |it| raw("openai-responses", it)),
    ("openai_responses_request", |it| {
        request(it, Endpoint::Responses)
    }),
    ("partial_arguments", |it| typed(it, partial_arguments::run)),
    ("partials", |it| typed(it, partials::run)),
    ("skill_md", |it| typed(it, skill_md::run)),
    ("sse", |it| typed(it, sse::run)),
    ("ui_messages_input", |it| request(it, Endpoint::UiMessages)),
];

static TARGET: OnceLock<Target> = OnceLock::new();

fuzz_target!(|bytes: &[u8]| -> Corpus { TARGET.get_or_init(named)(bytes) });

fn named() -> Target {
    let name = std::env::var("CONCENTRIC_FUZZ").unwrap_or_default();
    match TARGETS.iter().find(|(it, _)| *it == name) {
        Some((_, target)) => *target,
        None => panic!("CONCENTRIC_FUZZ={name} names no target"),
    }
}

/// Runs a target with a value of the input. An input that is no value is not kept.
fn typed<'a, T: Arbitrary<'a>>(bytes: &'a [u8], run: fn(T)) -> Corpus {
    match T::arbitrary_take_rest(Unstructured::new(bytes)) {
        Ok(value) => {
            run(value);
            Corpus::Keep
        }
        Err(_) => Corpus::Reject,
    }
}

fn raw(api: &str, bytes: &[u8]) -> Corpus {
    concentric_fuzz::raw(api, bytes);
    Corpus::Keep
}

fn request(bytes: &[u8], endpoint: Endpoint) -> Corpus {
    request::run(endpoint, bytes);
    Corpus::Keep
}
