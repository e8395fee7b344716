use super::{Edit, GuardBody, Parts, ResponseFuture, Rule, Rules, input};
use concentric_core::{
    BoxError, ChatRequest, ChatResponse, Error, ErrorKind, Event, Str, panic::catch,
};
use futures_core::Stream;
use std::{
    error::Error as _,
    fmt, iter,
    sync::Arc,
    task::{Context, Poll},
};
use tower_layer::Layer;
use tower_service::Service;

/// The [code](Error::code) of an error for a text that a rule blocked.
pub const BLOCKED: &str = "guard_blocked";

/// A match of a rule.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Found<'a> {
    /// The rule.
    pub rule: &'a Rule,
    /// The kind of text.
    pub part: Parts,
    /// The length of the text in bytes, without the tail of a match that is longer than
    /// [`at_most`](Rule::at_most).
    pub len: usize,
}

/// [`Layer`] that applies [`Rules`] to inputs and answers ([`Guard`]).
///
/// See the [module docs](super) for an example.
#[derive(Clone)]
pub struct GuardLayer(Options);

#[derive(Clone)]
pub(super) struct Options {
    pub(super) rules: Rules,
    pub(super) input: Parts,
    pub(super) output: Parts,
    pub(super) limit: usize,
    pub(super) block_with: Option<Str>,
    on_match: Option<Arc<OnMatch>>,
}

type OnMatch = dyn Fn(Found<'_>) + Send + Sync;

impl GuardLayer {
    /// Creates a layer that applies `rules` to the messages of users, and to the text, reasoning and refusals
    /// of answers.
    ///
    /// [Compiling](Rules::new) rules takes time, and cloning them does not: layers can share one set.
    pub fn new(rules: Rules) -> Self {
        Self(Options {
            rules,
            input: Parts::USER,
            output: Parts::TEXT | Parts::REASONING | Parts::REFUSAL,
            limit: 1 << 20,
            block_with: None,
            on_match: None,
        })
    }

    /// Sets the parts of requests that the rules apply to. [`Parts::CUSTOM`] and [`Parts::TRANSCRIPT`] are of
    /// answers only.
    #[must_use]
    pub fn input(mut self, parts: Parts) -> Self {
        self.0.input = parts;
        self
    }

    /// Sets the parts of answers that the rules apply to.
    #[must_use]
    pub fn output(mut self, parts: Parts) -> Self {
        self.0.output = parts;
        self
    }

    /// Ends a blocked call with this text and
    /// [`FinishReason::ContentFilter`](concentric_core::FinishReason::ContentFilter). By default, it fails.
    #[must_use]
    pub fn block_with(mut self, text: impl Into<Str>) -> Self {
        self.0.block_with = Some(text.into());
        self
    }

    /// Calls `on_match` with each match, before the text is released. It must not block.
    #[must_use]
    pub fn on_match(mut self, on_match: impl Fn(Found<'_>) + Send + Sync + 'static) -> Self {
        self.0.on_match = Some(Arc::new(on_match));
        self
    }

    /// Sets the maximum number of bytes of a typed answer, which is held until it is complete; the default is
    /// 1 MiB.
    #[must_use]
    pub fn limit(mut self, bytes: usize) -> Self {
        self.0.limit = bytes;
        self
    }
}

impl Options {
    /// Whether anything of an answer can be changed.
    pub(super) fn has_output(&self) -> bool {
        self.output != Parts::NONE && self.rules.iter().next().is_some()
    }

    /// Whether anything of a request can be changed.
    pub(super) fn has_input(&self) -> bool {
        self.input != Parts::NONE && self.rules.iter().next().is_some()
    }

    /// Reports matches, and returns the error for one that blocks.
    pub(super) fn report(&self, edit: Edit<'_>) -> Result<(), Error> {
        let mut blocking = None;
        for (rule, part, len) in edit.found {
            let Some(rule) = self.rules.rule(rule) else {
                continue;
            };
            if rule.is_block() {
                blocking = Some(rule);
            }
            if let Some(on_match) = &self.on_match
                && catch(|| on_match(Found { rule, part, len })).is_err()
            {
                tracing::error!(target: "concentric::guard", rule = rule.name(), "the function `on_match` panicked");
            }
        }
        if !edit.is_blocked {
            return Ok(());
        }
        let message = match blocking {
            Some(rule) => format!("the rule `{}` blocked the text", rule.name()),
            None => "the text could not be guarded".to_owned(),
        };
        Err(Error::new(ErrorKind::ContentFilter, message).with_code(BLOCKED))
    }

    /// Removes matches from the message of an error, its code and its type, and its source if that, or one below,
    /// has any.
    pub(super) fn error(&self, mut error: Error) -> Error {
        if !self.output.contains(Parts::TEXT) {
            return error;
        }
        let changed = |text: Option<&str>| {
            let text = text?;
            let changed = self.rules.apply(text);
            (changed != text).then(|| Str::from(changed.into_owned()))
        };
        let (code, name) = (changed(error.code()), changed(error.error_type()));
        if let Some(code) = code {
            error = error.with_code(code);
        }
        if let Some(name) = name {
            error = error.with_type(name);
        }
        let message = self.rules.apply(error.message());
        let sources = iter::successors(error.source(), |&error| error.source());
        // An error is logged in both forms.
        let mut texts = sources.flat_map(|source| [source.to_string(), format!("{source:?}")]);
        if message == error.message() && !texts.any(|text| self.rules.apply(&text) != text) {
            return error;
        }
        let message = Str::from(message);
        error.with_message(message)
    }
}

impl fmt::Debug for GuardLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardLayer")
            .field("rules", &self.0.rules)
            .field("input", &self.0.input)
            .field("output", &self.0.output)
            .finish_non_exhaustive()
    }
}

impl<S> Layer<S> for GuardLayer {
    type Service = Guard<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Guard {
            inner,
            options: Arc::new(self.0.clone()),
        }
    }
}

/// Middleware that applies rules to inputs and answers.
#[derive(Clone)]
pub struct Guard<S> {
    inner: S,
    options: Arc<Options>,
}

impl<S> Guard<S> {
    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S: fmt::Debug> fmt::Debug for Guard<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("inner", &self.inner)
            .field("rules", &self.options.rules)
            .finish_non_exhaustive()
    }
}

impl<S, B> Service<ChatRequest> for Guard<S>
where
    S: Service<ChatRequest, Response = ChatResponse<B>> + Clone,
    S::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
{
    type Response = ChatResponse<GuardBody<B>>;
    type Error = Error;
    type Future = ResponseFuture<S, B>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: ChatRequest) -> Self::Future {
        let options = &self.options;
        match input::edit(options, &mut request) {
            Ok(()) => ResponseFuture::call(self.inner.clone(), request, options),
            Err(error) => ResponseFuture::blocked(error, options),
        }
    }
}
