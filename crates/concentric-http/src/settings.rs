//! The settings that all endpoints have.

use std::time::Duration;

use concentric_core::Environment;

use crate::{describe::ErrorMessage, policy::ClientPolicy, shutdown::Shutdown};

/// The settings of an endpoint, whose setters [`setters`] declares.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) environment: Environment,
    pub(crate) body_limit: usize,
    pub(crate) upload_timeout: Option<Duration>,
    pub(crate) policy: ClientPolicy,
    pub(crate) keep_alive: Option<Duration>,
    pub(crate) shutdown: Option<Shutdown>,
    pub(crate) error_message: ErrorMessage,
}

impl Settings {
    /// Returns the defaults, with the limits that differ between endpoints.
    pub(crate) fn new(body_limit: usize, policy: ClientPolicy) -> Self {
        Self {
            environment: Environment::system(),
            body_limit,
            upload_timeout: Some(Duration::from_secs(30)),
            policy,
            keep_alive: Some(Duration::from_secs(15)),
            shutdown: None,
            error_message: std::sync::Arc::new(crate::describe::describe),
        }
    }
}

/// Declares the setters of [`Settings`] on a type with `fn settings(self, impl FnOnce(&mut Settings))`; the arguments
/// are the parts of their documentation that differ.
macro_rules! setters {
    (body_limit: $body:literal, client_policy: $policy:literal, error_message: $message:literal) => {
        /// Sets the source of time, ids and randomness for the runs; the default is the system.
        #[must_use]
        pub fn environment(self, environment: concentric_core::Environment) -> Self {
            self.settings(|settings| settings.environment = environment)
        }

        #[doc = concat!("Sets the maximum size of a request body in bytes; the default is ", $body, ".")]
        #[must_use]
        pub fn body_limit(self, bytes: usize) -> Self {
            self.settings(|settings| settings.body_limit = bytes)
        }

        /// Sets how long a request body may take to arrive, measured from the call of the service; the
        /// default is 30 seconds.
        ///
        /// A later body is answered with `408`. `None` sets no limit; with zero, the body must be
        /// available immediately.
        #[must_use]
        pub fn upload_timeout(self, timeout: impl Into<Option<std::time::Duration>>) -> Self {
            let timeout = timeout.into();
            self.settings(|settings| settings.upload_timeout = timeout)
        }

        #[doc = concat!("Sets the limits on client input; the default is ", $policy)]
        #[must_use]
        pub fn client_policy(self, policy: crate::ClientPolicy) -> Self {
            self.settings(|settings| settings.policy = policy)
        }

        /// Sets the silence after which a comment is sent, so that proxies keep the connection open;
        /// the default is 15 seconds.
        ///
        /// `None` or zero disables comments. The minimum is one second; shorter times are raised to it.
        #[must_use]
        pub fn keep_alive(self, silence: impl Into<Option<std::time::Duration>>) -> Self {
            let silence = crate::keep_alive::KeepAlive::silence(silence.into());
            self.settings(|settings| settings.keep_alive = silence)
        }

        /// Sets the handle that ends the streams when the server shuts down.
        #[must_use]
        pub fn shutdown(self, shutdown: crate::Shutdown) -> Self {
            self.settings(|settings| settings.shutdown = Some(shutdown))
        }

        #[doc = concat!("Sets the function that makes ", $message, " from an error.")]
        ///
        /// The default is one sentence for each [`ErrorKind`](concentric_core::ErrorKind), since the
        /// text of an error may reveal part of a key, an address or a stack. Errors are logged in full
        /// with `tracing`.
        #[must_use]
        pub fn error_message(
            self,
            describe: impl Fn(&concentric_core::Error) -> String + Send + Sync + 'static,
        ) -> Self {
            self.settings(|settings| settings.error_message = std::sync::Arc::new(describe))
        }
    };
}

pub(crate) use setters;
