//! Provided and required capabilities: which stacks are rejected, when, and with which message.
//!
//! Stacks that do not compile are tested in `tests/ui/tests/fail/capability_*.rs`.

use crate::enters::Enters;
use concentric_core::{
    AgentLayer, BoxTool, CallId, Capability, ChatRequest, ChatResponse, Context, Declares, Error,
    ErrorKind, Event, FinishReason, Layers, NoTools, RoundCall, ToolCall, ToolCallPart,
    ToolOutcome, Usage,
    capability::{CapabilityError, CapabilityTable, Provides, Requires, declaring},
};
use concentric_layers::{NextTool, tool_from_fn};
use futures_util::stream;
use std::{
    error::Error as StdError,
    future::{Ready, ready},
    marker::PhantomData,
    sync::{Arc, Mutex},
    task::{self, Poll},
};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};

macro_rules! capabilities {
    ($($name:ident)*) => {$(
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        struct $name(u32);

        impl Capability for $name {}

        impl From<u32> for $name {
            fn from(value: u32) -> Self {
                Self(value)
            }
        }
    )*};
}

capabilities!(Store Clock Budget);

/// Provides a `C`.
struct Put<C>(C);

impl<C> Declares for Put<C>
where
    C: Capability,
{
    type Capabilities = Provides<C>;
}

impl<S, C> Layer<S> for Put<C>
where
    C: Capability,
{
    type Service = Putting<S, C>;

    fn layer(&self, inner: S) -> Self::Service {
        Putting {
            inner,
            value: self.0.clone(),
        }
    }
}

#[derive(Clone)]
struct Putting<S, C> {
    inner: S,
    value: C,
}

impl<S, C> Service<ChatRequest> for Putting<S, C>
where
    S: Service<ChatRequest>,
    C: Capability,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: ChatRequest) -> S::Future {
        request.context.provide(self.value.clone());
        self.inner.call(request)
    }
}

/// Requires a `C`.
struct Need<C>(PhantomData<C>);

fn need<C>() -> Need<C> {
    Need(PhantomData)
}

impl<C> Declares for Need<C>
where
    C: Capability,
{
    type Capabilities = Requires<C>;
}

impl<S, C> Layer<S> for Need<C> {
    type Service = S;

    fn layer(&self, inner: S) -> S {
        inner
    }
}

/// Declares that it provides a `C`, but does not provide it.
struct Liar<C>(PhantomData<C>);

fn liar<C>() -> Liar<C> {
    Liar(PhantomData)
}

impl<C> Declares for Liar<C>
where
    C: Capability,
{
    type Capabilities = Provides<C>;
}

impl<S, C> Layer<S> for Liar<C> {
    type Service = S;

    fn layer(&self, inner: S) -> S {
        inner
    }
}

/// Replaces the context of the requests that pass through.
#[derive(Clone)]
struct Forgets<S>(S);

impl<S> Service<ChatRequest> for Forgets<S>
where
    S: Service<ChatRequest>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: ChatRequest) -> S::Future {
        self.0.call(request.with_context(Context::new()))
    }
}

/// A model that records the contexts of its calls.
#[derive(Clone, Default)]
struct Model(Arc<Mutex<Vec<Context>>>);

type Body = stream::Iter<std::array::IntoIter<Result<Event, Error>, 2>>;

impl Service<ChatRequest> for Model {
    type Response = ChatResponse<Body>;
    type Error = Error;
    type Future = Ready<Result<ChatResponse<Body>, Error>>;

    fn poll_ready(&mut self, _: &mut task::Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        self.0.lock().unwrap().push(request.context);
        ready(Ok(ChatResponse::new(stream::iter([
            Ok(Event::text("hi")),
            Ok(Event::finish(FinishReason::Stop, Usage::new(1, 1))),
        ]))))
    }
}

impl Model {
    fn calls(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// The value of `C` in its only call.
    fn saw<C>(&self) -> Option<C>
    where
        C: Capability,
    {
        let calls = self.0.lock().unwrap();
        assert_eq!(calls.len(), 1);
        calls[0].capability().cloned()
    }
}

async fn ask<S, B>(stack: S) -> Result<(), Error>
where
    S: Service<ChatRequest, Response = ChatResponse<B>, Error = Error>,
    B: stream::Stream<Item = Result<Event, Error>>,
{
    let answer = stack.oneshot(ChatRequest::user("hi")).await?;
    answer.collect().await.map(drop).map_err(Error::from)
}

/// The only fault in `error`.
fn fault(error: &Error) -> CapabilityError {
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert_eq!(error.code(), Some("capability"));
    let source = error.source().unwrap();
    assert_eq!(error.message(), source.to_string());
    *source.downcast_ref().unwrap()
}

// ---- case C108: the capability is not provided ----

// Case C108.
#[tokio::test]
async fn a_missing_capability_fails_the_first_call() {
    let model = Model::default();
    let stack = ServiceBuilder::new()
        .layer(Enters(Put(Clock(1))))
        .layer(Enters(need::<Store>()))
        .service(model.clone());
    let error = ask(stack).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "configuration: `it::Need<it::Store>` requires `it::Store`, which \
         no outer layer provides"
    );
    assert!(matches!(fault(&error), CapabilityError::Missing { .. }));
    assert_eq!(model.calls(), 0);
}

// Case C108.
#[test]
fn a_table_reports_a_missing_capability() {
    let table = CapabilityTable::new()
        .with(&Put(Clock(1)))
        .with(&need::<Store>());
    assert_eq!(
        table.errors(),
        [CapabilityError::Missing {
            layer: "it::capability::Need<it::capability::Store>",
            capability: "it::capability::Store",
            provider: None,
        }]
    );
}

// Case C108.
#[test]
fn requiring_an_absent_capability_names_it() {
    let mut context = Context::new();
    let error = Error::from(context.require::<Store>().unwrap_err());
    assert!(matches!(fault(&error), CapabilityError::Absent { .. }));
    assert!(error.message().contains("`it::Store`"));

    assert_eq!(context.provide(Store(1)), None);
    assert_eq!(context.require(), Ok(&Store(1)));
    assert_eq!(context.provide(Store(2)), Some(Store(1)));
    assert_eq!(context.capability(), Some(&Store(2)));
}

// ---- case C109: the capability is provided further inside ----

// Case C109.
#[tokio::test]
async fn a_capability_provided_further_inside_is_missing() {
    let model = Model::default();
    let stack = ServiceBuilder::new()
        .layer(Enters(need::<Store>()))
        .layer(Enters(Put(Store(1))))
        .service(model.clone());
    let error = ask(stack).await.unwrap_err();
    assert!(matches!(fault(&error), CapabilityError::Missing { .. }));
    assert_eq!(model.calls(), 0);
}

// Case C109.
#[test]
fn a_table_names_a_provider_that_comes_too_late() {
    let table = CapabilityTable::new()
        .of::<Need<Store>>()
        .of::<Put<Store>>();
    assert_eq!(
        table.errors(),
        [CapabilityError::Late {
            layer: "it::capability::Need<it::capability::Store>",
            capability: "it::capability::Store",
            provider: "it::capability::Put<it::capability::Store>",
        }]
    );
    let error = table.check().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(error.message().ends_with("add `it::Put<it::Store>` first"));
}

// ---- case C110: the capability is declared but not provided ----

// Case C110.
#[tokio::test]
async fn a_false_declaration_is_blamed_on_its_layer() {
    let model = Model::default();
    let stack = Layers::new()
        .with(liar::<Store>())
        .with(need::<Store>())
        .service(model.clone());
    let error = ask(stack).await.unwrap_err();
    let CapabilityError::NotProvided { layer, capability } = fault(&error) else {
        panic!("{error}");
    };
    assert_eq!(layer, "it::capability::Liar<it::capability::Store>");
    assert_eq!(capability, "it::capability::Store");
    assert_eq!(model.calls(), 0);
}

// Case C110.
#[tokio::test]
async fn an_unused_false_declaration_is_reported() {
    let model = Model::default();
    let stack = Layers::new().with(liar::<Store>()).service(model.clone());
    let error = ask(stack).await.unwrap_err();
    assert!(matches!(fault(&error), CapabilityError::NotProvided { .. }));
    assert_eq!(model.calls(), 0);
}

// Case C110.
#[tokio::test]
async fn a_capability_that_an_intermediate_layer_removes_is_missing() {
    let model = Model::default();
    let stack = Layers::new()
        .with(Put(Store(1)))
        .layer(tower::layer::layer_fn(Forgets))
        .with(Enters(need::<Store>()))
        .service(model.clone());
    let error = ask(stack).await.unwrap_err();
    assert!(matches!(fault(&error), CapabilityError::Missing { .. }));
    assert_eq!(model.calls(), 0);
}

// ---- provided capabilities ----

#[tokio::test]
async fn a_capability_is_visible_inside_and_around_the_loop() {
    let model = Model::default();
    let stack = Layers::new()
        .with(Put(Store(7)))
        .layer(AgentLayer::new(NoTools))
        .with(need::<Store>())
        .service(model.clone());
    ask(stack).await.unwrap();
    assert_eq!(model.saw(), Some(Store(7)));
    assert_eq!(model.saw::<Clock>(), None);
}

#[tokio::test]
async fn tool_layers_see_the_capabilities_of_the_run() {
    async fn tool(_: ToolCall) -> Result<ToolOutcome, Error> {
        Ok(ToolOutcome::done("done"))
    }
    async fn spend(mut call: ToolCall, mut next: NextTool) -> Result<ToolOutcome, Error> {
        let Budget(left) = *call.context.require()?;
        call.context.provide(Budget(left - 1));
        next.run(call).await
    }
    let layers = Layers::new()
        .given::<Budget>()
        .with(declaring::<Requires<Budget>, _>(tool_from_fn(spend)));
    let stack = layers.service(BoxTool::new(tower::service_fn(tool)));

    let call = |context: &Context| {
        let part = ToolCallPart::new(CallId::new("c"), "t", "{}");
        ToolCall::new(part.clone(), context.at_call(&RoundCall::new(0, part)))
    };
    let mut context = Context::new();
    let error = stack.clone().oneshot(call(&context)).await.unwrap_err();
    assert!(matches!(fault(&error), CapabilityError::Missing { .. }));
    context.provide(Budget(2));
    stack.oneshot(call(&context)).await.unwrap();
    assert_eq!(context.capability(), Some(&Budget(2)));
}

// ---- duplicate capabilities ----

#[test]
fn a_table_names_both_providers_of_a_duplicate() {
    let table = CapabilityTable::new()
        .with(&Put(Store(1)))
        .with(&liar::<Store>());
    let [
        CapabilityError::Twice {
            layer,
            capability,
            provider,
        },
    ] = table.errors()[..]
    else {
        panic!("{table:?}");
    };
    assert_eq!(layer, "it::capability::Liar<it::capability::Store>");
    assert_eq!(capability, "it::capability::Store");
    assert_eq!(provider, "it::capability::Put<it::capability::Store>");
}

#[test]
fn all_faults_are_reported_on_one_line() {
    let table = CapabilityTable::new()
        .with(&need::<Clock>())
        .with(&need::<Store>())
        .with(&Put(Store(1)))
        .with(&Put(Store(2)));
    assert!(matches!(
        table.errors()[..],
        [
            CapabilityError::Missing { .. },
            CapabilityError::Late { .. },
            CapabilityError::Twice { .. }
        ]
    ));
    let text = table.check().unwrap_err().to_string();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert_eq!(text.split("; ").count(), 3, "{text}");
}

// ---- several stacks ----

#[tokio::test]
async fn layers_work_in_a_service_builder_and_contain_other_layers() {
    let model = Model::default();
    let inner = Layers::new()
        .given::<Store>()
        .with(need::<Store>())
        .layer(AgentLayer::new(NoTools))
        .with(Put(Clock(2)));
    let all = Layers::new()
        .with(Put(Store(1)))
        .and(inner)
        .with(need::<Clock>())
        .with(need::<Store>());
    assert_eq!(
        all.table().layers().collect::<Vec<_>>(),
        [
            "it::capability::Put<it::capability::Store>",
            "it::capability::Need<it::capability::Store>",
            "it::capability::Put<it::capability::Clock>",
            "it::capability::Need<it::capability::Clock>",
            "it::capability::Need<it::capability::Store>",
        ]
    );
    assert_eq!(all.table().errors(), []);
    let stack = ServiceBuilder::new().layer(all).service(model.clone());
    ask(stack).await.unwrap();
    assert_eq!(model.saw(), Some(Store(1)));
    assert_eq!(model.saw(), Some(Clock(2)));
}

#[tokio::test]
async fn an_assumed_capability_is_checked_at_the_first_call() {
    let model = Model::default();
    let layers = Layers::new().given::<Store>().with(need::<Store>());
    let error = ask(layers.service(model.clone())).await.unwrap_err();
    assert_eq!(
        fault(&error),
        CapabilityError::Missing {
            layer: "Layers::given",
            capability: "it::capability::Store",
            provider: None,
        }
    );
    assert_eq!(model.calls(), 0);

    let mut request = ChatRequest::user("hi");
    request.context.provide(Store(5));
    let stack = layers.service(model.clone());
    stack.oneshot(request).await.unwrap();
    assert_eq!(model.saw(), Some(Store(5)));
}

#[test]
fn tables_of_several_stacks_are_checked_together() {
    let run = || Layers::new().with(Put(Store(1))).table();
    let tools = Layers::new().given::<Store>().with(need::<Store>());
    assert_eq!(run().and(tools.table()).errors(), []);
    assert!(matches!(
        tools.table().errors()[..],
        [CapabilityError::Missing { .. }]
    ));
    let of_host = CapabilityTable::new().given::<Store>();
    assert_eq!(of_host.clone().and(tools.table()).errors(), []);
    assert!(matches!(
        of_host.and(run()).errors()[..],
        [CapabilityError::Twice {
            provider: "the host",
            ..
        }]
    ));
}

// ---- the service ----

#[test]
fn readiness_is_forwarded() {
    #[derive(Clone)]
    struct Never;

    impl Service<ChatRequest> for Never {
        type Response = ();
        type Error = Error;
        type Future = Ready<Result<(), Error>>;

        fn poll_ready(&mut self, _: &mut task::Context<'_>) -> Poll<Result<(), Error>> {
            Poll::Pending
        }

        fn call(&mut self, _: ChatRequest) -> Self::Future {
            panic!("called before it was ready")
        }
    }

    let mut stack = Layers::new().with(Put(Store(1))).service(Never);
    let mut ready = tokio_test::task::spawn(stack.ready());
    assert!(ready.poll().is_pending());
}

#[test]
fn the_inner_service_needs_no_auto_traits() {
    // The inner service is neither `Clone`, nor `Send`, nor `'static`.
    struct Inner<'a>(&'a std::cell::Cell<u32>);

    impl Service<ChatRequest> for Inner<'_> {
        type Response = u32;
        type Error = Error;
        type Future = Ready<Result<u32, Error>>;

        fn poll_ready(&mut self, _: &mut task::Context<'_>) -> Poll<Result<(), Error>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: ChatRequest) -> Self::Future {
            ready(Ok(self.0.get()))
        }
    }

    let cell = std::cell::Cell::new(4);
    let mut stack = Layers::new().with(Put(Store(1))).service(Inner(&cell));
    let mut call = tokio_test::task::spawn(stack.call(ChatRequest::user("hi")));
    assert!(matches!(call.poll(), Poll::Ready(Ok(4))));
}

#[test]
fn a_stack_keeps_the_auto_traits_of_its_services() {
    fn check<T: Clone + Send + Sync + Unpin>(_: T) {}
    let layers = Layers::new().given::<Store>().used::<Clock>();
    check(layers.service(Model::default()));
    check(layers.table());
}

// ---- many layers ----

macro_rules! chain {
    ($($name:ident requires $($of:ident)*;)*) => {
        capabilities!($($name)*);

        $(
            impl Declares for Link<$name> {
                type Capabilities = (Provides<$name>, $(Requires<$of>,)*);
            }
        )*

        fn sixteen() -> impl Layer<Model, Service: Service<
            ChatRequest,
            Response = ChatResponse<Body>,
            Error = Error,
        >> {
            Layers::new()$(.with(Link($name(1))))*
        }
    };
}

/// Provides a `C` and requires the capabilities that it declares.
struct Link<C>(C);

impl<S, C> Layer<S> for Link<C>
where
    C: Capability,
{
    type Service = Putting<S, C>;

    fn layer(&self, inner: S) -> Self::Service {
        Put(self.0.clone()).layer(inner)
    }
}

chain! {
    A requires;
    B requires A;
    C requires A B;
    D requires A C;
    E requires A D;
    F requires A E;
    G requires A F;
    H requires A B G;
    I requires A B H;
    J requires A B I;
    K requires A B J;
    L requires A B C K;
    M requires A B C L;
    N requires A B C M;
    O requires A B C D N;
    P requires A B C D E F O;
}

#[tokio::test]
async fn sixteen_layers_each_require_the_previous_ones() {
    let model = Model::default();
    ask(Layer::layer(&sixteen(), model.clone())).await.unwrap();
    assert_eq!(model.saw(), Some(A(1)));
    assert_eq!(model.saw(), Some(P(1)));
}
