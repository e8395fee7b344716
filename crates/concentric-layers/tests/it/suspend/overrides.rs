use super::*;
use concentric_core::RunOverrides;

fn named() -> RunOverrides {
    RunOverrides::new().named("audit").named("dry run")
}

#[tokio::test]
async fn a_resumed_run_needs_the_named_overrides_or_names_the_missing_ones() {
    let dir = tempfile::tempdir().unwrap();
    let world = TestEnvironment::new();
    let model = payer();
    let tools = ScriptedTools::new().asks("pay", "paid").answers("look", "");
    let store = || Arc::new(SqliteStore::open(dir.path().join("runs")).unwrap());
    let agent = || {
        ServiceBuilder::new()
            .layer(SuspendLayer::new(store()))
            .layer(AgentLayer::new(tools.clone()))
            .service(model.clone())
    };
    let first = request(&world, "run").with_overrides(named());
    let response = agent().oneshot(first).await.unwrap();
    let (_, finish) = assert_finishes(response.body).await;
    let asked: Vec<_> = finish
        .interrupts()
        .iter()
        .map(|ask| ask.id.clone())
        .collect();
    let state = finish.state.as_ref();
    assert!(state.is_none_or(|state| state.overrides() == ["audit", "dry run"]));

    for (lacks, missing) in [
        (RunOverrides::new(), "`audit`, `dry run`"),
        (RunOverrides::new().named("audit"), "`dry run`"),
        (RunOverrides::new().named("other"), "`audit`, `dry run`"),
    ] {
        let request = reply(&world, "next", approve(&asked)).with_overrides(lacks);
        let error = match agent().oneshot(request).await {
            Ok(response) => assert_fails(response.body).await.1,
            Err(error) => error,
        };
        assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
        assert!(error.message().contains(missing), "{error}");
        assert_eq!((tools.done(), model.calls()), (0, 1));
    }
    // The run waits as before, and overrides may be added.
    let more = named().named("more").step_limit(9);
    let request = reply(&world, "next", approve(&asked)).with_overrides(more);
    let response = agent().oneshot(request).await.unwrap();
    let (_, finish) = assert_finishes(response.body).await;
    assert_eq!(finish.outcome, Outcome::Completed);
    assert_eq!(model.calls(), 2);
}
