use super::*;

#[tokio::test]
async fn a_client_without_new_messages_sees_the_interrupt_again() {
    for slow in [false, true] {
        let (world, store) = world();
        store.slow.store(slow, Ordering::Relaxed);
        let mut first = Vec::new();
        for (run, messages) in [("first", &["m1"][..]), ("second", &["m1", "m2"])] {
            let mut request = again(&world, run, messages);
            let extensions = request.context.extensions_mut();
            extensions.remove::<OpenInterrupts>();
            let process = Process::paying(&store);
            let (_, finish) = assert_finishes(process.body(request).await).await;
            first.push(finish);
        }
        let (other, writes) = (Process::other(&store), store.writes());
        // The newest of several.
        for messages in [&["m1", "m2"][..], &["m0", "m1"], &[]] {
            let body = other.body(again(&world, "again", messages)).await;
            let (events, finish) = assert_finishes(body).await;
            assert_eq!(finish.outcome, Outcome::Interrupted);
            assert_eq!(finish.state, first[1].state);
            // Nothing was done, or used.
            assert_eq!(events.len(), 1, "{events:?}");
            assert_eq!(finish.usage, first[1].usage);
            assert_eq!(finish.attempt_usage(), Usage::default());
        }
        assert_eq!((other.model.requests().len(), store.writes()), (0, writes));
        // The other one, once that is answered.
        let asked = approve(&[first[1].interrupts()[0].id.clone()]);
        assert_finishes(other.body(reply(&world, "reply", asked)).await).await;
        let body = other.body(again(&world, "again", &["m1"])).await;
        let (_, finish) = assert_finishes(body).await;
        assert_eq!(finish.state, first[0].state);
        // A newer message withdraws it.
        let body = other.body(again(&world, "next", &["m1", "m3"])).await;
        let (_, finish) = assert_finishes(body).await;
        assert_eq!(finish.outcome, Outcome::Completed);
        assert_eq!(status(&store, "first").await, RunStatus::Ended);
        let error = other.fails(again(&world, "again", &[])).await;
        is(&error, ErrorKind::NotFound, "run_not_found");
    }
}

#[tokio::test]
async fn of_many_waiting_runs_one_state_is_loaded() {
    let (world, in_memory) = world();
    let (_dir, file) = Flaky::in_file(&world);
    for store in [in_memory, file] {
        for _ in 0..30 {
            Process::paying(&store).interrupted(&world, "run").await;
        }
        let other = Process::other(&store);
        let mut ended = again(&world, "again", &["other"]);
        ended
            .transcript
            .push(Turn::message(Message::assistant("Done.")).unwrap());
        for (request, loads) in [
            (again(&world, "again", &[]), 1),
            (ended, 1),
            (again(&world, "next", &["other"]), 1),
            (again(&world, "again", &[]), 0),
        ] {
            store.loads.store(0, Ordering::Relaxed);
            if let Ok(response) = other.agent.clone().oneshot(request).await {
                assert_finishes(response.body).await;
            }
            assert_eq!(store.loads.load(Ordering::Relaxed), loads);
        }
    }
}

#[tokio::test]
async fn two_concurrent_lookups_both_see_the_interrupt() {
    for (slow, elsewhere) in [(false, false), (true, false), (false, true)] {
        let (world, store) = world();
        Process::paying(&store).interrupted(&world, "run").await;
        store.slow.store(slow, Ordering::Relaxed);
        store.elsewhere.store(elsewhere, Ordering::Relaxed);
        let processes = [Process::other(&store), Process::other(&store)];
        let looks = ["one", "another"].into_iter().zip(&processes);
        let looks = looks.map(|(run, process)| process.body(again(&world, run, &[])));
        let bodies = join_all(looks).await;
        for (_, finish) in join_all(bodies.into_iter().map(assert_finishes)).await {
            assert_eq!(finish.outcome, Outcome::Interrupted);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reply_wins_over_a_lookup() {
    let (world, in_memory) = world();
    let (_dir, file) = Flaky::in_file(&world);
    for store in [in_memory, file] {
        for race in 0..50 {
            let questions = Process::paying(&store).interrupted(&world, "run").await;
            let (looking, replying) = (Process::other(&store), Process::other(&store));
            let requests = [
                again(&world, "again", &[]),
                reply(&world, "reply", approve(&questions)),
            ];
            let [look, reply] = requests;
            let run = |process: &Process, request: ChatRequest| {
                let agent = process.agent.clone();
                tokio::spawn(async move {
                    let response = agent.oneshot(request).await?;
                    let answer = response.collect().await;
                    answer.map(drop).map_err(|incomplete| incomplete.error)
                })
            };
            let (looked, replied) = (run(&looking, look), run(&replying, reply));
            replied.await.unwrap().unwrap();
            if let Err(error) = looked.await.unwrap() {
                let codes = ["already_resumed", "run_ended", "run_not_found"];
                assert!(codes.contains(&error.code().unwrap()), "{race}: {error}");
            }
            assert_eq!((replying.tools.done(), looking.tools.done()), (1, 0));
            assert_eq!(status(&store, "run").await, RunStatus::Ended);
        }
    }
}

#[tokio::test]
async fn a_dropped_lookup_does_not_block_a_reply() {
    for elsewhere in [false, true] {
        let (world, store) = world();
        let asked = RefCell::new(Process::paying(&store).interrupted(&world, "run").await);
        store.slow.store(!elsewhere, Ordering::Relaxed);
        store.elsewhere.store(elsewhere, Ordering::Relaxed);
        let look = || {
            let (agent, request) = (Process::other(&store).agent, again(&world, "again", &[]));
            async move {
                let response = agent.oneshot(request).await.unwrap();
                drop(response.collect().await);
            }
        };
        let drops = drop_at_each_wait(look, async |polls| {
            let replies = approve(&asked.take());
            let other = Process::other(&store);
            let body = other.body(reply(&world, "reply", replies)).await;
            let (_, finish) = assert_finishes(body).await;
            assert_eq!(finish.outcome, Outcome::Completed, "{polls}");
            assert_eq!(other.tools.done(), 1);
            asked.replace(Process::paying(&store).interrupted(&world, "run").await);
        });
        assert!(drops.await > 2);
    }
}

#[tokio::test]
async fn a_message_during_a_run_does_not_restart_it() {
    let (world, store) = world();
    Process::paying(&store).interrupted(&world, "waits").await;
    let (_process, body, _gate, _) = at_the_gate(&world, &store).await;
    let other = Process::other(&store);
    let error = other.fails(again(&world, "again", &["m"])).await;
    is(&error, ErrorKind::Conflict, "already_resumed");
    assert_eq!(status(&store, "waits").await, RunStatus::Suspended);
    drop(body);
}

#[tokio::test]
async fn a_driven_run_is_not_shown_again() {
    let (world, store) = world();
    let (_process, body, _gate, _) = at_the_gate(&world, &store).await;
    let other = Process::other(&store);
    let error = other.fails(again(&world, "again", &[])).await;
    is(&error, ErrorKind::Conflict, "already_resumed");
    drop(body);
}

/// Part of a service. Once `armed`, its drop takes until the store has got `writes` writes.
#[derive(Clone)]
struct SlowDrop {
    store: Flaky,
    writes: usize,
    armed: Arc<AtomicBool>,
}

impl Drop for SlowDrop {
    fn drop(&mut self) {
        for _ in 0..10_000 {
            if !self.armed.load(Ordering::Relaxed) || self.store.writes() >= self.writes {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_completes_while_its_request_is_dropped_is_released() {
    let mut attempts = 0;
    while !dropped_while_it_claims().await {
        attempts += 1;
        assert!(attempts < 1_000);
    }
}

/// Returns whether the request was dropped before its claim was made: the tick that this takes may have passed.
async fn dropped_while_it_claims() -> bool {
    let (world, store) = world();
    let questions = Process::paying(&store).interrupted(&world, "run").await;
    store.slow.store(true, Ordering::Relaxed);
    let writes = store.writes();
    let armed = Arc::new(AtomicBool::new(false));
    let slow = SlowDrop {
        store: store.clone(),
        // Those of the claim and of its release, by a task on the other thread.
        writes: writes + 2,
        armed: Arc::clone(&armed),
    };
    let model = service_fn(move |_: ChatRequest| {
        let _ = &slow;
        async { Err::<ChatResponse<EventStream>, _>(Error::new(ErrorKind::Server, "called")) }
    });
    let agent = SuspendLayer::new(Arc::new(store.clone())).layer(model);
    let mut call = task::spawn(agent.oneshot(reply(&world, "reply", approve(&questions))));
    while store.writes() == writes {
        if call.poll().is_ready() {
            return false;
        }
        tokio::task::yield_now().await;
    }
    if store.writes() > writes + 1 {
        return false;
    }
    armed.store(true, Ordering::Relaxed);
    drop(call);
    armed.store(false, Ordering::Relaxed);
    while status(&store, "run").await == RunStatus::Running {
        tokio::task::yield_now().await;
    }
    assert_eq!(store.writes(), writes + 2);
    assert_eq!(status(&store, "run").await, RunStatus::Suspended);
    true
}
