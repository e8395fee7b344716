//! The options of the layers of this crate.

mod calls;
mod content;

use super::Registry;
use crate::{CommitLayer, RequestDefaultsLayer};
use schemars::JsonSchema;
use serde::Deserialize;
use std::time::Duration;

#[cfg(feature = "otel")]
use super::stack::Place;
#[cfg(feature = "stop")]
use crate::stop::{ErrorLimit, LoopDetector, StepApproval};
#[cfg(any(feature = "stop", feature = "budget", feature = "otel"))]
use concentric_core::agent::Installer;

/// A time in seconds.
#[allow(dead_code, reason = "used by some features")]
#[derive(Clone, Copy, Deserialize, JsonSchema)]
struct Seconds(#[schemars(range(min = 0.0))] f64);

impl From<Seconds> for Duration {
    fn from(Seconds(seconds): Seconds) -> Self {
        Self::try_from_secs_f64(seconds).unwrap_or(Self::MAX)
    }
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Defaults {
    /// The model.
    model: Option<String>,
    /// The system prompt.
    system: Option<String>,
    #[schemars(range(min = 1))]
    max_output_tokens: Option<u32>,
    #[schemars(range(min = 0.0))]
    temperature: Option<f32>,
}

/// The commit point of a response.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum CommitAt {
    FirstEvent,
    FirstSentence,
    Whole,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Commit {
    at: CommitAt,
    /// The number of bytes that are held.
    limit: Option<usize>,
}

#[cfg(feature = "in-flight")]
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct InFlight {
    max: usize,
    queue: Option<usize>,
}

/// The lines of runs and model calls.
#[cfg(feature = "log")]
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum LogPreset {
    Minimal,
    #[default]
    Standard,
    Verbose,
}

#[cfg(feature = "log")]
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Log {
    preset: LogPreset,
    /// The number of characters of each text; none is logged by default.
    content: Option<usize>,
}

#[cfg(feature = "otel")]
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Otel {
    /// The number of characters of each text; none is recorded by default.
    content: Option<usize>,
}

#[cfg(feature = "detach")]
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Detach {
    /// The number of concurrent detached runs.
    limit: Option<u32>,
    /// The time that a detached run has.
    within_seconds: Option<u64>,
}

#[cfg(feature = "budget")]
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Budget {
    /// The limits of each run, by dimension.
    #[schemars(with = "std::collections::BTreeMap<String, u64>")]
    limits: crate::budget::Limits,
}

#[cfg(feature = "stop")]
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Errors {
    consecutive: Option<usize>,
    total: Option<usize>,
}

#[cfg(feature = "stop")]
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Loops {
    #[schemars(range(min = 1))]
    limit: u32,
    window: Option<usize>,
}

#[cfg(feature = "stop")]
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Steps {
    after: u32,
    steps: Option<u32>,
}

/// Applies an option that is set.
fn set<T, V>(layer: T, value: Option<V>, set: impl FnOnce(T, V) -> T) -> T {
    match value {
        Some(value) => set(layer, value),
        None => layer,
    }
}

pub(super) fn register(registry: Registry) -> Registry {
    let registry = registry
        .layer("defaults", |options: Defaults| {
            let layer = RequestDefaultsLayer::new().options(|own| {
                own.max_output_tokens = options.max_output_tokens;
                own.temperature = options.temperature;
            });
            let layer = set(layer, options.model, RequestDefaultsLayer::model);
            Ok(set(layer, options.system, RequestDefaultsLayer::system))
        })
        .layer("commit", |options: Commit| {
            let layer = match options.at {
                CommitAt::FirstEvent => CommitLayer::first_event(),
                CommitAt::FirstSentence => CommitLayer::first_sentence(),
                CommitAt::Whole => CommitLayer::whole(),
            };
            Ok(set(layer, options.limit, CommitLayer::limit))
        });
    let registry = content::register(calls::register(registry));
    stops(observers(limits(registry)))
}

fn observers(registry: Registry) -> Registry {
    #[cfg(feature = "log")]
    let registry = registry.layer("log", |options: Log| {
        let layer = match options.preset {
            LogPreset::Minimal => crate::LogLayer::minimal(),
            LogPreset::Standard => crate::LogLayer::standard(),
            LogPreset::Verbose => crate::LogLayer::verbose(),
        };
        Ok(set(layer, options.content, crate::LogLayer::content))
    });
    #[cfg(feature = "otel")]
    let registry = registry.insert("otel", |options: Otel| {
        let otel = set(crate::Otel::new(), options.content, crate::Otel::content);
        Ok(Box::new(move |at: &mut Installer<'_>, place| match place {
            Place::Outside => {
                at.run_layer(otel.run());
                at.tool_layer(otel.tool());
            }
            Place::Inside => at.model_layer(otel.model()),
        }))
    });
    registry
}

fn limits(registry: Registry) -> Registry {
    #[cfg(feature = "in-flight")]
    let registry = registry.layer("in-flight", |options: InFlight| {
        let layer = crate::InFlightLimitLayer::new(options.max);
        Ok(set(layer, options.queue, crate::InFlightLimitLayer::queue))
    });
    #[cfg(feature = "detach")]
    let registry = registry.layer("detach", |options: Detach| {
        let layer = set(
            crate::DetachLayer::new(),
            options.limit,
            crate::DetachLayer::limit,
        );
        let within = options.within_seconds.map(Duration::from_secs);
        Ok(set(layer, within, crate::DetachLayer::within))
    });
    #[cfg(feature = "budget")]
    let registry = registry.plugin("budget", |Budget { limits }: Budget| {
        let budget = crate::BudgetPlugin::new(limits);
        Ok(|at: &mut Installer<'_>| concentric_core::Plugin::install(budget, at))
    });
    registry
}

fn stops(registry: Registry) -> Registry {
    #[cfg(feature = "stop")]
    let registry = registry
        .plugin("error-limit", |options: Errors| {
            let gate = set(
                ErrorLimit::new(),
                options.consecutive,
                ErrorLimit::consecutive,
            );
            let gate = set(gate, options.total, ErrorLimit::total);
            Ok(|at: &mut Installer<'_>| at.step_gate(gate))
        })
        .plugin("loop-detector", |options: Loops| {
            let gate = LoopDetector::new(options.limit);
            let gate = set(gate, options.window, LoopDetector::window);
            Ok(|at: &mut Installer<'_>| at.step_gate(gate))
        })
        .plugin("step-approval", |options: Steps| {
            let gate = StepApproval::after(options.after);
            let gate = set(gate, options.steps, StepApproval::steps);
            Ok(|at: &mut Installer<'_>| at.step_gate(gate))
        });
    registry
}
