//! Questions that are asked while a run stays open.
//!
//! What a layer or a tool must know now, and can know from whoever reads the run's stream, it
//! [asks](Context::ask), and waits for. A question that may take longer than a connection lives is
//! one to be [interrupted](crate::interrupt) for.
//!
//! ```
//! use concentric_core::{Context, Interrupt, InterruptId, Reply, ask::Unanswered};
//! use serde::Deserialize;
//! use std::time::Duration;
//!
//! #[derive(Deserialize)]
//! struct Seat {
//!     row: u8,
//! }
//!
//! /// In a tool, say.
//! async fn choose(context: &Context) -> Result<u8, Unanswered> {
//!     let id = InterruptId::new(context.new_id("ask_"));
//!     let ask = Interrupt::new(id, "seat").with_message("Which row?");
//!     let reply = context.ask(ask, Duration::from_secs(60)).await?;
//!     Ok(reply.read::<Seat>()?.row)
//! }
//!
//! /// Where the reply arrives.
//! fn chosen(context: &Context, reply: Reply) {
//!     if let Err(error) = context.reply(reply) {
//!         println!("{error}");
//!     }
//! }
//! # let _ = (choose, chosen);
//! ```

pub use crate::hub::Unanswered;

use crate::{
    context::Context,
    hub::{Check, LiveInterrupts},
    run_key::Tenant,
};
use concentric_proto::{Custom, ErrorKind, Event, Interrupt, Reply, ReplyError};
use std::{sync::Arc, time::Duration};

impl LiveInterrupts {
    /// Asks in the run of `context`, and waits for the reply: for `timeout` at the most, in which the
    /// question is to find room in the run's stream, too. The run's cancel and its deadline end the
    /// wait.
    ///
    /// # Errors
    ///
    /// There is no reply.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future takes the question back.
    pub async fn ask(
        &self,
        interrupt: Interrupt,
        timeout: Duration,
        context: &Context,
    ) -> Result<Reply, Unanswered> {
        self.ask_with(interrupt, timeout, context, None).await
    }

    /// Asks as [`ask`](Self::ask) does, and takes only a reply that `check` accepts. Others are
    /// refused with its error, and the question goes on waiting.
    ///
    /// ```
    /// use concentric_core::{Context, Interrupt, LiveInterrupts, Reply, ReplyError, ask::Unanswered};
    /// use std::time::Duration;
    ///
    /// async fn seat(live: &LiveInterrupts, ask: Interrupt, context: &Context) -> Result<u8, Unanswered> {
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
    /// Dropping the future takes the question back.
    pub async fn ask_checked(
        &self,
        interrupt: Interrupt,
        timeout: Duration,
        context: &Context,
        check: impl Fn(&Reply) -> Result<(), ReplyError> + Send + Sync + 'static,
    ) -> Result<Reply, Unanswered> {
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
    ) -> Result<Reply, Unanswered> {
        let mut event = Custom::new(
            "interrupt",
            serde_json::to_value(&interrupt).unwrap_or_default(),
        );
        event.call_id.clone_from(&interrupt.call_id);
        let shown = context.send(Event::Custom(Box::new(event)));
        let ended = async {
            match context.sleep(timeout).await {
                Err(error) if error.kind() == ErrorKind::Cancelled => Unanswered::Cancelled,
                _ => Unanswered::Late,
            }
        };
        self.wait(Tenant::of(context), interrupt, check, shown, ended)
            .await
    }
}

impl Context {
    /// Asks whoever reads the run's stream, and waits for the reply, for `timeout` at the most.
    ///
    /// The question is in the stream while that is read. Nobody reads before the model has begun to
    /// answer for the first time, nor while a hook is told of an event or of the end: what is asked
    /// there is seen in [`live`](Self::live) only, and once the run has ended it is not asked.
    ///
    /// # Errors
    ///
    /// There is no reply.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future takes the question back.
    pub async fn ask(&self, interrupt: Interrupt, timeout: Duration) -> Result<Reply, Unanswered> {
        self.live().ask(interrupt, timeout, self).await
    }

    /// Hands a reply to whoever [asks](Self::ask) in the run.
    ///
    /// # Errors
    ///
    /// Nobody waits for it (any more), or it is not of a form that answers the question, which then
    /// goes on waiting.
    pub fn reply(&self, reply: Reply) -> Result<(), ReplyError> {
        self.live().reply(&Tenant::of(self), reply, self.now())
    }
}
