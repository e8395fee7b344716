//! CPU time of a vendor's own Python SDK for reading the same responses.

use super::time;
use crate::work::{Answers, Wire};
use serde::Deserialize;
use serde_json::json;
use std::{
    io::{self, Write},
    process::{Command, Stdio},
};

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/sdk.py");

/// The result for an SDK.
#[derive(Clone, Debug)]
pub(crate) struct Sdk {
    /// The name and version.
    pub(crate) name: String,
    /// Nanoseconds per operation.
    pub(crate) ns: f64,
}

#[derive(Debug, Deserialize)]
struct Measured {
    sdk: String,
    /// The time to read all responses, for each sample.
    ns: Vec<u64>,
    /// The bytes of text in each response.
    text: Vec<usize>,
}

/// Returns the median of `samples`, after a warm-up, for the SDK of the API of `answers`. The SDK
/// must read the same text.
///
/// # Errors
///
/// Returns an error if `python` cannot be started, or does not have the SDK.
pub(crate) fn of(python: &str, answers: Answers, ops: u64, samples: usize) -> io::Result<Sdk> {
    let wires = (answers.wires)();
    let mut child = Command::new(python)
        .args([PROGRAM, answers.api, &samples.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    // The child reads all input before it writes any output.
    let written = child.stdin.take().map(|stdin| write(stdin, wires));
    let output = child.wait_with_output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!("{PROGRAM}: {}", output.status)));
    }
    written.transpose()?;
    let measured: Measured = serde_json::from_slice(&output.stdout)?;
    let text: Vec<usize> = wires.iter().map(|wire| wire.text).collect();
    assert_eq!(
        measured.text, text,
        "{} must read the same text",
        measured.sdk
    );
    let ns = measured
        .ns
        .iter()
        .map(|ns| *ns as f64 / ops as f64)
        .collect();
    Ok(Sdk {
        name: measured.sdk,
        ns: time::median(ns),
    })
}

fn write(mut to: impl Write, wires: &[Wire]) -> io::Result<()> {
    let lengths = |wire: &Wire| wire.frames.iter().map(|frame| frame.len()).collect();
    let head = json!({
        "media_type": wires.first().map(|wire| wire.media_type),
        "answers": wires.iter().map(lengths).collect::<Vec<Vec<usize>>>(),
    });
    writeln!(to, "{head}")?;
    for frame in wires.iter().flat_map(|wire| &wire.frames) {
        to.write_all(frame)?;
    }
    Ok(())
}
