use super::{
    CIRCUIT_OPEN,
    circuit::{Circuit, Outcome, Pass},
    layer::Options,
};
use concentric_core::{Context, CustomEvent, Error, ErrorKind};
use serde_json::json;
use std::{sync::Arc, time::Duration};

/// An admitted call. Its outcome is recorded once; on drop, it has none.
pub(super) struct Call {
    circuit: Arc<Circuit>,
    options: Arc<Options>,
    context: Context,
    pass: Pass,
    started: Duration,
    is_slow: bool,
    is_recorded: bool,
}

impl Call {
    /// Admits a call.
    ///
    /// # Errors
    ///
    /// The circuit is open.
    pub(super) fn admit(
        circuit: Arc<Circuit>,
        options: Arc<Options>,
        context: Context,
    ) -> Result<Self, Error> {
        let started = now(&context);
        match circuit.admit(started, &options) {
            Ok((pass, changed)) => {
                let call = Self {
                    circuit,
                    options,
                    context,
                    pass,
                    started,
                    is_slow: false,
                    is_recorded: false,
                };
                call.report(changed);
                Ok(call)
            }
            Err(after) => {
                let name = &options.name;
                let message = format!("the circuit of `{name}` is open after failed calls");
                let error = Error::new(ErrorKind::Overloaded, message).with_code(CIRCUIT_OPEN);
                Err(match after {
                    Some(after) => error.with_retry_after(after),
                    None => error,
                })
            }
        }
    }

    /// Records that the call's future has resolved.
    pub(super) fn resolved(&mut self) {
        if let Some((limit, _)) = self.options.slow {
            self.is_slow = now(&self.context).saturating_sub(self.started) >= limit;
        }
    }

    pub(super) fn succeeded(mut self) {
        self.record(Outcome::Success);
    }

    pub(super) fn failed(mut self, error: &Error) {
        let outcome = match self.options.is_failure(error) && !self.is_stopped() {
            true => Outcome::Failure,
            false => Outcome::Unknown,
        };
        self.record(outcome);
    }

    /// Whether the run itself has ended the call.
    fn is_stopped(&self) -> bool {
        let left = self.context.remaining();
        self.context.is_cancelled() || left.is_some_and(|left| left.is_zero())
    }

    fn record(&mut self, outcome: Outcome) {
        self.is_recorded = true;
        let random = self.context.environment().random();
        let jitter = || random.next_u64() as f64 / u64::MAX as f64;
        let changed = self.circuit.record(
            self.pass,
            outcome,
            self.is_slow,
            now(&self.context),
            &self.options,
            jitter,
        );
        self.report(changed);
    }

    fn report(&self, changed: Option<super::CircuitState>) {
        let Some(state) = changed.map(super::CircuitState::as_str) else {
            return;
        };
        let (context, name) = (&self.context, &self.options.name);
        tracing::warn!(
            target: "concentric::circuit_breaker",
            run = %context.run_id(),
            step = context.step(),
            circuit = %name,
            state,
            "the state of a circuit has changed"
        );
        let value = json!({"name": name, "state": state});
        // A consumer that is far behind loses the event.
        let _ = context.emit(CustomEvent::new("concentric.circuit", value));
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.is_recorded {
            self.record(Outcome::Unknown);
        }
    }
}

fn now(context: &Context) -> Duration {
    context.environment().clock().monotonic()
}
