//! Instructions of each stage, counted by callgrind.

use crate::{LEAST, child, shapes::Shape, table::MOST_RATIO};
use concentric_core::BoxError;
use std::{
    collections::BTreeMap,
    fs,
    process::{Command, Stdio},
};

/// Makes glibc keep all freed memory in its per-size lists. By default it occasionally merges freed
/// memory, and the cost appears in an unrelated stage.
const ALLOCATOR: &str = "glibc.malloc.tcache_count=65535";

/// The growth of the instructions of one stage.
#[derive(Clone, Debug)]
pub(crate) struct Ratio {
    stack: String,
    stage: String,
    /// The instructions for n bytes and for 2n bytes.
    counts: [u64; 2],
}

impl Ratio {
    /// The stack and the stage.
    pub(crate) fn name(&self) -> String {
        format!("{}/{}", self.stack, self.stage)
    }

    /// Returns the instructions for 2n bytes divided by those for n; `None` if the stage is too
    /// small.
    pub(crate) fn figure(&self) -> Option<f64> {
        let [once, twice] = self.counts;
        (twice >= LEAST).then(|| twice as f64 / once.max(1) as f64)
    }

    fn is_beyond(&self) -> bool {
        self.figure().is_some_and(|figure| figure > MOST_RATIO)
    }
}

/// Returns `true` if valgrind is installed.
pub(crate) fn is_available() -> bool {
    Command::new("valgrind")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Returns the growth of each stage of each stack from `bytes` bytes of the shape to twice as many.
///
/// Whether a growing buffer is copied depends on the free memory behind it, which dominates some
/// stages. A stage above the bound is therefore counted again from other sizes, and the lowest
/// ratio is used: superlinear growth shows from every size.
pub(crate) fn ratios(shape: &Shape, bytes: usize) -> Result<Vec<Ratio>, BoxError> {
    let all = shape.endpoint.stacks();
    let mut ratios = counted(shape.name, all, bytes)?;
    for more in [bytes + bytes / 2, 2 * bytes] {
        let mut stacks: Vec<&str> = all.to_vec();
        stacks.retain(|stack| ratios.iter().any(|r| r.stack == *stack && r.is_beyond()));
        if stacks.is_empty() || 2 * more > shape.endpoint.limit() {
            break;
        }
        for again in counted(shape.name, &stacks, more)? {
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

    // The counts at a boundary cover the code since the previous boundary; the last ones cover the
    // end of the process.
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
            // The stages after the end belong to another request.
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
