use crate::{
    budget::{
        Amounts, Budget, Lease,
        gate::{LEAST, LastCall},
        layer::Prices,
        millis,
        shared::Reserved,
    },
    local::NOT_CONNECTED,
    tokens::BYTES,
};
use concentric_core::{ChatRequest, Context, Error, ErrorKind, Event, Usage};
use std::{fmt, time::SystemTime};

/// The spending of a model call; settled on drop.
pub(super) struct Spending {
    // `None` if there is nothing to settle.
    lease: Option<Lease>,
    // The reservation of shared budgets.
    reserved: Option<Reserved>,
    wanted: Amounts,
    // Whether the model was called.
    is_sent: bool,
    // Whether a limit depends on the number of received bytes.
    counts: bool,
    prices: Prices,
    estimate: Usage,
    usage: Usage,
    // Whether the provider answered with an error.
    is_rejected: bool,
    // The number of received bytes.
    seen: u64,
    context: Context,
    since: SystemTime,
}

impl Spending {
    /// Reserves the estimate of the call.
    pub(super) fn begin(request: &ChatRequest, prices: Prices) -> Result<Self, Error> {
        let context = &request.context;
        if context.is_cancelled() {
            // Outside a loop, a retry layer calls once more after its pause was cancelled.
            let why = "the run was cancelled before the model was called";
            return Err(Error::new(ErrorKind::Cancelled, why));
        }
        let budget = context.require::<Budget>()?;
        budget.check_kept()?;
        let estimate = prices.estimate(request);
        let wanted = prices.cost(&estimate).max(LEAST);
        context.update_state::<LastCall>(|last| last.call(wanted))?;
        let lease = budget.reserve(wanted)?;
        Ok(Self {
            lease: Some(lease),
            reserved: None,
            wanted,
            is_sent: false,
            counts: budget.limits_output() || prices.shared.source.is_some(),
            prices,
            estimate,
            usage: Usage::default(),
            is_rejected: false,
            seen: 0,
            since: context.now(),
            context: context.clone(),
        })
    }

    /// The amounts that the call needs by estimate.
    pub(super) const fn wanted(&self) -> Amounts {
        self.wanted
    }

    /// Records that the model is called, with the reservation of shared budgets.
    pub(super) fn sent(&mut self, reserved: Option<Reserved>) {
        self.reserved = reserved;
        self.is_sent = true;
        self.since = self.context.now();
    }

    /// Returns whether a limit depends on the bytes of the events.
    pub(super) const fn counts(&self) -> bool {
        self.counts
    }

    /// Counts the bytes of an event, in case the provider does not report usage.
    #[inline]
    pub(super) fn saw(&mut self, event: &Event) {
        self.seen += match event {
            Event::TextDelta(text) | Event::ReasoningDelta(text) | Event::RefusalDelta(text) => {
                text.len()
            }
            Event::ToolCall(event) => event.call.arguments.as_str().len(),
            _ => 0,
        } as u64;
    }

    /// Records the usage that the provider reported.
    pub(super) fn used(&mut self, usage: Usage) {
        self.usage = usage;
    }

    /// Records a failure before the answer.
    pub(super) fn failed(&mut self, error: &Error) {
        use ErrorKind::*;
        let is_by_provider = error.provider().is_some();
        match error.kind() {
            _ if error.status().is_some() => self.is_rejected = true,
            _ if error.code() == Some(NOT_CONNECTED) => self.lease = None,
            // The provider may have processed the request.
            Timeout | Connection | Truncated | Protocol | Cancelled | Server | Other => {}
            ContentFilter if is_by_provider => {}
            _ if is_by_provider => self.is_rejected = true,
            // A layer or an adapter inside has rejected it.
            _ => self.lease = None,
        }
    }

    /// Returns the amounts to charge, with estimates for unreported values.
    fn spent(&self) -> Amounts {
        let took = millis(&self.context, self.since);
        if self.is_rejected {
            return Amounts::new().model_calls(1).time_ms(took);
        }
        let mut usage = self.usage;
        usage.set_input_tokens(usage.input_tokens().or(self.estimate.input_tokens()));
        let output = self.estimate.output_tokens().unwrap_or(0);
        let output = output.max(self.seen / BYTES);
        usage.set_output_tokens(usage.output_tokens().or(Some(output)));
        self.prices.cost(&usage).time_ms(took)
    }
}

impl Drop for Spending {
    fn drop(&mut self) {
        if self.is_sent
            && let Some(lease) = self.lease.take()
        {
            let spent = self.spent();
            lease.settle(spent);
            if let Some(reserved) = &mut self.reserved {
                reserved.actual = spent;
            }
        }
    }
}

impl fmt::Debug for Spending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spending")
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}
