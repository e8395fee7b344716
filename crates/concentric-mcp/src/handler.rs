//! The messages that a server sends on its own.
#![expect(
    deprecated,
    reason = "log messages, sampling and roots, which servers still use"
)]

use crate::{config::Config, elicit, offers, pending::PendingCalls, text, throttle::Throttle};
use concentric_core::InterruptId;
use rmcp::{
    ClientHandler,
    model::{
        ClientCapabilities, ClientConfig, CreateMessageRequestMethod, CreateMessageRequestParams,
        CreateMessageResult, ElicitRequestParams, ElicitResult, ElicitationCapability, ErrorData,
        FormElicitationCapability, Implementation, ListRootsRequestMethod, ListRootsResult,
        LoggingLevel, LoggingMessageNotificationParam, ProgressNotificationParam,
    },
    service::{NotificationContext, RequestContext, RoleClient},
};
use serde_json::Value;
use std::sync::{Arc, Mutex, PoisonError, atomic::Ordering};
use tokio::sync::{Notify, Semaphore};

/// The text of a log record (bytes).
const MAX_LOGGED: usize = 2048;

/// The questions that wait for an answer at once; further ones are cancelled.
const MAX_QUESTIONS: usize = 4;

/// Receives the notifications and requests of a server.
pub(crate) struct Handler {
    config: Config,
    calls: Arc<PendingCalls>,
    list_changed: Arc<Notify>,
    throttle: Mutex<Throttle>,
    questions: Semaphore,
}

impl Handler {
    pub(crate) fn new(config: Config, calls: Arc<PendingCalls>, list_changed: Arc<Notify>) -> Self {
        Self {
            config,
            calls,
            list_changed,
            throttle: Mutex::new(Throttle::new()),
            questions: Semaphore::new(MAX_QUESTIONS),
        }
    }
}

impl ClientHandler for Handler {
    fn get_info(&self) -> ClientConfig {
        let mut capabilities = ClientCapabilities::default();
        let form = FormElicitationCapability::default();
        capabilities.elicitation = Some(ElicitationCapability::default().with_form(form));
        offers::offer(&self.config, &mut capabilities);
        let version = env!("CARGO_PKG_VERSION");
        ClientConfig::new(capabilities, Implementation::new("concentric", version))
    }

    async fn create_elicitation(
        &self,
        question: ElicitRequestParams,
        request: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let Ok(_permit) = self.questions.try_acquire() else {
            return Ok(elicit::answer(None, None));
        };
        let Some(call) = self.calls.only_run() else {
            return Ok(elicit::answer(None, None));
        };
        let context = &call.context;
        let id = InterruptId::new(context.new_id("elicitation_"));
        let Some(mut interrupt) = elicit::interrupt(&self.config.name, id, &question) else {
            return Ok(elicit::answer(None, None));
        };
        interrupt.call_id = context.call_id().cloned();
        let form = interrupt.response_schema.clone();
        // The answer may take long, and the interrupt has all that is needed.
        drop((question, request));
        let reply = context.ask(interrupt, self.config.answer_timeout).await;
        if let Err(error) = &reply {
            let server = self.config.name.as_str();
            tracing::debug!(target: "concentric::mcp", parent: None, server, %error, "a question of a server was not answered");
        }
        Ok(elicit::answer(reply.ok().as_ref(), form.as_deref()))
    }

    async fn create_message(
        &self,
        params: CreateMessageRequestParams,
        request: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        let Some(model) = self.config.sampling.clone() else {
            return Err(ErrorData::method_not_found::<CreateMessageRequestMethod>());
        };
        let refused = |why: &'static str| Err(ErrorData::invalid_request(why, None));
        let Ok(_permit) = self.questions.try_acquire() else {
            return refused("too many requests for the model wait");
        };
        let Some(call) = self.calls.only_run() else {
            return refused("the request for the model belongs to no call");
        };
        let earlier = call.samples.fetch_add(1, Ordering::Relaxed);
        if earlier >= self.config.limits.max_samples {
            return refused("there are too many requests for the model during the call");
        }
        let answer = offers::sample(&self.config, model, params, &call.context);
        tokio::select! {
            answer = answer => answer.or_else(refused),
            () = call.ended.cancelled() => refused("the call has ended"),
            () = request.ct.cancelled() => refused("the request was cancelled"),
        }
    }

    async fn list_roots(
        &self,
        _: RequestContext<RoleClient>,
    ) -> Result<ListRootsResult, ErrorData> {
        let roots = offers::roots(&self.config);
        roots.ok_or_else(ErrorData::method_not_found::<ListRootsRequestMethod>)
    }

    async fn on_progress(
        &self,
        progress: ProgressNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        self.calls.progress(progress);
    }

    async fn on_logging_message(
        &self,
        message: LoggingMessageNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        let mut throttle = self.throttle.lock().unwrap_or_else(PoisonError::into_inner);
        if !throttle.allows() {
            return;
        }
        let shown = match message.data {
            Value::String(text) => text,
            other => other.to_string(),
        };
        let text = text::cut(text::visible(&shown), MAX_LOGGED);
        let (server, logger) = (self.config.name.as_str(), message.logger);
        let logger = logger.map(|logger| text::cut(text::visible(&logger), 128));
        macro_rules! log {
            ($level:ident) => {
                tracing::$level!(target: "concentric::mcp", parent: None, server, logger, text, "message of a server")
            };
        }
        match message.level {
            LoggingLevel::Debug => log!(debug),
            LoggingLevel::Info | LoggingLevel::Notice => log!(info),
            LoggingLevel::Warning => log!(warn),
            _ => log!(error),
        }
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.list_changed.notify_one();
    }
}
