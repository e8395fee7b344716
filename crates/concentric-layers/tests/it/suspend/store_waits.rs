use super::*;

/// How many tasks of the runtime are alive.
fn tasks() -> usize {
    tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks()
}

#[tokio::test]
async fn a_store_lookup_ends_on_cancel_or_deadline() {
    for stalls in ["is_live", "asking", "of_thread", "get", "claim"] {
        for late in [false, true] {
            let (world, store) = world();
            let questions = Process::paying(&store).interrupted(&world, "run").await;
            store.stalls.lock().unwrap().push(stalls);
            let limited = world.context_builder().thread_id(ThreadId::new("thread"));
            let limited = limited.deadline(context(&world, "x").now() + LEASE / 2);
            let mut request = match stalls {
                "is_live" => ChatRequest::user("hi"),
                _ => ChatRequest::new(Transcript::new()),
            };
            request = request.with_context(limited.build());
            let replies = match stalls {
                "of_thread" | "get" => Vec::new(),
                _ => approve(&questions),
            };
            if stalls != "is_live" {
                request.resume = Some(Resume::new(ResumePoint::InStore, replies));
            }
            let cancel = request.context.clone();
            let process = Process::other(&store);
            let mut call = task::spawn(process.agent.clone().oneshot(request.clone()));
            for _ in 0..32 {
                assert!(call.poll().is_pending(), "{stalls}");
                tokio::task::yield_now().await;
            }
            match late {
                true => world.advance(LEASE / 2),
                false => cancel.cancel(CancelReason::User),
            }
            assert!(call.is_woken(), "{stalls}, late: {late}");
            let kind = match late {
                true => ErrorKind::Timeout,
                false => ErrorKind::Cancelled,
            };
            let error = call.await.unwrap_err();
            assert_eq!(error.kind(), kind, "{stalls}: {error}");
            assert_eq!((process.model.calls(), process.tools.done()), (0, 0));
            // Its replies came to nothing, and the run waits for them.
            assert!(request.resume.is_none_or(|it| it.take().is_some()));
            store.heal();
            assert_eq!(status(&store, "run").await, RunStatus::Suspended);
        }
    }
}

#[tokio::test]
async fn an_end_recorded_too_late_is_an_error() {
    for (tools, stalls) in [
        (ScriptedTools::new().answers("pay", "paid"), "end"),
        (ScriptedTools::new().asks("pay", "paid"), "suspend"),
    ] {
        let (world, store) = world();
        store.stalls.lock().unwrap().push(stalls);
        let process = Process::new(&store, tools, payer());
        let mut body = task::spawn(process.body(request(&world, "run")).await);
        let shown = drain(&mut body).await;
        assert!(shown.iter().all(|item| !item.as_ref().unwrap().is_finish()));
        world.advance(Duration::from_secs(29));
        assert!(drain(&mut body).await.is_empty(), "{stalls}");
        world.advance(Duration::from_secs(1));
        let items = drain(&mut body).await;
        let error = items.last().unwrap().as_ref().unwrap_err();
        is(error, ErrorKind::Server, "store_failed");
        // Another process resumes it.
        store.heal();
        world.advance(LEASE);
        assert_eq!(status(&store, "run").await, RunStatus::Abandoned);
        let left = abandoned(&store, &world, 9).await.unwrap();
        assert_eq!(left.len(), 1, "{stalls}");
    }
}

#[tokio::test]
async fn recording_a_dropped_runs_end_times_out() {
    let (world, store) = world();
    let (_process, body, _gate, _) = at_the_gate(&world, &store).await;
    store.stalls.lock().unwrap().push("end");
    drop(body);
    settle().await;
    assert_eq!(tasks(), 1);
    world.advance(Duration::from_secs(30));
    settle().await;
    assert_eq!(tasks(), 0);
}

/// A run that asks, and the reply, which another process resumes it with. All of it takes ticks, and
/// is woken for nothing now and then.
async fn asks_and_resumes(
    world: TestEnvironment,
    store: Flaky,
    tools: ScriptedTools,
    buffer: usize,
) -> Result<(), Error> {
    let agent = |model: ScriptedModel| {
        let layer = SuspendLayer::new(Arc::new(store.clone())).lease(LEASE);
        ServiceBuilder::new()
            .layer(layer.buffer(buffer))
            .layer(AgentLayer::new(tools.clone()))
            .service(model.paced(Pace::NextTick))
    };
    let first = ScriptedModel::new()
        .tool_call("look", json!({}))
        .then()
        .pause()
        .tool_call("pay", json!({}));
    let answer = Spurious::new(agent(first).oneshot(request(&world, "run"))).await?;
    let answer = answer.map_body(Spurious::new).collect().await?;
    let asked = answer.finish.interrupts();
    let questions: Vec<_> = asked.iter().map(|asked| asked.id.clone()).collect();
    let reply = reply(&world, "next", approve(&questions));
    let second = ScriptedModel::new().text("Do").pause().text("ne.");
    let answer = Spurious::new(agent(second).oneshot(reply)).await?;
    let answer = answer.map_body(Spurious::new).collect().await?;
    assert_eq!(answer.text(), "Done.");
    Ok(())
}

fn slow_tools() -> ScriptedTools {
    let look = |_| async {
        tokio::task::yield_now().await;
        ToolOutcome::done("seen")
    };
    let tools = ScriptedTools::new().tool("look", look).asks("pay", "paid");
    tools.paced(Pace::NextTick)
}

#[test]
fn a_stored_run_tolerates_spurious_polls() {
    for buffer in [1, 64] {
        watched(async move {
            let (world, store) = world();
            store.slow.store(true, Ordering::Relaxed);
            let tools = slow_tools();
            let run = asks_and_resumes(world, store.clone(), tools.clone(), buffer);
            run.await.unwrap();
            assert_eq!(status(&store, "run").await, RunStatus::Ended);
            assert_eq!((tools.done(), tasks()), (2, 0));
        });
    }
}

#[tokio::test]
async fn a_stored_run_dropped_while_waiting_is_not_driven() {
    for buffer in [1, 64] {
        let scene = RefCell::new(None);
        let run = || {
            let (store, tools) = (Flaky::default(), slow_tools());
            store.slow.store(true, Ordering::Relaxed);
            *scene.borrow_mut() = Some((store.clone(), tools.clone()));
            asks_and_resumes(TestEnvironment::new(), store, tools, buffer)
        };
        let drops = drop_at_each_wait(run, async |polls| {
            let (store, tools) = scene.take().unwrap();
            settle().await;
            assert_eq!((tools.live(), tasks()), (0, 0), "{polls}");
            if !is_unknown(&store, "run") {
                assert_ne!(status(&store, "run").await, RunStatus::Running, "{polls}");
            }
        });
        let drops = drops.await;
        assert!(drops > 5, "{drops}");
    }
}

#[tokio::test]
async fn more_replies_than_a_request_may_have_are_refused() {
    let (world, store) = world();
    Process::paying(&store).interrupted(&world, "run").await;
    let other = Process::other(&store);
    let replies = |n: u32| {
        (0..n)
            .map(|n| Reply::approve(InterruptId::new(format!("{n}"))))
            .collect()
    };
    let error = other.fails(reply(&world, "next", replies(257))).await;
    is(&error, ErrorKind::InvalidRequest, "too_many_replies");
    let error = other.fails(reply(&world, "next", replies(256))).await;
    is(&error, ErrorKind::NotFound, "run_not_found");
}

#[tokio::test]
async fn a_run_over_the_waiting_limit_ends() {
    let world = TestEnvironment::new();
    let options = options(&world).max_waiting_per_thread(1);
    let store = Flaky::with(MemoryStore::with_options(options));
    Process::paying(&store).interrupted(&world, "first").await;
    let second = Process::paying(&store);
    let (events, error) = assert_fails(second.body(request(&world, "run")).await).await;
    is(&error, ErrorKind::Conflict, "too_many_waiting");
    assert!(!events.iter().any(Event::is_finish));
    is_over(&world, &store).await;
    assert_eq!(status(&store, "first").await, RunStatus::Suspended);
}
