//! Any bytes as an answer of Ollama's `/api/chat`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| concentric_fuzz::raw("ollama-chat", input));
