//! The differences between protocols.

use std::{fmt, sync::Arc};

use bytes::{Bytes, BytesMut};
use concentric_core::{
    CancelReason, Context, Error, ErrorKind, Event, Finish, OpenRound, ResponseHead, Str,
    Transcript, panic::CaughtPanic,
};
use http::HeaderMap;

use super::{Format, RunIds, RunInput, ending::name_taken};
use crate::{
    describe::{ErrorMessage, refusal},
    policy::ClientPolicy,
    refused::Refused,
    settings::Settings,
};

/// The configuration that the services of one layer share.
#[derive(Clone)]
pub(crate) struct Config {
    pub(crate) settings: Settings,
    pub(crate) agent: Option<Str>,
    pub(crate) state_limit: usize,
    pub(crate) keep_headers: bool,
    pub(crate) protocol: Arc<dyn Protocol>,
}

impl Config {
    pub(crate) fn new(protocol: impl Protocol) -> Self {
        Self {
            settings: Settings::new(4 << 20, ClientPolicy::new()),
            agent: None,
            state_limit: 1 << 20,
            keep_headers: false,
            protocol: Arc::new(protocol),
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            settings,
            agent,
            state_limit,
            keep_headers,
            protocol: _,
        } = self;
        f.debug_struct("Config")
            .field("agent", agent)
            .field("body_limit", &settings.body_limit)
            .field("upload_timeout", &settings.upload_timeout)
            .field("state_limit", state_limit)
            .field("policy", &settings.policy)
            .field("keep_alive", &settings.keep_alive)
            .field("keep_headers", keep_headers)
            .field("shutdown", &settings.shutdown)
            .finish_non_exhaustive()
    }
}

/// Declares the setters of [`Config`] on a type with `fn with(self, impl FnOnce(&mut Config))`.
macro_rules! run_setters {
    () => {
        /// Sets the agent's name (`gen_ai.agent.name`).
        #[must_use]
        pub fn agent(self, name: impl Into<concentric_core::Str>) -> Self {
            self.with(|config| config.agent = Some(name.into()))
        }

        /// Sets the maximum size of the state after an [update](crate::ag_ui::AgUiState::update), in bytes of
        /// JSON; the default is 1 MiB.
        #[must_use]
        pub fn state_limit(self, bytes: usize) -> Self {
            self.with(|config| config.state_limit = bytes)
        }

        /// Adds the request's headers to the extensions of the run's context, as an `http::HeaderMap`.
        ///
        /// Headers contain credentials, which every layer, tool and sub-agent of the run can then read.
        /// Prefer an outer layer that extracts the required values into an extension of the request.
        #[must_use]
        pub fn keep_headers(self) -> Self {
            self.with(|config| config.keep_headers = true)
        }
    };
}

pub(crate) use run_setters;

/// The form of requests and responses.
pub(crate) trait Protocol: Send + Sync + 'static {
    /// Parses a body; `None` if it is invalid.
    fn parse(&self, body: &[u8]) -> Option<Parsed>;

    /// Parses a body that [`parse`](Self::parse) has not accepted, which may take twice as long.
    ///
    /// # Errors
    ///
    /// The error names the invalid field.
    fn explain(&self, body: &[u8]) -> Result<Parsed, Refused>;

    /// Creates the translator of a run's events, with the first one in its buffer.
    fn translator(
        &self,
        context: Context,
        ids: RunIds,
        error_message: ErrorMessage,
    ) -> Box<dyn Translate>;

    /// Adds the headers of a stream.
    fn headers(&self, _: &mut HeaderMap) {}
}

/// A body in the form of its protocol, which is checked and converted later: either takes long for a large body.
pub(crate) type Parsed = Box<dyn FnOnce(&ClientPolicy) -> Result<RunInput, Refused> + Send>;

/// Writes the events of a run as frames.
pub(crate) trait Translate: Send {
    fn format(&self) -> &'static Format;

    /// The frames that were written.
    fn buffer(&mut self) -> &mut BytesMut;

    /// The number of bytes that were written.
    fn len(&self) -> usize;

    /// Writes the first frame, in place of what is in the buffer.
    fn restart(&mut self);

    /// The frames of what the client had before, which follow the first frame for a client that has lost it.
    fn earlier(&self) -> Bytes {
        Bytes::new()
    }

    /// Writes the conversation, and the round that the run resumes, for clients without the history.
    fn snapshot(&mut self, history: &Transcript, open: Option<&OpenRound>);

    /// Records the provider and model, and whether the run can be resumed from a store.
    fn head(&mut self, head: &ResponseHead, extensions: &http::Extensions);

    fn event(&mut self, event: Event);

    // ---- the end ----

    fn finish(&mut self, finish: &Finish);

    fn cancelled(&mut self, reason: &CancelReason);

    /// Ends the stream with an error, which has been logged.
    fn write_error(&mut self, error: &Error, code: &str);

    /// The context and the ids of the run.
    fn run(&self) -> (&Context, &RunIds);

    fn fail(&mut self, error: &Error) {
        let (
            context,
            RunIds {
                thread, run, tools, ..
            },
        ) = self.run();
        if error.kind() == ErrorKind::Cancelled
            && let Some(reason) = context.cancel_reason()
        {
            return self.cancelled(&reason);
        }
        if name_taken(error, tools, context).is_some() {
            return self.write_error(error, "tool_name_taken");
        }
        let code = refusal(error);
        match code {
            Some(code) => tracing::warn!(thread_id = %thread, run_id = %run, code, "run rejected"),
            None => {
                tracing::error!(thread_id = %thread, run_id = %run, error = ?error, "run failed");
            }
        }
        self.write_error(error, code.unwrap_or(error.kind().as_str()));
    }

    fn panicked(&mut self, panic: &CaughtPanic) {
        let (_, RunIds { thread, run, .. }) = self.run();
        tracing::error!(thread_id = %thread, run_id = %run, panic = panic.text(), "run panicked");
        let error = Error::new(ErrorKind::Other, "a layer or a model of the run panicked");
        self.write_error(&error, error.kind().as_str());
    }

    fn truncated(&mut self) {
        self.fail(&Error::new(
            ErrorKind::Truncated,
            "the response body ended before its terminal event",
        ));
    }
}
