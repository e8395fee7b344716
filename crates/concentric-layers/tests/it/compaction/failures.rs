//! Summaries and calls that fail.

use super::*;
use concentric_core::{ChatResponse, EventStream};
use concentric_layers::{CommitLayer, RetryModel};
use std::future::Ready;
use tower::{retry::RetryLayer, service_fn};

#[tokio::test]
async fn c118_an_unchanged_history_is_not_sent_again() {
    let summarizer = summarizer();
    let model = ScriptedModel::new().error(overflow()).repeat();
    let huge: Transcript = [user("a".repeat(4 << 20))].into_iter().collect();
    for all in [&huge, &Transcript::from_iter([user("Hi.")])] {
        let calls = model.calls();
        let answer = layer(&summarizer).layer(model.clone());
        let error = answer
            .oneshot(request(all, &Context::new()))
            .await
            .unwrap_err();
        assert_eq!(
            (error.kind(), error.code()),
            (ErrorKind::ContextWindow, Some(NO_PROGRESS))
        );
        assert!(std::error::Error::source(&error).is_some());
        assert_eq!((model.calls() - calls, summarizer.calls()), (1, 0));
    }
}

#[tokio::test]
async fn s070_an_overflow_is_recovered_once() {
    let summarizer = summarizer();
    let all = exchanges(10);
    // The trigger does not hold.
    let layer = CompactionLayer::new(BoxModel::new(summarizer.clone()), 1_000).keep(50);
    let model = ScriptedModel::new().error(overflow()).then().text("Yes.");
    let context = Context::new();
    let answer = layer
        .layer(model.clone())
        .oneshot(request(&all, &context))
        .await
        .unwrap();
    assert_eq!(answer.text().await.unwrap(), "Yes.");
    assert_eq!(model.request(0).transcript, all);
    assert_eq!(
        texts(&model.request(1).transcript),
        ["0?", NOTE, "9?", ".", "Now?"]
    );
    // The next step has the summary, too.
    assert_eq!(
        view_in(&layer, &all, &context).await,
        model.request(1).transcript
    );

    // A second overflow is returned.
    let model = ScriptedModel::new().error(overflow()).repeat();
    let error = layer
        .layer(model.clone())
        .oneshot(request(&all, &Context::new()))
        .await;
    let error = error.unwrap_err();
    assert_eq!(
        (error.message(), error.code(), model.calls()),
        ("too long", None, 2)
    );
    assert_eq!(error.attempts(), 2);
    // Other errors are, too, and this one if there is no recovery.
    let other = Error::new(ErrorKind::Overloaded, "busy");
    for (layer, error) in [(layer.clone(), other), (layer.no_recovery(), overflow())] {
        let model = ScriptedModel::new().error(error.clone());
        let failed = layer
            .layer(model.clone())
            .oneshot(request(&all, &Context::new()))
            .await;
        assert_eq!(
            (failed.unwrap_err().kind(), model.calls()),
            (error.kind(), 1)
        );
    }
}

#[tokio::test]
async fn an_overflow_after_a_possible_effect_is_passed() {
    let summarizer = summarizer();
    let layer = CompactionLayer::new(BoxModel::new(summarizer.clone()), 1_000).keep(50);
    let calls = Arc::new(AtomicUsize::new(0));
    for is_stated in [true, false] {
        calls.store(0, Ordering::Relaxed);
        let counted = Arc::clone(&calls);
        let model = service_fn(move |request: ChatRequest| {
            counted.fetch_add(1, Ordering::Relaxed);
            let error = match is_stated {
                true => overflow().with_effects(SideEffects::Possible),
                // A layer in between has replaced the error of an agent.
                false => {
                    request.context.count_effect();
                    overflow()
                }
            };
            std::future::ready(Err::<ChatResponse<EventStream>, _>(error))
        });
        let context = Context::new();
        let error = layer
            .layer(model)
            .oneshot(request(&exchanges(10), &context))
            .await
            .unwrap_err();
        assert_eq!(
            (error.kind(), error.code()),
            (ErrorKind::ContextWindow, None)
        );
        assert_eq!((calls.load(Ordering::Relaxed), summarizer.calls()), (1, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_hangs_is_given_up_with_the_run() {
    let layer = layer(&summarizer()).before(|_| std::future::pending());
    let model = model();
    let all = exchanges(10);
    let context = Context::new();
    let call = layer.layer(model.clone());
    let mut call = task::spawn(call.oneshot(request(&all, &context)));
    assert!(call.poll().is_pending());
    context.cancel(CancelReason::User);
    assert_eq!(call.await.unwrap_err().kind(), ErrorKind::Cancelled);

    let soon = std::time::SystemTime::now() + Duration::from_secs(5);
    let context = Context::builder().deadline(soon).build();
    let call = layer.layer(model.clone()).oneshot(request(&all, &context));
    assert_eq!(call.await.unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!(model.calls(), 0);
}

#[tokio::test]
async fn an_overflow_in_a_committed_answer_is_passed() {
    let model = ScriptedModel::new().text("It ").error(overflow());
    let answer = layer(&summarizer()).layer(model.clone());
    let answer = answer
        .oneshot(request(&exchanges(4), &Context::new()))
        .await
        .unwrap();
    let error = answer.collect().await.unwrap_err().error;
    assert_eq!((error.kind(), model.calls()), (ErrorKind::ContextWindow, 1));
}

/// A model that records its usage, as those of providers do.
fn recording(model: ScriptedModel) -> BoxModel {
    BoxModel::new(service_fn(move |request: ChatRequest| {
        let model = model.clone();
        async move {
            let head = ResponseHead::new("p", "small");
            request.context.record_usage(&head, Usage::new(300, 7));
            model.oneshot(request).await
        }
    }))
}

#[tokio::test]
async fn c119_a_failed_summary_is_a_truncation_whose_usage_counts() {
    let ended = |reason| {
        ScriptedModel::new()
            .text("Half a su")
            .finish(Finish::new(reason, Usage::default()))
    };
    let failing: [&dyn Fn() -> ScriptedModel; 6] = [
        &|| ScriptedModel::new().error(Error::new(ErrorKind::Server, "broken")),
        &|| {
            ScriptedModel::new()
                .text("It ")
                .error(Error::new(ErrorKind::Connection, "cut"))
        },
        &|| ScriptedModel::new().text("  "),
        &|| ended(FinishReason::Length),
        &|| ended(FinishReason::ContentFilter),
        &|| ScriptedModel::new().text("a".repeat(10_000)),
    ];
    for failing in failing {
        let layer = CompactionLayer::new(recording(failing().repeat()), 1_000)
            .when(Trigger::tokens(200))
            .keep(50);
        let model = model();
        let agent = AgentLayer::new(NoTools).layer(layer.layer(model.clone()));
        let answer = agent
            .oneshot(ChatRequest::new(exchanges(10)))
            .await
            .unwrap();
        let finish = answer.collect().await.unwrap().finish;
        assert_eq!(
            texts(&model.request(0).transcript),
            ["0?", "9?", ".", "Now?"]
        );
        let usage = finish.run_usage();
        let small = usage
            .models()
            .iter()
            .find(|it| it.model.as_deref() == Some("small"))
            .unwrap();
        assert_eq!(small.usage, Usage::new(300, 7));
    }
}

#[tokio::test]
async fn a_failed_summary_is_tried_again_after_growth_only() {
    let summarizer = ScriptedModel::new()
        .error(Error::new(ErrorKind::Server, "broken"))
        .repeat();
    let layer = layer(&summarizer);
    let context = Context::new();
    let mut all = exchanges(5);
    // 202 tokens, and 20 more in each step.
    let mut calls = Vec::new();
    for _ in 0..24 {
        view_in(&layer, &all, &context).await;
        calls.push(summarizer.calls());
        all.push(assistant(long(".")));
        all.push(user("Now?"));
    }
    assert_eq!(calls[0], 1);
    // At 220 tokens of the view, at 242, and so on.
    let attempts = *calls.last().unwrap();
    assert!((2..=4).contains(&attempts), "{calls:?}");
}

#[tokio::test]
async fn c121_a_hook_that_panics_is_ignored() {
    let summarizer = summarizer();
    let now = layer(&summarizer)
        .before(|_| -> std::future::Ready<CompactionDecision> { panic!("a hook") })
        .after(|_| panic!("a hook"));
    assert_eq!(view(&now, &exchanges(10)).await.len(), 5);
    let later = layer(&summarizer).before(async |_| {
        tokio::task::yield_now().await;
        panic!("a hook")
    });
    assert_eq!(view(&later, &exchanges(10)).await.len(), 5);
}

#[tokio::test]
async fn a_model_that_panics_leaves_the_turns_out() {
    type Answer = Result<ChatResponse<EventStream>, Error>;
    let at_once = service_fn(|_: ChatRequest| -> Ready<Answer> { panic!("a model") });
    let later = service_fn(async |_: ChatRequest| -> Answer { panic!("a model") });
    for model in [BoxModel::new(at_once), BoxModel::new(later)] {
        let layer = CompactionLayer::new(model, 1_000)
            .when(Trigger::tokens(200))
            .keep(50);
        assert_eq!(view(&layer, &exchanges(10)).await.len(), 4);
    }
}

#[tokio::test]
async fn a_cancelled_run_drops_its_summary() {
    let env = TestEnvironment::new();
    let summarizer = ScriptedModel::new().never();
    let layer = layer(&summarizer);
    let (model, all) = (model(), exchanges(10));

    let context = env.context();
    let mut call = task::spawn(layer.layer(model.clone()).oneshot(request(&all, &context)));
    assert!(call.poll().is_pending());
    assert_eq!(summarizer.live(), 1);
    context.cancel(CancelReason::User);
    assert!(call.is_woken());
    assert_eq!(call.await.unwrap_err().kind(), ErrorKind::Cancelled);
    assert_eq!((summarizer.live(), model.calls()), (0, 0));

    // The deadline of the run.
    let summarizer = ScriptedModel::new().never();
    let layer = self::layer(&summarizer);
    let deadline = env.context().now() + Duration::from_secs(5);
    let context = env.context_builder().deadline(deadline).build();
    let mut call = task::spawn(layer.layer(model.clone()).oneshot(request(&all, &context)));
    assert!(call.poll().is_pending());
    env.advance(Duration::from_secs(5));
    assert!(call.is_woken());
    assert_eq!(call.await.unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!((summarizer.live(), model.calls()), (0, 0));

    // The time of the summary: the turns are left out.
    let summarizer = ScriptedModel::new().never();
    let layer = self::layer(&summarizer).timeout(Duration::from_secs(5));
    let context = env.context();
    let mut call = task::spawn(layer.layer(model.clone()).oneshot(request(&all, &context)));
    assert!(call.poll().is_pending());
    env.advance(Duration::from_secs(5));
    assert!(call.is_woken());
    call.await.unwrap().collect().await.unwrap();
    assert_eq!(
        texts(&model.request(0).transcript),
        ["0?", "9?", ".", "Now?"]
    );
    assert_eq!(summarizer.live(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_anywhere_leaves_no_call() {
    let gate = Gate::default();
    gate.open();
    let summarizer = ScriptedModel::new()
        .pause()
        .text("The ")
        .pause()
        .text("summary.")
        .repeat();
    let model = ScriptedModel::new()
        .pause()
        .error(overflow())
        .then()
        .pause()
        .text("Yes.")
        .repeat();
    let run = || {
        let layer = layer(&summarizer).before(async |_| {
            tokio::task::yield_now().await;
            CompactionDecision::Proceed
        });
        let service = layer.layer(model.clone());
        async move {
            let answer = service
                .oneshot(request(&exchanges(10), &Context::new()))
                .await;
            if let Ok(answer) = answer {
                let _ = answer.collect().await;
            }
        }
    };
    drop_at_each_wait(run, async |_| {
        assert_eq!((summarizer.live(), model.live()), (0, 0));
    })
    .await;
}

#[tokio::test]
async fn an_exhausted_budget_means_a_truncation() {
    let summarizer = summarizer();
    let budget = BudgetPlugin::new(Limits::new().input_tokens(100));
    let charged = BoxModel::new(budget.model().layer(summarizer.clone()));
    let compaction = CompactionLayer::new(charged, 1_000)
        .when(Trigger::tokens(200))
        .keep(50);
    let model = model();
    let agent = ServiceBuilder::new()
        .layer(budget.run())
        .layer(AgentLayer::new(NoTools))
        .layer(compaction)
        .layer(budget.model())
        .service(model.clone());
    let answer = agent
        .oneshot(ChatRequest::new(exchanges(10)))
        .await
        .unwrap();
    answer.collect().await.unwrap();
    assert_eq!(summarizer.calls(), 0);
    assert_eq!(
        texts(&model.request(0).transcript),
        ["0?", "9?", ".", "Now?"]
    );
}

#[tokio::test]
async fn a_run_that_is_cancelled_by_its_summary_makes_no_call() {
    for answer in [
        ScriptedModel::new().text("The summary."),
        ScriptedModel::new().error(Error::new(ErrorKind::Cancelled, "cancelled")),
    ] {
        let (model, context) = (model(), Context::new());
        let run = context.clone();
        let cancelling = service_fn(move |request: ChatRequest| {
            run.cancel(CancelReason::User);
            answer.clone().oneshot(request)
        });
        let layer = CompactionLayer::new(BoxModel::new(cancelling), 1_000).when(Trigger::turns(1));
        let call = layer.layer(model.clone());
        let call = call.oneshot(request(&exchanges(10), &context));
        assert_eq!(call.await.unwrap_err().kind(), ErrorKind::Cancelled);
        assert_eq!(model.calls(), 0);
    }
}

#[tokio::test]
async fn a_policy_outside_does_not_repeat_the_second_call() {
    let cut = Error::new(ErrorKind::Connection, "cut");
    let model = ScriptedModel::new().error(overflow()).then();
    let model = model.text("It ").error(cut).then().text("Yes.");
    let retry = RetryModel::new(3).backoff(Duration::ZERO, Duration::ZERO);
    let stack = ServiceBuilder::new()
        .layer(RetryLayer::new(retry))
        .layer(CommitLayer::whole())
        .layer(layer(&summarizer()).when(Trigger::turns(1 << 20)))
        .service(model.clone());
    let failed = stack.oneshot(request(&exchanges(4), &Context::new())).await;
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Connection);
    assert_eq!(model.calls(), 2);
}

#[tokio::test]
async fn a_skipped_compaction_is_due_again_after_growth() {
    let planned = Arc::new(Mutex::new(Vec::new()));
    let tokens = Arc::clone(&planned);
    let layer = layer(&summarizer()).before(move |plan: Plan| {
        tokens.lock().unwrap().push(plan.tokens);
        std::future::ready(CompactionDecision::Skip)
    });
    let (mut all, context) = (exchanges(5), Context::new());
    // 201 tokens, and four more in each step.
    for _ in 0..15 {
        view_in(&layer, &all, &context).await;
        all.push(user("a".repeat(16)));
    }
    // Over 200, 220 and 242.
    assert_eq!(*planned.lock().unwrap(), [201, 221, 245]);
}
