//! The histograms.

use super::genai::{attribute, metric};
use concentric_core::Usage;
use opentelemetry::{
    KeyValue,
    metrics::{Histogram, Meter},
};
use std::time::Duration;

#[derive(Debug)]
pub(super) struct Instruments {
    tokens: Histogram<u64>,
    pub(super) operation: Histogram<f64>,
    pub(super) first_chunk: Histogram<f64>,
    pub(super) output_chunk: Histogram<f64>,
    pub(super) agent: Histogram<f64>,
    pub(super) tool: Histogram<f64>,
}

impl Instruments {
    pub(super) fn new(meter: &Meter) -> Self {
        let seconds = |name, buckets: &[f64], description| {
            meter
                .f64_histogram(name)
                .with_unit(metric::SECONDS)
                .with_boundaries(buckets.to_vec())
                .with_description(description)
                .build()
        };
        let operation = &metric::OPERATION_BUCKETS;
        Self {
            tokens: meter
                .u64_histogram(metric::TOKEN_USAGE)
                .with_unit(metric::TOKENS)
                .with_boundaries(metric::TOKEN_BUCKETS.to_vec())
                .with_description("Number of input and output tokens used.")
                .build(),
            operation: seconds(
                metric::OPERATION_DURATION,
                operation,
                "GenAI operation duration.",
            ),
            first_chunk: seconds(
                metric::TIME_TO_FIRST_CHUNK,
                operation,
                "Time to receive the first chunk.",
            ),
            output_chunk: seconds(
                metric::TIME_PER_OUTPUT_CHUNK,
                operation,
                "Time per output chunk after the first one.",
            ),
            agent: seconds(
                metric::INVOKE_AGENT_DURATION,
                &metric::AGENT_BUCKETS,
                "Duration of an agent invocation.",
            ),
            tool: seconds(
                metric::EXECUTE_TOOL_DURATION,
                operation,
                "Duration of a tool execution.",
            ),
        }
    }

    /// Records the tokens of a model call.
    pub(super) fn tokens(&self, usage: Usage, attributes: &[KeyValue]) {
        let counts = [
            ("input", usage.input_tokens()),
            ("output", usage.output_tokens()),
        ];
        for (of, count) in counts {
            if let Some(count) = count {
                let mut attributes = attributes.to_vec();
                attributes.push(KeyValue::new(attribute::TOKEN_TYPE, of));
                self.tokens.record(count, &attributes);
            }
        }
    }
}

/// Records a time in seconds.
pub(super) fn record(histogram: &Histogram<f64>, time: Duration, attributes: &[KeyValue]) {
    histogram.record(time.as_secs_f64(), attributes);
}
