//! Any bytes as an answer of Ollama's `/api/generate`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| concentric_fuzz::raw("ollama-generate", input));
