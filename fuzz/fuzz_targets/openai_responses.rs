//! Any bytes as an answer of OpenAI's Responses.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| concentric_fuzz::raw("openai-responses", input));
