//! Any bytes as an answer of Gemini's `generateContent`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| concentric_fuzz::raw("gemini-generate", input));
