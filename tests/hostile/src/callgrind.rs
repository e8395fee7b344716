//! Instructions of each stage, counted by callgrind.

use crate::{LEAST, child, stack::STACKS, table::MOST_RATIO};
use concentric_core::BoxError;
use std::{
    collections::BTreeMap,
    fs,
    process::{Command, Stdio},
};

/// glibc keeps what is freed in lists by size, however much it is. Otherwise it merges it now and then,
/// in a stage that has nothing to do with it.
const ALLOCATOR: &str = "glibc.malloc.tcache_count=65535";

/// How the instructions of one stage grow.
#[derive(Clone, Debug)]
pub(crate) struct Ratio {
    stack: String,
    stage: String,
    /// The instructions for n bytes, and for twice as many.
    counts: [u64; 2],
}

impl Ratio {
    /// The stack and the stage.
    pub(crate) fn name(&self) -> String {
        format!("{}/{}", self.stack, self.stage)
    }

    /// The instructions for twice as many bytes, divided by those for n; `None` for a stage that is
    /// too small.
    pub(crate) fn figure(&self) -> Option<f64> {
        let [once, twice] = self.counts;
        (twice >= LEAST).then(|| twice as f64 / once.max(1) as f64)
    }

    fn is_beyond(&self) -> bool {
        self.figure().is_some_and(|figure| figure > MOST_RATIO)
    }
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
///
/// A buffer that grows is copied, or not if there is room behind it, which is a matter of chance and
/// most of some stages. So a stage beyond the bound is counted again from other sizes, and the least
/// of its ratios is kept: what grows too fast does so from every size.
pub(crate) fn ratios(shape: &str, bytes: usize) -> Result<Vec<Ratio>, BoxError> {
    let mut ratios = counted(shape, STACKS, bytes)?;
    for more in [bytes + bytes / 2, 2 * bytes] {
        let mut stacks: Vec<&str> = STACKS.to_vec();
        stacks.retain(|stack| ratios.iter().any(|r| r.stack == *stack && r.is_beyond()));
        if stacks.is_empty() {
            break;
        }
        for again in counted(shape, &stacks, more)? {
            let earlier = ratios
                .iter_mut()
                .find(|ratio| ratio.stack == again.stack && ratio.stage == again.stage);
            if let Some(earlier) = earlier
                && earlier.is_beyond()
                && again.figure() < earlier.figure()
            {
                *earlier = again;
            }
        }
    }
    Ok(ratios)
}

fn counted(shape: &str, stacks: &[&str], bytes: usize) -> Result<Vec<Ratio>, BoxError> {
    let folder = tempfile::tempdir()?;
    let counts = folder.path().join("counts");
    let mut tool = Command::new("valgrind");
    tool.args(["--tool=callgrind", "--combine-dumps=yes"])
        .arg("--dump-before=*hostile_boundary*")
        .arg(format!("--callgrind-out-file={}", counts.display()))
        .env("GLIBC_TUNABLES", ALLOCATOR);
    let size = bytes.to_string();
    let out = child(
        Some(&mut tool),
        &[&["count", shape, &size], stacks].concat(),
    )?;
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
        } else if line == "warm up" {
            at = None;
        }
    }
    let ratios = stages.into_iter().map(|((stack, stage), counts)| Ratio {
        stack,
        stage,
        counts,
    });
    Ok(ratios.collect())
}
