//! Instructions of each stage, counted by callgrind.

use crate::child;
use concentric_core::BoxError;
use std::{
    collections::BTreeMap,
    fs,
    process::{Command, Stdio},
};

/// How the instructions of one stage grow.
#[derive(Clone, Debug)]
pub(crate) struct Ratio {
    /// The stack and the stage.
    pub(crate) stage: String,
    /// The instructions for n bytes, and for twice as many.
    pub(crate) counts: [u64; 2],
}

/// Whether there is a callgrind to count with.
pub(crate) fn is_available() -> bool {
    Command::new("valgrind")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// How each stage of each stack grows from `bytes` bytes of the shape to twice as many.
pub(crate) fn ratios(shape: &str, bytes: usize) -> Result<Vec<Ratio>, BoxError> {
    let folder = tempfile::tempdir()?;
    let counts = folder.path().join("counts");
    let mut tool = Command::new("valgrind");
    tool.args(["--tool=callgrind", "--combine-dumps=yes"])
        .arg("--dump-before=*hostile_boundary*")
        .arg(format!("--callgrind-out-file={}", counts.display()));
    let out = child(Some(&mut tool), &["count", shape, &bytes.to_string()])?;
    let counts = fs::read_to_string(counts)?;
    let totals = counts
        .lines()
        .filter_map(|line| line.strip_prefix("totals: "));
    let totals: Vec<u64> = totals.map(str::parse).collect::<Result<_, _>>()?;

    // The counts at a boundary are of what ran since the one before it; the last are of the
    // process's end.
    let mut totals = totals.into_iter();
    let mut stages: BTreeMap<(String, String), [u64; 2]> = BTreeMap::new();
    let (mut at, mut stage) = (None, None);
    for line in out.lines() {
        if let Some(name) = line.strip_prefix("stage ") {
            let count = totals.next().ok_or("callgrind missed a boundary")?;
            if let (Some((stack, size)), Some(stage)) = (&at, &stage) {
                let counts = stages.entry((String::clone(stack), String::clone(stage)));
                let counts = counts.or_default();
                if let Some(sum) = counts.get_mut(usize::from(*size != bytes)) {
                    *sum += count;
                }
            }
            // What follows the end is another request.
            stage = (name != "end").then(|| name.to_owned());
        } else if let Some(rest) = line.strip_prefix("stack ") {
            let (stack, size) = rest.split_once(' ').ok_or("an odd line")?;
            at = Some((stack.to_owned(), size.parse::<usize>()?));
            stage = None;
        }
    }
    let ratios = stages.into_iter().map(|((stack, stage), counts)| Ratio {
        stage: format!("{stack}/{stage}"),
        counts,
    });
    Ok(ratios.collect())
}
