//! What layers provide and require: what is refused, when, and what is said of it.
//!
//! What does not compile is in `tests/ui/tests/fail/capability_*.rs`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use concentric_core::{
    AgentLayer, BoxTool, CallId, Capability, ChatRequest, ChatResponse, Context, Declares, Error,
    ErrorKind, Event, FinishReason, Layers, NoTools, RoundCall, ToolCall, ToolCallPart,
    ToolOutcome, Usage,
    capability::{
        Checked, CheckedLayer, Declaring, Fault, Optional, Provides, Replaces, Requires, Table,
        declaring,
    },
    layers::{NextTool, tool_from_fn},
};
use futures_util::stream;
use std::{
    error::Error as StdError,
    future::{Ready, ready},
    marker::PhantomData,
    sync::{Arc, Mutex},
    task::{self, Poll},
};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, layer::util::Identity};

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

capabilities!(Store Clock Budget Metrics);

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

/// Declares that it provides a `C`, and does not.
fn liar<C>() -> Declaring<Provides<C>, Identity>
where
    C: Capability,
{
    declaring(Identity::new())
}

/// Gives the requests that pass another context.
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

/// A model that remembers the contexts that it was called with.
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

    /// What it saw of `C` in its one call.
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

/// The one fault that `error` is about.
fn fault(error: &Error) -> Fault {
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert_eq!(error.code(), Some("capability"));
    let source = error.source().unwrap();
    assert_eq!(error.message(), source.to_string());
    *source.downcast_ref().unwrap()
}

fn faults(table: &Table) -> Vec<Fault> {
    match table.check() {
        Ok(()) => Vec::new(),
        Err(faults) => faults.faults().to_vec(),
    }
}

// ---- C108: nobody provides it ----

#[tokio::test]
async fn c108_what_nobody_provides_is_named_at_the_first_call_and_the_model_is_not_called() {
    let model = Model::default();
    let stack = ServiceBuilder::new()
        .layer(CheckedLayer::new(Put(Clock(1))))
        .layer(CheckedLayer::new(need::<Store>()))
        .service(model.clone());
    let error = ask(stack).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "configuration: `capability::Need<capability::Store>` requires `capability::Store`, and \
         no layer outside of it provides that"
    );
    assert!(matches!(fault(&error), Fault::Missing { .. }));
    assert_eq!(model.calls(), 0);
}

#[test]
fn c108_a_table_names_what_nobody_provides() {
    let table = Table::new().with(&Put(Clock(1))).with(&need::<Store>());
    assert_eq!(
        faults(&table),
        [Fault::Missing {
            layer: "capability::Need<capability::Store>",
            capability: "capability::Store",
            provider: None,
        }]
    );
}

#[test]
fn c108_who_asks_for_what_nobody_provides_is_told_so() {
    let mut context = Context::new();
    let error = Error::from(context.require::<Store>().unwrap_err());
    assert!(matches!(fault(&error), Fault::Absent { .. }));
    assert!(error.message().contains("`capability::Store`"));

    assert_eq!(context.provide(Store(1)), None);
    assert_eq!(context.require(), Ok(&Store(1)));
    assert_eq!(context.provide(Store(2)), Some(Store(1)));
    assert_eq!(context.capability(), Some(&Store(2)));
}

// ---- C109: it is provided later ----

#[tokio::test]
async fn c109_a_provider_inside_of_who_requires_it_is_not_seen() {
    let model = Model::default();
    let stack = ServiceBuilder::new()
        .layer(CheckedLayer::new(need::<Store>()))
        .layer(CheckedLayer::new(Put(Store(1))))
        .service(model.clone());
    let error = ask(stack).await.unwrap_err();
    assert!(matches!(fault(&error), Fault::Missing { .. }));
    assert_eq!(model.calls(), 0);
}

#[test]
fn c109_a_table_says_that_the_provider_comes_later_and_names_it() {
    let table = Table::new().of::<Need<Store>>().of::<Put<Store>>();
    assert_eq!(
        faults(&table),
        [Fault::Late {
            layer: "capability::Need<capability::Store>",
            capability: "capability::Store",
            provider: "capability::Put<capability::Store>",
            is_optional: false,
        }]
    );
    let error = Error::from(table.check().unwrap_err());
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(
        error
            .message()
            .ends_with("add `capability::Put<capability::Store>` first")
    );
}

// ---- C110: it is declared and not provided ----

#[tokio::test]
async fn c110_who_declares_and_does_not_provide_is_named_and_not_who_requires_it() {
    let model = Model::default();
    let stack = Layers::new()
        .with(liar::<Store>())
        .with(need::<Store>())
        .service(model.clone());
    let error = ask(stack).await.unwrap_err();
    let Fault::NotProvided { layer, capability } = fault(&error) else {
        panic!("{error}");
    };
    assert!(layer.starts_with("concentric_core::capability::declare::Declaring<"));
    assert_eq!(capability, "capability::Store");
    assert_eq!(model.calls(), 0);
}

#[tokio::test]
async fn c110_it_is_told_also_where_nobody_requires_it() {
    let model = Model::default();
    let stack = ServiceBuilder::new()
        .layer(CheckedLayer::new(liar::<Store>()))
        .service(model.clone());
    let error = ask(stack).await.unwrap_err();
    assert!(matches!(fault(&error), Fault::NotProvided { .. }));
    assert_eq!(model.calls(), 0);
}

#[tokio::test]
async fn c110_what_a_layer_in_between_takes_away_is_missed_by_who_is_checked_for_it() {
    let model = Model::default();
    let stack = Layers::new()
        .with(Put(Store(1)))
        .layer(tower::layer::layer_fn(Forgets))
        .with(CheckedLayer::new(need::<Store>()))
        .service(model.clone());
    let error = ask(stack).await.unwrap_err();
    assert!(matches!(fault(&error), Fault::Missing { .. }));
    assert_eq!(model.calls(), 0);
}

// ---- what is provided ----

#[tokio::test]
async fn what_is_provided_is_seen_inside_and_over_the_loop() {
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
async fn what_the_run_has_is_seen_by_the_layers_on_a_tool() {
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
        .with(declaring::<Replaces<Budget>, _>(tool_from_fn(spend)));
    let stack = layers.service(BoxTool::new(tower::service_fn(tool)));

    let call = |context: &Context| {
        let part = ToolCallPart::new(CallId::new("c"), "t", "{}");
        ToolCall::new(part.clone(), context.at_call(&RoundCall::new(0, part)))
    };
    let mut context = Context::new();
    let error = stack.clone().oneshot(call(&context)).await.unwrap_err();
    assert!(matches!(fault(&error), Fault::Missing { .. }));
    context.provide(Budget(2));
    stack.oneshot(call(&context)).await.unwrap();
    assert_eq!(context.capability(), Some(&Budget(2)));
}

#[tokio::test]
async fn what_a_layer_replaces_is_another_for_those_inside_of_it() {
    #[derive(Clone)]
    struct Halve;

    impl Declares for Halve {
        type Capabilities = Replaces<Budget>;
    }

    impl<S> Layer<S> for Halve {
        type Service = Halving<S>;

        fn layer(&self, inner: S) -> Halving<S> {
            Halving(inner)
        }
    }

    struct Halving<S>(S);

    impl<S> Service<ChatRequest> for Halving<S>
    where
        S: Service<ChatRequest>,
    {
        type Response = S::Response;
        type Error = S::Error;
        type Future = S::Future;

        fn poll_ready(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<(), S::Error>> {
            self.0.poll_ready(cx)
        }

        fn call(&mut self, mut request: ChatRequest) -> S::Future {
            if let Some(&Budget(all)) = request.context.capability() {
                request.context.provide(Budget(all / 2));
            }
            self.0.call(request)
        }
    }

    let model = Model::default();
    let layers = Layers::new()
        .with(Put(Budget(8)))
        .with(Halve)
        .with(Halve)
        .with(need::<Budget>());
    assert_eq!(faults(&layers.table()), []);
    ask(layers.service(model.clone())).await.unwrap();
    assert_eq!(model.saw(), Some(Budget(2)));

    let table = Table::new().with(&Halve).with(&Put(Budget(8)));
    assert!(matches!(faults(&table)[..], [Fault::Late { .. }]));
    assert!(matches!(
        faults(&Table::new().with(&Halve))[..],
        [Fault::Missing { .. }]
    ));
}

// ---- what may be there ----

#[tokio::test]
async fn what_is_optional_may_be_there_or_not() {
    let optional = || declaring::<Optional<Clock>, _>(Identity::new());
    let (with, without) = (Model::default(), Model::default());
    let stack = Layers::new().with(optional()).service(without.clone());
    ask(stack).await.unwrap();
    assert_eq!(without.saw::<Clock>(), None);
    let stack = Layers::new()
        .with(Put(Clock(3)))
        .with(optional())
        .service(with.clone());
    ask(stack).await.unwrap();
    assert_eq!(with.saw(), Some(Clock(3)));
}

#[test]
fn a_table_tells_of_what_is_optional_and_would_never_be_seen() {
    let optional = declaring::<Optional<Clock>, _>(Identity::new());
    assert_eq!(faults(&Table::new().with(&optional)), []);
    let table = Table::new().with(&optional).with(&Put(Clock(3)));
    let [
        fault @ Fault::Late {
            is_optional: true, ..
        },
    ] = faults(&table)[..]
    else {
        panic!("{table:?}");
    };
    assert!(fault.to_string().contains("uses `capability::Clock`"));
}

// ---- two of the same ----

#[test]
fn a_table_names_both_who_provide_the_same() {
    let table = Table::new().with(&Put(Store(1))).with(&liar::<Store>());
    let [
        Fault::Twice {
            layer,
            capability,
            provider,
        },
    ] = faults(&table)[..]
    else {
        panic!("{table:?}");
    };
    assert!(layer.contains("Declaring"));
    assert_eq!(capability, "capability::Store");
    assert_eq!(provider, "capability::Put<capability::Store>");
}

#[test]
fn all_that_is_wrong_is_told_on_one_line() {
    let table = Table::new()
        .with(&need::<Clock>())
        .with(&need::<Store>())
        .with(&Put(Store(1)))
        .with(&Put(Store(2)));
    let all = table.check().unwrap_err();
    assert!(matches!(
        all.faults(),
        [
            Fault::Missing { .. },
            Fault::Late { .. },
            Fault::Twice { .. }
        ]
    ));
    let text = Error::from(all).to_string();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert_eq!(text.split("; ").count(), 3, "{text}");
}

// ---- several stacks ----

#[tokio::test]
async fn layers_stand_in_a_service_builder_and_hold_other_layers() {
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
    let names: Vec<_> = all
        .table()
        .declarations()
        .iter()
        .map(|declaration| declaration.layer())
        .collect();
    assert_eq!(
        names,
        [
            "capability::Put<capability::Store>",
            "capability::Need<capability::Store>",
            "capability::Put<capability::Clock>",
            "capability::Need<capability::Clock>",
            "capability::Need<capability::Store>",
        ]
    );
    assert_eq!(faults(&all.table()), []);
    let stack = ServiceBuilder::new().layer(all).service(model.clone());
    ask(stack).await.unwrap();
    assert_eq!(model.saw(), Some(Store(1)));
    assert_eq!(model.saw(), Some(Clock(2)));
}

#[tokio::test]
async fn what_was_said_to_be_given_is_looked_for_at_the_first_call() {
    let model = Model::default();
    let layers = Layers::new().given::<Store>().with(need::<Store>());
    let error = ask(layers.service(model.clone())).await.unwrap_err();
    assert_eq!(
        fault(&error),
        Fault::Missing {
            layer: "Layers::given",
            capability: "capability::Store",
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
fn tables_of_several_stacks_are_checked_as_one() {
    let run = || Layers::new().with(Put(Store(1))).table();
    let tools = Layers::new().given::<Store>().with(need::<Store>());
    assert_eq!(faults(&run().and(tools.table())), []);
    assert!(matches!(
        faults(&tools.table())[..],
        [Fault::Missing { .. }]
    ));
    let of_host = Table::new().given::<Store>();
    assert_eq!(faults(&of_host.clone().and(tools.table())), []);
    assert!(matches!(
        faults(&of_host.and(run()))[..],
        [Fault::Twice {
            provider: "the host",
            ..
        }]
    ));
}

#[test]
fn a_table_lists_what_each_layer_declares() {
    type All = (
        Requires<Store>,
        Optional<Clock>,
        Replaces<Budget>,
        Provides<Metrics>,
    );

    let table = Table::new().with(&declaring::<All, _>(Identity::new()));
    let [declaration] = table.declarations() else {
        panic!("{table:?}");
    };
    assert!(declaration.requires().eq(["capability::Store"]));
    assert!(declaration.optional().eq(["capability::Clock"]));
    assert!(declaration.replaces().eq(["capability::Budget"]));
    assert!(declaration.provides().eq(["capability::Metrics"]));
}

// ---- the service ----

#[test]
fn readiness_is_passed_on() {
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
            panic!("it was never ready")
        }
    }

    let mut stack = Layers::new().with(Put(Store(1))).service(Never);
    let mut ready = tokio_test::task::spawn(stack.ready());
    assert!(ready.poll().is_pending());
}

#[test]
fn nothing_is_asked_of_the_inner_service() {
    // Neither `Clone`, nor `Send`, nor `'static`.
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
fn what_is_checked_is_as_send_and_clone_as_what_it_wraps() {
    fn check<T: Clone + Send + Sync + Unpin>() {}
    check::<Checked<Model>>();
    check::<CheckedLayer<Identity>>();
    check::<Table>();
}

// ---- many ----

macro_rules! chain {
    ($($name:ident requires $($of:ident)*;)*) => {
        capabilities!($($name)*);

        $(
            impl Declares for Link<$name> {
                type Capabilities = (Provides<$name>, $(Requires<$of>,)*);
            }
        )*

        fn sixteen() -> Layers<impl Layer<Model, Service: Service<
            ChatRequest,
            Response = ChatResponse<Body>,
            Error = Error,
        >>> {
            Layers::new()$(.with(Link($name(1))))*
        }
    };
}

/// Provides a `C`, and requires what its declaration says.
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
async fn sixteen_layers_each_require_what_those_before_provide() {
    let model = Model::default();
    ask(Layer::layer(&sixteen(), model.clone())).await.unwrap();
    assert_eq!(model.saw(), Some(A(1)));
    assert_eq!(model.saw(), Some(P(1)));
}
