//! Any bytes as an answer of chat completions.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| concentric_fuzz::raw("openai-chat", input));
