//! The figures, as a table and as JSON.

use crate::{
    goals::{self, Goal},
    measure::sdk::Sdk,
};
use serde_json::{Value, json};
use std::fmt;

/// A measured quantity of a work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quantity {
    Instructions,
    /// Instructions of a run without those of its operations.
    RunInstructions,
    Nanoseconds,
    Microseconds,
    Allocations,
    Bytes,
}

impl Quantity {
    const fn unit(self) -> &'static str {
        match self {
            Self::Instructions => "Ir",
            Self::RunInstructions => "Ir a run",
            Self::Nanoseconds => "ns",
            Self::Microseconds => "µs",
            Self::Allocations => "allocations",
            Self::Bytes => "bytes",
        }
    }
}

/// A figure.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    name: &'static str,
    title: String,
    quantity: Quantity,
    pub(crate) bare: Option<f64>,
    pub(crate) concentric: f64,
    /// The time of the vendor's SDK for the same work.
    sdk: Option<Sdk>,
}

impl Row {
    fn goal(&self) -> Option<Goal> {
        goals::of(self.name, self.quantity)
    }

    fn is_missed(&self) -> bool {
        self.goal().is_some_and(|goal| !goal.is_met(self))
    }

    /// Says that the row misses its goal, if it does.
    fn violation(&self) -> Option<String> {
        let (title, concentric, unit) = (&self.title, self.concentric, self.quantity.unit());
        let bare = self.bare.unwrap_or(0.0);
        let missed = format!("{title}: {concentric:.3} {unit}, bare {bare:.3} misses its goal");
        self.is_missed().then_some(missed)
    }

    /// Returns the ratio to the bare stack, unless its figure is too small for one.
    fn ratio(&self) -> Option<f64> {
        self.bare
            .filter(|bare| *bare >= 0.005)
            .map(|bare| self.concentric / bare)
    }
}

/// The figures, in the order of their measurement.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Row>,
}

impl Table {
    /// Adds a figure of `[bare, concentric]`.
    pub(crate) fn add(
        &mut self,
        name: &'static str,
        title: impl Into<String>,
        quantity: Quantity,
        [bare, concentric]: [f64; 2],
    ) {
        self.rows.push(Row {
            name,
            title: title.into(),
            quantity,
            bare: Some(bare),
            concentric,
            sdk: None,
        });
    }

    /// Adds a figure that is computed from two others, after the last figure of the work `after`.
    pub(crate) fn derive(
        &mut self,
        after: &str,
        name: &'static str,
        title: &str,
        quantity: Quantity,
        f: impl Fn(f64, f64) -> f64,
        [from, to]: [&str; 2],
    ) {
        let find = |name: &str| {
            let mut rows = self.rows.iter();
            rows.find(|row| row.name == name && row.quantity == quantity)
        };
        let (Some(from), Some(to)) = (find(from), find(to)) else {
            return;
        };
        let row = Row {
            name,
            title: title.to_owned(),
            quantity,
            bare: from.bare.zip(to.bare).map(|(from, to)| f(from, to)),
            concentric: f(from.concentric, to.concentric),
            sdk: None,
        };
        let last = self
            .rows
            .iter()
            .rposition(|r| r.name == after || r.name == name);
        self.rows.insert(last.map_or(0, |at| at + 1), row);
    }

    /// Adds the time of an SDK to the time of the work `name`.
    pub(crate) fn add_sdk(&mut self, name: &str, sdk: Sdk) {
        let mut rows = self.rows.iter_mut();
        let row = rows.find(|row| row.name == name && row.quantity == Quantity::Nanoseconds);
        if let Some(row) = row {
            row.sdk = Some(sdk);
        }
    }

    /// What is wrong with the goals of the works whose names begin with `prefix`.
    pub(crate) fn violations(&self, prefix: &str) -> Vec<String> {
        let checked = self.rows.iter().filter(|row| row.name.starts_with(prefix));
        let checked: Vec<_> = checked.filter(|row| row.goal().is_some()).collect();
        if checked.is_empty() {
            return vec![format!("no work `{prefix}` with a goal was measured")];
        }
        checked.into_iter().filter_map(Row::violation).collect()
    }

    pub(crate) fn missed(&self) -> usize {
        self.rows.iter().filter(|row| row.is_missed()).count()
    }

    pub(crate) fn json(&self) -> Value {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| {
                json!({
                    "work": row.name,
                    "unit": row.quantity.unit(),
                    "bare": row.bare,
                    "concentric": row.concentric,
                    "goal": row.goal().map(|goal| match goal {
                        Goal::Most(most) => json!({ "most": most }),
                        Goal::Times(times) => json!({ "times_bare": times }),
                        Goal::More(more) => json!({ "more_than_bare": more }),
                    }),
                    "met": row.goal().map(|goal| goal.is_met(row)),
                    "sdk": row.sdk.as_ref().map(|sdk| json!({ "name": sdk.name, "takes": sdk.ns })),
                })
            })
            .collect();
        json!({ "rows": rows, "missed": self.missed() })
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| {:<57} | {:>9} | {:>10} | {:>6} | {:>8} | {:<4} |",
            "work", "bare", "Concentric", "ratio", "goal", "met"
        )?;
        writeln!(
            f,
            "|{:-<59}|{:->11}|{:->12}|{:->8}|{:->10}|{:-<6}|",
            "", ":", ":", ":", ":", ""
        )?;
        for row in &self.rows {
            let goal = row.goal().map_or_else(String::new, |goal| match goal {
                Goal::Most(most) => number(most),
                Goal::Times(times) => format!("{times}x"),
                Goal::More(more) => format!("+{}", number(more)),
            });
            let met = match row.goal() {
                None => "",
                Some(goal) if goal.is_met(row) => "yes",
                Some(_) => "NO",
            };
            writeln!(
                f,
                "| {:<57} | {:>9} | {:>10} | {:>6} | {goal:>8} | {met:<4} |",
                format!("{}, {}", row.title, row.quantity.unit()),
                row.bare.map_or_else(String::new, number),
                number(row.concentric),
                row.ratio().map_or_else(String::new, |r| format!("{r:.2}")),
            )?;
        }
        self.fmt_sdks(f)
    }
}

impl Table {
    /// Prints the works that the vendors' SDKs did as well, if there are any.
    fn fmt_sdks(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sdks = self
            .rows
            .iter()
            .filter_map(|row| Some((row, row.sdk.as_ref()?)));
        let Some(first) = sdks.next() else {
            return Ok(());
        };
        writeln!(
            f,
            "\n| {:<36} | {:<18} | {:>9} | {:>10} | {:>9} | {:>14} |",
            "work", "SDK", "bare", "Concentric", "SDK", "SDK/Concentric"
        )?;
        writeln!(
            f,
            "|{:-<38}|{:-<20}|{:->11}|{:->12}|{:->11}|{:->16}|",
            "", "", ":", ":", ":", ":"
        )?;
        for (row, sdk) in std::iter::once(first).chain(sdks) {
            writeln!(
                f,
                "| {:<36} | {:<18} | {:>9} | {:>10} | {:>9} | {:>14} |",
                format!("{}, {}", row.title, row.quantity.unit()),
                sdk.name,
                row.bare.map_or_else(String::new, number),
                number(row.concentric),
                number(sdk.ns),
                number(sdk.ns / row.concentric),
            )?;
        }
        Ok(())
    }
}

/// Formats a number with about three digits and thousands separators.
fn number(value: f64) -> String {
    if value.abs() < 9.995 {
        let text = format!("{value:.2}");
        return text.strip_suffix(".00").map_or(text.clone(), str::to_owned);
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && digit.is_ascii_digit() && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(number(0.0), "0");
        assert_eq!(number(0.0284), "0.03");
        assert_eq!(number(197.9), "198");
        assert_eq!(number(12_345.6), "12,346");
    }

    #[test]
    fn an_sdk_is_compared_in_a_second_table() {
        let mut table = Table::default();
        table.add("decode", "event", Quantity::Instructions, [3.0, 4.0]);
        table.add("decode", "event", Quantity::Nanoseconds, [1.0, 2.0]);
        let without = table.to_string();
        let name = "vendor 1.2.3".to_owned();
        table.add_sdk("decode", Sdk { name, ns: 50.0 });
        let with = table.to_string();
        let block = with.strip_prefix(&without).expect("nothing else changes");
        let last = block.lines().last().expect("there is a block");
        assert!(last.contains("| vendor 1.2.3 "), "{last}");
        assert!(last.ends_with("|        50 |             25 |"), "{last}");
        let json = table.json();
        assert_eq!(json.pointer("/rows/0/sdk"), Some(&Value::Null));
        assert_eq!(json.pointer("/rows/1/sdk/takes"), Some(&json!(50.0)));
    }

    #[test]
    fn a_check_fails_for_each_missed_goal() {
        let checked = |name: &'static str, ir: f64| {
            let mut table = Table::default();
            table.add("w1-k0", "event", Quantity::Instructions, [100.0, 1e9]);
            table.add(name, "event", Quantity::Instructions, [100.0, 100.0 + ir]);
            table.add(name, "event", Quantity::Allocations, [0.0, 0.0]);
            table.violations("idle")
        };
        assert_eq!(checked("idle-log", 2.5), [""; 0]);
        let missed = "event: 104.000 Ir, bare 100.000 misses its goal";
        assert_eq!(checked("idle-log", 4.0), [missed]);
        assert_eq!(checked("busy-otel", 4.0).len(), 1);
    }

    #[test]
    fn a_missed_goal_is_counted() {
        let mut table = Table::default();
        table.add("w1-k0", "event", Quantity::Instructions, [100.0, 201.0]);
        table.add("w1-k0", "event", Quantity::Nanoseconds, [1.0, 1e9]);
        assert_eq!(table.missed(), 1);
    }
}
