//! The figures and their bounds.

use crate::{callgrind::Ratio, run::Taken};
use std::fmt;

/// The bounds.
pub(crate) const MOST_RATIO: f64 = 2.3;
pub(crate) const MOST_GROWTH: f64 = 4.0;
const MOST_HEAP: f64 = 12.0;
const MOST_HEAP_GROWTH: f64 = 2.0;
/// In milliseconds.
pub(crate) const MOST_POLL: u32 = 50;

/// Returns `true` if the second request is larger. A shape with a limit of its own does not grow.
const fn is_more(some: &Taken, most: &Taken) -> bool {
    most.body >= 4 * some.body
}

/// Returns the CPU time per byte of the second request, divided by that of the first; `None` if the
/// times are too short to compare.
pub(crate) fn growth(some: &Taken, most: &Taken) -> Option<f64> {
    let each = |taken: &Taken| taken.cpu as f64 / taken.body.max(1) as f64;
    (is_more(some, most) && most.cpu > 20_000).then(|| each(most) / each(some))
}

/// The largest of several figures, and its source.
#[derive(Clone, Debug, Default)]
struct Worst {
    figure: f64,
    of: String,
}

impl Worst {
    fn add(&mut self, figure: f64, of: &str) {
        if figure > self.figure {
            self.figure = figure;
            of.clone_into(&mut self.of);
        }
    }
}

/// The figures of one shape.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) shape: &'static str,
    /// The largest body, in bytes.
    pub(crate) limit: usize,
    /// The largest body that is accepted, in bytes.
    pub(crate) taken: usize,
    ratio: Option<Worst>,
    growth: Worst,
    heap: Worst,
    raised: Worst,
    poll: Worst,
    failures: Vec<String>,
}

impl Row {
    pub(crate) fn new(shape: &'static str, limit: usize) -> Self {
        Self {
            shape,
            limit,
            taken: 0,
            ratio: None,
            growth: Worst::default(),
            heap: Worst::default(),
            raised: Worst::default(),
            poll: Worst::default(),
            failures: Vec::new(),
        }
    }

    /// Adds a request under the default limits.
    pub(crate) fn default(&mut self, stack: &str, taken: &Taken) {
        self.heap.add(taken.heap as f64 / self.limit as f64, stack);
        self.poll.add(taken.poll as f64 / 1e3, stack);
    }

    /// Adds two requests without limits, the second with eight times as many bytes.
    pub(crate) fn raised(&mut self, stack: &str, some: &Taken, most: &Taken) {
        let heap = |taken: &Taken| taken.heap as f64 / taken.body.max(1) as f64;
        self.raised.add(heap(most), stack);
        if let Some(growth) = growth(some, most) {
            self.growth.add(growth, stack);
        }
        if is_more(some, most) && heap(most) > MOST_HEAP_GROWTH * heap(some) {
            self.fail(stack, "the heap grows faster than the body");
        }
    }

    pub(crate) fn ratios(&mut self, ratios: &[Ratio]) {
        let mut worst = Worst::default();
        for ratio in ratios {
            if let Some(figure) = ratio.figure() {
                worst.add(figure, &ratio.name());
            }
        }
        self.ratio = Some(worst);
    }

    pub(crate) fn fail(&mut self, stage: &str, error: impl fmt::Display) {
        self.failures.push(format!("{stage}: {error}"));
    }

    /// Returns `true` if all figures are within their bounds.
    pub(crate) fn is_within(&self) -> bool {
        let is = |worst: &Worst, most: f64| worst.figure <= most;
        self.failures.is_empty()
            && self
                .ratio
                .as_ref()
                .is_none_or(|ratio| is(ratio, MOST_RATIO))
            && is(&self.growth, MOST_GROWTH)
            && is(&self.heap, MOST_HEAP)
            && is(&self.poll, f64::from(MOST_POLL))
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = |worst: &Worst, most: f64| if worst.figure > most { "!" } else { " " };
        let cell = |worst: &Worst, most: f64| match worst.of.as_str() {
            "" => format!("{:<26}", "-"),
            of => format!(
                "{:<26}",
                format!("{:.2}{} {of}", worst.figure, mark(worst, most))
            ),
        };
        let taken = match self.taken {
            taken if taken == self.limit => format!("{} MiB", taken >> 20),
            0 => "none".to_owned(),
            bytes => format!("{} KiB", bytes.div_ceil(1024)),
        };
        write!(f, "{:<30} {taken:>8}  ", self.shape)?;
        f.write_str(&cell(
            self.ratio.as_ref().unwrap_or(&Worst::default()),
            MOST_RATIO,
        ))?;
        f.write_str(&cell(&self.growth, MOST_GROWTH))?;
        f.write_str(&cell(&self.heap, MOST_HEAP))?;
        f.write_str(&cell(&self.raised, f64::INFINITY))?;
        f.write_str(cell(&self.poll, f64::from(MOST_POLL)).trim_end())?;
        for failure in &self.failures {
            write!(f, "\n    failed: {failure}")?;
        }
        Ok(())
    }
}

/// A column: its name, the figure of a row, and its bound.
type Column = (&'static str, fn(&Row) -> Option<&Worst>, Option<f64>);

/// All rows.
pub(crate) struct Table<'a>(pub(crate) &'a [Row]);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<30} {:>8}  {:<26}{:<26}{:<26}{:<26}poll, ms",
            "shape", "taken", "Ir 2n/n", "CPU", "heap", "raised",
        )?;
        for row in self.0 {
            writeln!(f, "{row}")?;
        }
        let within = self.0.iter().filter(|row| row.is_within()).count();
        let shapes = self.0.len();
        writeln!(f, "shapes measured: {shapes}, within all bounds: {within}")?;
        let columns: [Column; 5] = [
            ("Ir 2n/n", |row| row.ratio.as_ref(), Some(MOST_RATIO)),
            ("CPU", |row| Some(&row.growth), Some(MOST_GROWTH)),
            ("heap", |row| Some(&row.heap), Some(MOST_HEAP)),
            ("raised", |row| Some(&row.raised), None),
            ("poll, ms", |row| Some(&row.poll), Some(MOST_POLL.into())),
        ];
        f.write_str("largest:")?;
        for (name, figure, most) in columns {
            let figures = self.0.iter().filter_map(|row| Some((row, figure(row)?)));
            let largest = figures.max_by(|a, b| a.1.figure.total_cmp(&b.1.figure));
            let Some((row, Worst { figure, of })) = largest.filter(|(_, worst)| worst.figure > 0.0)
            else {
                continue;
            };
            write!(f, "\n  {name:<8} {figure:>7.2}")?;
            match most {
                Some(most) => write!(f, " of {most:<4} ")?,
                None => write!(f, "         ")?,
            }
            write!(f, "{} ({of})", row.shape)?;
        }
        Ok(())
    }
}
