use super::*;

#[tokio::test]
async fn an_unwritable_run_is_not_begun() {
    let (world, store) = world();
    store.refuse("begin");
    let process = Process::new(&store, ScriptedTools::new().answers("pay", "paid"), payer());
    let (_, error) = assert_fails(process.body(request(&world, "run")).await).await;
    is(&error, ErrorKind::TooLarge, "unwritable");
    assert!(!error.is_retryable());
    assert!(process.tools.calls().is_empty());
    assert!(is_unknown(&store, "run"));
}

#[tokio::test]
async fn an_unwritable_interrupt_ends_the_run() {
    let (world, store) = world();
    store.refuse("suspend");
    let process = Process::paying(&store);
    let (events, error) = assert_fails(process.body(request(&world, "run")).await).await;
    is(&error, ErrorKind::TooLarge, "unwritable");
    assert!(!events.iter().any(Event::is_finish));
    is_over(&world, &store).await;
    let failed = Some(Err(ErrorKind::TooLarge));
    assert_eq!(outcome(&store, "run").await, failed);
}

#[tokio::test]
async fn an_unwritable_resumed_run_is_ended() {
    let (world, store) = world();
    died_with_replies(&world, &store).await;
    store.refuse("save");
    let left = abandoned(&store, &world, 1).await.unwrap();
    let other = Process::other(&store);
    let body = other.body(left.into_iter().next().unwrap()).await;
    let (_, error) = assert_fails(body).await;
    is(&error, ErrorKind::TooLarge, "unwritable");
    assert!(other.tools.calls().is_empty());
    is_over(&world, &store).await;
}

#[tokio::test]
async fn a_run_that_exceeds_the_size_limit_is_ended() {
    let world = TestEnvironment::new();
    let options = options(&world).max_state_bytes(10_000);
    let store = Flaky::with(MemoryStore::with_options(options));
    let tools = ScriptedTools::new().answers("pay", "x".repeat(10_000));
    let model = ScriptedModel::new().tool_call("pay", json!({})).repeat();
    let process = Process::new(&store, tools, model);
    let (_, error) = assert_fails(process.body(request(&world, "run")).await).await;
    is(&error, ErrorKind::TooLarge, "unwritable");
    assert_eq!(process.tools.done(), 1);
    is_over(&world, &store).await;
}
