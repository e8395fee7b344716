use super::*;

#[tokio::test(start_paused = true)]
async fn the_layer_keeps_the_layer_contract() {
    check_layer(SuspendLayer::new(Arc::new(MemoryStore::new()))).await;
    let store: Arc<dyn RunStore> = Arc::new(MemoryStore::new());
    check_layer(SuspendLayer::new(store)).await;
}

#[tokio::test]
async fn the_layer_is_rejected_inside_another_loop() {
    let (world, store) = world();
    let tools = ScriptedTools::new().answers("pay", "paid");
    let inner = Process::new(&store, tools, payer());
    let outer = AgentLayer::new(concentric_core::NoTools);
    let agent = ServiceBuilder::new()
        .layer(outer)
        .service(inner.agent.clone());
    let error = match agent.oneshot(request(&world, "run")).await {
        Ok(response) => assert_fails(response.body).await.1,
        Err(error) => error,
    };
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error:?}");
    let said = error.to_string();
    assert!(
        said.contains("SuspendLayer") && said.contains("AgentLayer"),
        "{said}"
    );
    assert_eq!((inner.tools.done(), inner.store.writes()), (0, 0));
}

#[tokio::test]
async fn the_layer_is_rejected_around_itself() {
    let (world, store) = world();
    let tools = ScriptedTools::new().asks("pay", "paid");
    let model = payer();
    let layer = || SuspendLayer::new(Arc::new(store.clone()));
    let agent = ServiceBuilder::new()
        .layer(layer())
        .layer(layer())
        .layer(AgentLayer::new(tools))
        .service(model.clone());
    let error = agent.oneshot(request(&world, "run")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error:?}");
    let said = error.to_string();
    assert_eq!(said.matches("SuspendLayer").count(), 2, "{said}");
    assert!(model.requests().is_empty());
}

#[tokio::test]
async fn a_model_beside_an_agent_is_called_and_not_stored() {
    for pace in Pace::ALL {
        let (world, store) = world();
        let tools = ScriptedTools::new().paced(pace).asks("pay", "paid");
        let agent = AgentLayer::new(tools.clone()).layer(payer().paced(pace));
        let agent = BoxModel::new(agent);
        let model = ScriptedModel::new().paced(pace).text("Hello.");
        let small_talk = BoxModel::new(model);
        let router = service_fn(move |request: ChatRequest| {
            let to = match request.context.run_id().as_str() {
                "talk" => &small_talk,
                _ => &agent,
            };
            to.clone().oneshot(request)
        });
        let stored = SuspendLayer::new(Arc::new(store.clone())).layer(router);

        let answer = stored.clone().oneshot(request(&world, "talk")).await;
        assert_eq!(answer.unwrap().text().await.unwrap(), "Hello.");
        assert_eq!(store.writes(), 0);

        let asked = stored.clone().oneshot(request(&world, "run")).await;
        let (_, finish) = assert_finishes(asked.unwrap().body).await;
        let questions = finish.interrupts();
        let replies = questions.iter().map(|it| Reply::approve(it.id.clone()));
        let replied = stored.oneshot(reply(&world, "next", replies.collect()));
        let (_, finish) = assert_finishes(replied.await.unwrap().body).await;
        assert_eq!(finish.outcome, Outcome::Completed);
        assert_eq!(tools.done(), 1);
    }
}

#[cfg(feature = "detach")]
#[tokio::test]
async fn the_layer_is_rejected_around_detach() {
    use concentric_layers::DetachLayer;

    let (world, store) = world();
    let model = payer();
    let agent = ServiceBuilder::new()
        .layer(SuspendLayer::new(Arc::new(store)))
        .layer(DetachLayer::new())
        .layer(AgentLayer::new(ScriptedTools::new().asks("pay", "paid")))
        .service(model.clone());
    let error = agent.oneshot(request(&world, "run")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error:?}");
    let said = error.to_string();
    assert!(
        said.contains("SuspendLayer") && said.contains("DetachLayer"),
        "{said}"
    );
    assert!(model.requests().is_empty());
}
