//! Interrupts that are answered while a run continues.
//!
//! A layer or tool that needs an answer from the consumer of the run's stream raises an interrupt
//! with [`Context::ask`] and waits for the reply. Use [`interrupt`](crate::interrupt) instead if
//! the reply may take longer than a connection lives.
//!
//! ```
//! use concentric_core::{Context, Interrupt, InterruptId, Reply, ask::AskError};
//! use serde::Deserialize;
//! use std::time::Duration;
//!
//! #[derive(Deserialize)]
//! struct Seat {
//!     row: u8,
//! }
//!
//! /// In a tool:
//! async fn choose(context: &Context) -> Result<u8, AskError> {
//!     let id = InterruptId::new(context.new_id("ask_"));
//!     let ask = Interrupt::new(id, "seat").with_message("Which row?");
//!     let seat: Seat = context.ask_as(ask, Duration::from_secs(60)).await?;
//!     Ok(seat.row)
//! }
//!
//! /// In the handler that receives the reply:
//! fn chosen(context: &Context, reply: Reply) {
//!     if let Err(error) = context.reply(reply) {
//!         println!("{error}");
//!     }
//! }
//! # let _ = (choose, chosen);
//! ```

pub use crate::hub::{AskError, InterruptHub};

use crate::{context::Context, hub::Check, run_key::Tenant};
use concentric_proto::{CustomEvent, ErrorKind, Interrupt, Reply, ReplyError, ReplyStatus};
use serde::de::DeserializeOwned;
use std::{sync::Arc, time::Duration};

impl InterruptHub {
    /// Raises an interrupt in the run of `context` and waits for the reply, for at most `timeout`.
    ///
    /// The timeout includes the wait for capacity in the run's stream. Cancellation and the
    /// deadline of the run end the wait.
    ///
    /// # Errors
    ///
    /// There is no reply.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future withdraws the interrupt.
    pub async fn ask(
        &self,
        interrupt: Interrupt,
        timeout: Duration,
        context: &Context,
    ) -> Result<Reply, AskError> {
        self.ask_with(interrupt, timeout, context, None).await
    }

    /// Raises an interrupt like [`ask`](Self::ask), and accepts only a reply that passes `check`.
    /// Other replies are refused with the error of `check`, and the interrupt stays open.
    ///
    /// ```
    /// use concentric_core::{Context, Interrupt, InterruptHub, Reply, ReplyError, ask::AskError};
    /// use std::time::Duration;
    ///
    /// async fn seat(live: &InterruptHub, ask: Interrupt, context: &Context) -> Result<u8, AskError> {
    ///     let check = |reply: &Reply| reply.read::<u8>().map(drop);
    ///     let reply = live.ask_checked(ask, Duration::from_secs(60), context, check).await?;
    ///     Ok(reply.read()?)
    /// }
    /// # let _ = seat;
    /// ```
    ///
    /// # Errors
    ///
    /// There is no reply.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future withdraws the interrupt.
    pub async fn ask_checked(
        &self,
        interrupt: Interrupt,
        timeout: Duration,
        context: &Context,
        check: impl Fn(&Reply) -> Result<(), ReplyError> + Send + Sync + 'static,
    ) -> Result<Reply, AskError> {
        let check: Arc<Check> = Arc::new(check);
        self.ask_with(interrupt, timeout, context, Some(check))
            .await
    }

    async fn ask_with(
        &self,
        interrupt: Interrupt,
        timeout: Duration,
        context: &Context,
        check: Option<Arc<Check>>,
    ) -> Result<Reply, AskError> {
        let mut event = CustomEvent::new(
            "interrupt",
            serde_json::to_value(&interrupt).unwrap_or_default(),
        );
        event.call_id.clone_from(&interrupt.call_id);
        let shown = context.send(event);
        let ended = async {
            match context.sleep(timeout).await {
                Err(error) if error.kind() == ErrorKind::Cancelled => AskError::Cancelled,
                _ => AskError::TimedOut,
            }
        };
        self.wait(Tenant::of(context), interrupt, check, shown, ended)
            .await
    }
}

impl Context {
    /// Raises an interrupt in the run's stream and waits for the reply, for at most `timeout`.
    ///
    /// The interrupt is emitted while the stream is read. The stream is not read before the model's
    /// first answer, nor while a hook handles an event or the end of the run; an interrupt raised
    /// there is visible only through [`live`](Self::live). None is raised after the run.
    ///
    /// # Errors
    ///
    /// There is no reply.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future withdraws the interrupt.
    pub async fn ask(&self, interrupt: Interrupt, timeout: Duration) -> Result<Reply, AskError> {
        self.live().ask(interrupt, timeout, self).await
    }

    /// Raises an interrupt like [`ask`](Self::ask), and decodes the payload of the reply. A reply that is
    /// neither a `T` nor a cancellation is refused, and the interrupt stays open.
    ///
    /// The [schema](Interrupt::with_response_schema) of the interrupt describes the form of the
    /// reply; `output::schema_of` of `concentric-tools` derives it from `T`.
    ///
    /// # Errors
    ///
    /// There is no reply, or it is a cancellation ([`AskError::Malformed`]).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future withdraws the interrupt.
    pub async fn ask_as<T>(&self, interrupt: Interrupt, timeout: Duration) -> Result<T, AskError>
    where
        T: DeserializeOwned,
    {
        let check = |reply: &Reply| match reply.status {
            ReplyStatus::Cancelled => Ok(()),
            _ => reply.read::<T>().map(drop),
        };
        let reply = self.live().ask_checked(interrupt, timeout, self, check);
        Ok(reply.await?.read()?)
    }

    /// Delivers a reply to an interrupt that was raised with [`ask`](Self::ask) in this run.
    ///
    /// # Errors
    ///
    /// No such interrupt is open, or the reply has the wrong form; then the interrupt stays open.
    pub fn reply(&self, reply: Reply) -> Result<(), ReplyError> {
        self.live().reply(&Tenant::of(self), reply, self.now())
    }
}
