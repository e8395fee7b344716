use super::*;

#[tokio::test]
async fn a_suspended_run_is_stored_before_its_interrupt_is_emitted() {
    let (world, store) = world();
    let process = Process::paying(&store);
    let mut body = process.body(request(&world, "run")).await;
    while let Some(event) = body.next().await {
        if let Event::Finish(finish) = event.unwrap() {
            let record = store.get(key(&store, "run")).await.unwrap();
            assert_eq!(record.status, RunStatus::Suspended);
            assert_eq!(Some(&record.state), finish.state.as_deref());
        }
    }
}

#[tokio::test]
async fn an_interrupt_that_cannot_be_stored_is_not_emitted() {
    let (world, store) = world();
    store.fail("suspend");
    let process = Process::paying(&store);
    let (events, error) = assert_fails(process.body(request(&world, "run")).await).await;
    is(&error, ErrorKind::Server, "store_failed");
    assert!(!events.iter().any(Event::is_finish));
}

#[tokio::test]
async fn a_run_waiting_for_client_tools_is_stored() {
    let (world, store) = world();
    let process = Process::new(&store, ScriptedTools::new(), payer());
    let client_tools = ScriptedTools::new().answers("pay", "");
    let mut asked = request(&world, "run");
    asked.tools = concentric_core::ToolSource::specs(&client_tools);
    let (_, finish) = assert_finishes(process.body(asked).await).await;
    let question = finish.interrupts()[0].clone();
    assert_eq!(question.reason, interrupt::CLIENT_TOOL);
    assert_eq!(status(&store, "run").await, RunStatus::Suspended);

    let answer = vec![Reply::answer(question.id, "paid")];
    let body = Process::other(&store)
        .body(reply(&world, "next", answer))
        .await;
    let (events, finish) = assert_finishes(body).await;
    assert_eq!(shape(&events).split(' ').next(), Some("resumed"));
    assert_eq!(finish.transcript.unwrap().len(), 3);
}

/// A run up to where it waits for its client, whose tools are `names`.
async fn waits_for_its_client(
    world: &TestEnvironment,
    process: &Process,
    names: &[&'static str],
) -> OpenRound {
    let client = names
        .iter()
        .fold(ScriptedTools::new(), |tools, name| tools.answers(*name, ""));
    let mut asked = request(world, "run");
    asked.tools = concentric_core::ToolSource::specs(&client);
    let (_, finish) = assert_finishes(process.body(asked).await).await;
    finish.state.unwrap().open_round().unwrap()
}

/// What a client says that has the results of its tools, and nothing to reply to.
fn history(world: &TestEnvironment, open: OpenRound, outcome: &ToolOutcome) -> ChatRequest {
    let mut transcript = Transcript::new();
    transcript.push(Turn::user("Pay them."));
    transcript.push(open.close(|_| outcome.clone()));
    ChatRequest::new(transcript).with_context(context(world, "next"))
}

#[tokio::test]
async fn client_tool_results_are_read_from_the_history() {
    for (outcome, text) in [
        (ToolOutcome::done("paid"), "paid"),
        (ToolOutcome::failed("no money"), "no money"),
        (ToolOutcome::denied("no"), "The call was denied: no"),
    ] {
        let (world, store) = world();
        let process = Process::new(&store, ScriptedTools::new(), payer());
        let open = waits_for_its_client(&world, &process, &["pay"]).await;
        let body = Process::other(&store)
            .body(history(&world, open, &outcome))
            .await;
        let (events, finish) = assert_finishes(body).await;
        assert_eq!(shape(&events).split(' ').next(), Some("resumed"));
        let transcript = finish.transcript.unwrap();
        assert_eq!(transcript.len(), 3);
        let results = transcript.iter().flat_map(Turn::results);
        let results: Vec<_> = results.map(|result| &result.outcome).collect();
        assert_eq!(results.len(), 1);
        assert_eq!(
            (results[0].status, &*results[0].content.text()),
            (outcome.status, text)
        );
        assert_eq!(status(&store, "run").await, RunStatus::Ended);
        assert!(is_unknown(&store, "next"));
    }
}

#[tokio::test]
async fn client_tool_results_are_combined_with_replies() {
    let (world, store) = world();
    let model = ScriptedModel::new()
        .tool_call("pay", json!({"to": "them"}))
        .tool_call("look", json!({}))
        .then()
        .text("Done.");
    let process = Process::new(&store, ScriptedTools::new().asks("pay", "paid"), model);
    let mut open = waits_for_its_client(&world, &process, &["look"]).await;
    let questions: Vec<_> = open.questions().map(|(id, _)| id).collect();
    let look = open.calls().nth(1).unwrap().0.id.clone();
    open.settle(&look, ToolOutcome::done("it is nice")).unwrap();
    let replies = approve(&questions[..1]);
    let request = ChatRequest::resume_history(Transcript::new(), open, replies);
    let other = Process::other(&store);
    let body = other
        .body(request.with_context(context(&world, "next")))
        .await;
    let (_, finish) = assert_finishes(body).await;
    assert_eq!(finish.outcome, Outcome::Completed);
    assert_eq!(other.tools.done(), 1);
}

#[tokio::test]
async fn remaining_interrupts_are_raised_again() {
    let (world, store) = world();
    let model = ScriptedModel::new()
        .tool_call("pay", json!({"to": "them"}))
        .tool_call("look", json!({}))
        .then()
        .text("Done.");
    let process = Process::new(&store, ScriptedTools::new().asks("pay", "paid"), model);
    let open = waits_for_its_client(&world, &process, &["look"]).await;
    let questions: Vec<_> = open.questions().map(|(id, _)| id).collect();
    // The second time there is nothing new in it.
    for _ in 0..2 {
        let other = Process::other(&store);
        let said = history(&world, open.clone(), &ToolOutcome::done("it is nice"));
        let (_, finish) = assert_finishes(other.body(said).await).await;
        let asked = finish.interrupts();
        assert_eq!(asked.len(), 1);
        assert_eq!(asked[0].id, questions[0]);
    }
}

#[tokio::test]
async fn a_history_without_a_waiting_run_starts_a_run() {
    let (world, store) = world();
    let process = Process::new(&store, ScriptedTools::new(), payer());
    let open = waits_for_its_client(&world, &process, &["pay"]).await;
    let said = || history(&world, open.clone(), &ToolOutcome::done("paid"));

    let unknown = Process::other(&Flaky::default());
    let (events, _) = assert_finishes(unknown.body(said()).await).await;
    assert_ne!(shape(&events).split(' ').next(), Some("resumed"));

    assert_finishes(Process::other(&store).body(said()).await).await;
    assert_eq!(status(&store, "run").await, RunStatus::Ended);
    let again = Process::other(&store);
    let (events, finish) = assert_finishes(again.body(said()).await).await;
    assert_ne!(shape(&events).split(' ').next(), Some("resumed"));
    assert_eq!(finish.outcome, Outcome::Completed);
}

#[tokio::test]
async fn only_client_tool_results_cause_a_store_lookup() {
    let (world, store) = world();
    let process = Process::new(&store, ScriptedTools::new(), payer());
    let open = waits_for_its_client(&world, &process, &["pay"]).await;
    store.fail("asking");
    let mut said = history(&world, open, &ToolOutcome::done("paid"));
    let error = Process::other(&store).fails(said.clone()).await;
    is(&error, ErrorKind::Server, "store_failed");
    said.transcript.push(Turn::user("And now?"));
    assert_finishes(Process::other(&store).body(said).await).await;
}

#[tokio::test]
async fn repeated_client_tool_results_are_accepted_once() {
    let (world, store) = world();
    let process = Process::new(&store, ScriptedTools::new(), payer());
    let open = waits_for_its_client(&world, &process, &["pay"]).await;
    let said = || history(&world, open.clone(), &ToolOutcome::done("paid"));
    let first = Process::other(&store);
    let _body = first.body(said()).await;
    let error = Process::other(&store).fails(said()).await;
    is(&error, ErrorKind::Conflict, "already_resumed");
}

#[tokio::test]
async fn another_process_resumes_with_the_reply() {
    let (world, store) = world();
    let questions = Process::paying(&store).interrupted(&world, "run").await;
    let other = Process::other(&store);
    let body = other.body(reply(&world, "next", approve(&questions))).await;
    let (_, finish) = assert_finishes(body).await;
    assert_eq!(finish.outcome, Outcome::Completed);
    assert_eq!(other.tools.done(), 1);
    // The user's message, the round, the answer: as if nothing had happened between.
    assert_eq!(finish.transcript.unwrap().len(), 3);
    assert_eq!(status(&store, "run").await, RunStatus::Ended);
    assert!(is_unknown(&store, "next"));
}

#[tokio::test]
async fn the_stored_state_overrides_the_clients_history() {
    let (world, store) = world();
    let questions = Process::paying(&store).interrupted(&world, "run").await;
    let record = store.get(key(&store, "run")).await.unwrap();
    // A history with other arguments.
    let open = record.state.open_round().unwrap();
    let forged = serde_json::to_string(&open).unwrap().replace("them", "me");
    let open: OpenRound = serde_json::from_str(&forged).unwrap();
    let request = ChatRequest::resume_history(Transcript::new(), open, approve(&questions));
    let other = Process::other(&store);
    let body = other
        .body(request.with_context(context(&world, "next")))
        .await;
    assert_finishes(body).await;
    let calls = other.tools.calls();
    assert_eq!(calls[0].arguments.as_str(), r#"{"to":"them"}"#);
}

#[tokio::test]
async fn an_unknown_run_is_passed_to_the_agent() {
    let (world, store) = world();
    let questions = Process::paying(&store).interrupted(&world, "run").await;
    let record = store.get(key(&store, "run")).await.unwrap();
    let open = record.state.open_round().unwrap();
    let request = ChatRequest::resume_history(Transcript::new(), open, approve(&questions));
    let elsewhere = Process::other(&Flaky::default());
    let body = elsewhere
        .body(request.with_context(context(&world, "next")))
        .await;
    let (_, finish) = assert_finishes(body).await;
    // Nobody there has asked.
    assert_eq!(elsewhere.tools.calls(), []);
    assert_eq!(finish.outcome, Outcome::Completed);
}

#[tokio::test]
async fn a_reply_to_an_unknown_interrupt_is_not_found() {
    let (world, store) = world();
    let other = Process::other(&store);
    let error = other
        .fails(reply(&world, "next", approve(&[InterruptId::new("q")])))
        .await;
    is(&error, ErrorKind::NotFound, "run_not_found");
    let error = other.fails(reply(&world, "next", vec![])).await;
    is(&error, ErrorKind::NotFound, "run_not_found");
}

#[tokio::test]
async fn another_tenants_reply_is_not_found() {
    let (world, store) = world();
    let questions = Process::paying(&store).interrupted(&world, "run").await;
    let mut request = reply(&world, "next", approve(&questions));
    request
        .context
        .extensions_mut()
        .insert(Tenant("other".into()));
    let error = Process::other(&store).fails(request).await;
    is(&error, ErrorKind::NotFound, "run_not_found");
    assert_eq!(status(&store, "run").await, RunStatus::Suspended);
}

#[tokio::test]
async fn an_invalid_reply_runs_nothing_and_keeps_waiting() {
    let (world, store) = world();
    let questions = Process::paying(&store).interrupted(&world, "run").await;
    let other = Process::other(&store);
    let writes = store.writes();
    let question = questions[0].clone();
    let wrong = [
        (
            vec![Reply::resolve(question.clone(), json!({}))],
            "malformed_reply",
        ),
        (
            vec![
                Reply::approve(question.clone()),
                Reply::cancel(question.clone()),
            ],
            "duplicate_reply",
        ),
        (
            vec![
                Reply::approve(question),
                Reply::approve(InterruptId::new("q")),
            ],
            "unknown_interrupt",
        ),
    ];
    for (replies, code) in wrong {
        let request = reply(&world, "next", replies);
        let again = request.clone();
        is(&other.fails(request).await, ErrorKind::InvalidRequest, code);
        // Another attempt is told the same.
        is(&other.fails(again).await, ErrorKind::InvalidRequest, code);
    }
    assert_eq!(store.writes(), writes);
    assert!(other.tools.calls().is_empty());
    let body = other.body(reply(&world, "next", approve(&questions))).await;
    assert_finishes(body).await;
}

#[tokio::test]
async fn a_store_failure_leaves_the_reply_for_a_retry() {
    let (world, store) = world();
    let questions = Process::paying(&store).interrupted(&world, "run").await;
    let other = Process::other(&store);
    let request = reply(&world, "next", approve(&questions));
    for what in ["asking", "claim"] {
        store.fail(what);
        let error = other.fails(request.clone()).await;
        is(&error, ErrorKind::Server, "store_failed");
        assert!(error.is_retryable());
        store.heal();
    }
    assert_finishes(other.body(request).await).await;
    assert_eq!(other.tools.done(), 1);
}

#[tokio::test]
async fn a_dropped_attempt_leaves_the_reply_for_another() {
    let (world, store) = world();
    let questions = Process::paying(&store).interrupted(&world, "run").await;
    let other = Process::other(&store);
    let request = reply(&world, "next", approve(&questions));
    store.hangs.store(true, Ordering::Relaxed);
    let mut attempt = task::spawn(other.agent.clone().oneshot(request.clone()));
    assert!(attempt.poll().is_pending());
    drop(attempt);
    store.hangs.store(false, Ordering::Relaxed);
    assert_finishes(other.body(request).await).await;
}

#[tokio::test]
async fn an_unused_claim_is_released() {
    for is_left in [false, true] {
        let (world, store) = world();
        let questions = Process::paying(&store).interrupted(&world, "run").await;
        let other = Process::other(&store);
        if is_left {
            let dying = Process::other(&store);
            let body = dying.body(reply(&world, "next", approve(&questions))).await;
            dying.die(task::spawn(body));
            world.advance(LEASE);
        }
        let before = store.get(key(&store, "run")).await.unwrap();
        store.elsewhere.store(true, Ordering::Relaxed);
        let request = reply(&world, "another", approve(&questions));
        let mut attempt = task::spawn(other.agent.clone().oneshot(request.clone()));
        // It looks for the run, and claims it; it is dropped before it knows.
        assert!(attempt.poll().is_pending());
        settle().await;
        let writes = store.writes();
        assert!(attempt.poll().is_pending());
        assert_eq!(store.writes(), writes + 1, "a claim");
        drop(attempt);
        settle().await;
        let after = store.get(key(&store, "run")).await.unwrap();
        assert!(after.version > before.version, "it was claimed");
        let given_back = match is_left {
            false => RunStatus::Suspended,
            true => RunStatus::Abandoned,
        };
        assert_eq!(after.status, given_back);
        assert_eq!((other.model.calls(), other.tools.done()), (0, 0));
        assert_finishes(other.body(request).await).await;
        assert_eq!(other.tools.done(), 1);
    }
}

#[tokio::test]
async fn unanswered_interrupts_stay_open() {
    let (world, store) = world();
    let model = ScriptedModel::new()
        .tool_call("pay", json!({"n": 1}))
        .tool_call("pay", json!({"n": 2}));
    let tools = ScriptedTools::new().asks("pay", "paid");
    let questions = Process::new(&store, tools, model)
        .interrupted(&world, "run")
        .await;
    assert_eq!(questions.len(), 2);

    let other = Process::other(&store);
    let body = other
        .body(reply(&world, "next", approve(&questions[..1])))
        .await;
    let (_, finish) = assert_finishes(body).await;
    assert_eq!(finish.outcome, Outcome::Interrupted);
    assert_eq!(other.tools.done(), 1);
    let record = store.get(key(&store, "run")).await.unwrap();
    assert_eq!(record.status, RunStatus::Suspended);
    assert_eq!(record.asked.len(), 2);

    // The first is answered: who says so again comes too late, and the other one is still open.
    let error = other
        .fails(reply(&world, "late", approve(&questions[..1])))
        .await;
    is(&error, ErrorKind::Conflict, "already_resumed");
    let body = other
        .body(reply(&world, "last", approve(&questions[1..])))
        .await;
    let (_, finish) = assert_finishes(body).await;
    assert_eq!(finish.outcome, Outcome::Completed);
    assert_eq!(other.tools.done(), 2);
}

#[tokio::test]
async fn without_a_reply_the_interrupt_is_raised_again() {
    let (world, store) = world();
    let questions = Process::paying(&store).interrupted(&world, "run").await;
    let other = Process::other(&store);
    let (_, finish) = assert_finishes(other.body(reply(&world, "next", vec![])).await).await;
    assert_eq!(finish.interrupts()[0].id, questions[0]);
    // As with a history that makes the same calls.
    let open = finish.state.unwrap().open_round().unwrap();
    let request = ChatRequest::resume_history(Transcript::new(), open, vec![]);
    let body = other
        .body(request.with_context(context(&world, "next")))
        .await;
    let (_, finish) = assert_finishes(body).await;
    assert_eq!(finish.interrupts()[0].id, questions[0]);
    // Of two that wait, none is meant.
    Process::paying(&store).interrupted(&world, "second").await;
    let error = other.fails(reply(&world, "next", vec![])).await;
    is(&error, ErrorKind::InvalidRequest, "ambiguous_resume");
}
