//! CPU time of a vendor's own SDK, in Python, that reads the same answers.

use super::time;
use crate::work::{Answers, Wire};
use serde::Deserialize;
use serde_json::json;
use std::{
    io::{self, Write},
    process::{Command, Stdio},
};

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/sdk.py");

/// What an SDK took.
#[derive(Clone, Debug)]
pub(crate) struct Sdk {
    /// Its name and version.
    pub(crate) name: String,
    /// Nanoseconds per operation.
    pub(crate) ns: f64,
}

#[derive(Debug, Deserialize)]
struct Said {
    sdk: String,
    /// What reading all answers took, for each sample.
    ns: Vec<u64>,
    /// The bytes of text in each answer.
    text: Vec<usize>,
}

/// The median of `samples` after warm-up, of the SDK that `python` has for what the answers are of.
/// It must read the same text.
///
/// # Errors
///
/// If `python` can't be started, or does not have the SDK.
pub(crate) fn of(python: &str, answers: Answers, ops: u64, samples: usize) -> io::Result<Sdk> {
    let wires = (answers.wires)();
    let mut child = Command::new(python)
        .args([PROGRAM, answers.api, &samples.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    // It reads all before it says something.
    let written = child.stdin.take().map(|stdin| write(stdin, wires));
    let output = child.wait_with_output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!("{PROGRAM}: {}", output.status)));
    }
    written.transpose()?;
    let said: Said = serde_json::from_slice(&output.stdout)?;
    let text: Vec<usize> = wires.iter().map(|wire| wire.text).collect();
    assert_eq!(said.text, text, "{} reads the same text", said.sdk);
    let ns = said.ns.iter().map(|ns| *ns as f64 / ops as f64).collect();
    Ok(Sdk {
        name: said.sdk,
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
