//! Any bytes as an answer of Anthropic's Messages API.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| concentric_fuzz::raw("anthropic-messages", input));
