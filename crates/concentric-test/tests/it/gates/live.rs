use super::*;

#[tokio::test]
async fn live_interrupts_are_answered_through_the_runs_handle() {
    let request = ChatRequest::user("hi");
    let context = request.context.clone();
    let log = Log::default();
    let seen = log.clone();
    let (model, tools) = once();
    let layer = AgentLayer::new(tools).gate(Asking(seen));
    let run = tokio::spawn(async move { run(layer, &model, request).await });
    let asked = loop {
        let asked = context.live().interrupts(&Tenant::of(&context));
        match asked.into_iter().next() {
            Some(asked) => break asked,
            None => tokio::task::yield_now().await,
        }
    };
    let unknown = Reply::resolve(InterruptId::new("another"), json!(3));
    assert!(matches!(
        context.reply(unknown),
        Err(ReplyError::Unknown(_))
    ));
    context
        .reply(Reply::resolve(asked.id.clone(), json!(3)))
        .unwrap();
    // A second reply is not accepted.
    assert!(context.reply(Reply::resolve(asked.id, json!(4))).is_err());
    assert_eq!(run.await.unwrap().finish.outcome, Outcome::Completed);
    assert_eq!(*log.lock().unwrap(), ["3"]);
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_live_interrupt_times_out_and_is_withdrawn() {
    let context = Context::new();
    let ask = || Interrupt::new(InterruptId::new("q"), "row");
    let minute = Duration::from_secs(60);
    let waits = context.ask(ask(), minute);
    let twice = async {
        tokio::task::yield_now().await;
        context.ask(ask(), minute).await
    };
    // The run is not polled, so its events are not delivered.
    let (late, twice) = tokio::join!(waits, twice);
    assert_eq!(late, Err(AskError::TimedOut));
    assert_eq!(twice, Err(AskError::DuplicateId(InterruptId::new("q"))));
    assert!(context.live().interrupts(&Tenant::of(&context)).is_empty());
    let cancelled = async {
        tokio::task::yield_now().await;
        context.cancel(CancelReason::User);
    };
    let (asked, ()) = tokio::join!(context.ask(ask(), minute), cancelled);
    assert_eq!(asked, Err(AskError::Cancelled));
}

#[tokio::test(start_paused = true)]
async fn a_live_interrupt_without_room_times_out() {
    let context = Context::new();
    let event = || Event::Custom(Box::new(CustomEvent::new("full", json!({}))));
    while context.emit(event()).is_ok() {}
    let ask = Interrupt::new(InterruptId::new("q"), "row");
    let asked = context.ask(ask, Duration::from_secs(60));
    let asked = tokio::time::timeout(Duration::from_secs(61), asked).await;
    assert_eq!(asked.unwrap(), Err(AskError::TimedOut));
}

/// An environment in which the reply to the interrupt `q` arrives as its deadline passes.
struct LastMoment(InterruptHub);

impl Clock for LastMoment {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH
    }

    fn sleep(&self, _: Duration) -> Sleep {
        let live = self.0.clone();
        Box::pin(async move {
            let reply = Reply::resolve(InterruptId::new("q"), json!(3));
            let taken = live.reply(&Tenant::default(), reply, SystemTime::UNIX_EPOCH);
            taken.unwrap();
        })
    }
}

impl Ids for LastMoment {
    fn next(&self, prefix: &str) -> Str {
        prefix.into()
    }
}

impl Random for LastMoment {
    fn next_u64(&self) -> u64 {
        0
    }
}

#[tokio::test]
async fn an_accepted_reply_is_delivered_after_the_deadline() {
    let live = InterruptHub::new();
    let world = || LastMoment(live.clone());
    let environment = Environment::new(world(), world(), world());
    let context = Context::builder().environment(environment).build();
    let ask = Interrupt::new(InterruptId::new("q"), "row");
    let asked = live.ask(ask, Duration::from_secs(60), &context).await;
    assert_eq!(asked.unwrap().read::<u8>().unwrap(), 3);
}

#[tokio::test]
async fn live_interrupts_of_a_sub_run_use_the_outer_handle() {
    let outer = Context::new();
    let inner = outer.child().build();
    let ask = Interrupt::new(InterruptId::new("q"), "row");
    let reply = async {
        tokio::task::yield_now().await;
        outer.reply(Reply::resolve(InterruptId::new("q"), json!(3)))
    };
    let (asked, replied) = tokio::join!(inner.ask(ask, Duration::from_secs(60)), reply);
    replied.unwrap();
    assert_eq!(asked.unwrap().read::<u8>().unwrap(), 3);
}
