//! Decisions that are reported before their calls run.

use super::*;

paced!(decisions_are_told_ahead_and_not_again);
async fn decisions_are_told_ahead_and_not_again() {
    let (log, watched, store) = (Log::default(), Log::default(), Memory::new());
    let world = World::new();
    let tools = || {
        Toolset::new()
            .tool(number("refund", &log))
            .gate(Approval::for_tools("refund").on_approval(told(&watched)))
            .notify_once(store.clone())
    };
    let mut here = lifecycle(&world, tools());
    let calls = vec![("refund", r#"{"n":1}"#), ("refund", r#"{"n":2}"#)];
    let state = suspended(here.execute_round(message("m1", calls)).await.unwrap());
    let ids: Vec<_> = state
        .interrupts()
        .iter()
        .map(|ask| ask.id.clone())
        .collect();
    let replies = || {
        vec![
            Reply::approve(ids[0].clone()),
            Reply::deny(ids[1].clone(), "no"),
        ]
    };
    // A wrong one tells nobody.
    let wrong = [
        Reply::approve(ids[0].clone()),
        Reply::approve(crate::kit::id("x")),
    ];
    assert!(here.notify_decisions(&state, &wrong).await.is_err());
    assert_eq!(watched.lines().len(), 2);
    here.notify_decisions(&state, &replies()).await.unwrap();
    here.notify_decisions(&state, &replies()).await.unwrap();
    let told = [r#"approved call-0-0 {"n":1}"#, "denied call-0-1 no"];
    assert_eq!(watched.lines()[2..], told);
    assert!(log.lines().is_empty());
    let end = lifecycle(&world, tools())
        .resume(state, replies())
        .await
        .unwrap();
    assert!(matches!(end, RoundEnd::Closed(_)));
    assert_eq!(log.lines(), ["refund 1"]);
    assert_eq!(watched.lines().len(), 4, "not told again");
}

paced!(a_decision_that_is_told_ahead_is_about_what_will_run);
async fn a_decision_that_is_told_ahead_is_about_what_will_run() {
    let (log, watched, store) = (Log::default(), Log::default(), Memory::new());
    let world = World::new();
    let tools = || {
        Toolset::new()
            .tool(number("refund", &log))
            .gate(
                Approval::for_tools("refund")
                    .replies(crate::kit::ANY_REPLY)
                    .on_approval(told(&watched)),
            )
            .prepare(async |call: ToolCall| {
                let text = call.arguments().as_str().replace('1', "5");
                Ok(text.as_str().into())
            })
            .notify_once(store.clone())
    };
    let mut here = lifecycle(&world, tools());
    let calls = vec![("refund", r#"{"n":1}"#), ("refund", r#"{"n":2}"#)];
    let state = suspended(here.execute_round(message("m1", calls)).await.unwrap());
    let ids: Vec<_> = state
        .interrupts()
        .iter()
        .map(|ask| ask.id.clone())
        .collect();
    let replies = vec![
        Reply::approve(ids[0].clone()),
        Reply::approve_edited(ids[1].clone(), json!({"n": 7})),
    ];
    here.notify_decisions(&state, &replies).await.unwrap();
    let told = [
        r#"approved call-0-0 {"n":5}"#,
        r#"approved call-0-1 {"n":7}"#,
    ];
    assert_eq!(watched.lines()[2..], told);
}

paced!(a_decision_about_a_changed_call_is_told_ahead_too);
async fn a_decision_about_a_changed_call_is_told_ahead_too() {
    let (log, watched, store) = (Log::default(), Log::default(), Memory::new());
    let world = World::new();
    let tools = || {
        Toolset::new()
            .tool(number("refund", &log))
            .gate(Approval::for_tools("refund").on_approval(told(&watched)))
            .layer(hook(|mut call: ToolCall| {
                let text = call.arguments().as_str().replace('1', "5");
                call.set_arguments(text.as_str().into());
                Hook::Call(call)
            }))
            .notify_once(store.clone())
    };
    let mut here = lifecycle(&world, tools());
    let first = message("m1", vec![("refund", r#"{"n":1}"#)]);
    let state = suspended(here.execute_round(first).await.unwrap());
    let id = state.interrupts()[0].id.clone();
    let end = here.resume(state, vec![Reply::approve(id)]).await.unwrap();
    let state = suspended(end);
    let before = watched.lines().len();
    let replies = [Reply::approve(state.interrupts()[0].id.clone())];
    here.notify_decisions(&state, &replies).await.unwrap();
    assert_eq!(watched.lines()[before..], [r#"approved call-0-0 {"n":5}"#]);
    here.resume(state, replies.to_vec()).await.unwrap();
    assert_eq!(watched.lines().len(), before + 1);
    assert_eq!(log.lines(), ["refund 5"]);
}

paced!(what_comes_of_a_run_is_the_same_whether_it_was_looked_at);
async fn what_comes_of_a_run_is_the_same_whether_it_was_looked_at() {
    // A resume without replies asks the same again, and runs nothing.
    let log = Log::default();
    let scene = Scene::round(vec![("refund", r#"{"n":1}"#), ("write", r#"{"n":2}"#)]);
    let mut ran: Ran = scene.start(&gated(&log)).await;
    let first = ran.asked();
    for _ in 0..3 {
        ran = scene.resume(&gated(&log), ran.state(), vec![]).await;
        assert_eq!(ran.asked(), first);
    }
    assert!(log.lines().is_empty());
    let request = ChatRequest::resume(ran.state(), vec![Reply::approve(first[0].id.clone())])
        .with_context(scene.world.context());
    let ran = drive(scene.model.agent(&gated(&log)), request).await;
    assert_eq!(*ran.outcome(), Outcome::Completed);
    assert_eq!(log.lines().len(), 2);
}

paced!(a_skill_stays_active_where_its_run_is_resumed);
async fn a_skill_stays_active_where_its_run_is_resumed() {
    let (log, world) = (Log::default(), World::new());
    let wrapped = || {
        let refunds = Skill::new("refunds", "Pays back.", "Look first.").unlocks("write");
        Skills::new().skill(refunds).wrap(gated(&log)).unwrap()
    };
    let offers = |there: &mut ToolLifecycle, skills| {
        let request = there.apply_skill_loads(skills);
        request.tools.get("write").is_some()
    };
    let (tools, skills) = wrapped();
    let mut here = lifecycle(&world, tools);
    assert!(!offers(&mut here, &skills));
    let load = ("load_skill", r#"{"name":"refunds"}"#);
    let calls = vec![load, ("refund", r#"{"n":1}"#)];
    let state = suspended(here.execute_round(message("m1", calls)).await.unwrap());

    let (tools, skills) = wrapped();
    let mut there = lifecycle(&world, tools);
    assert!(!offers(&mut there, &skills));
    let reply = Reply::approve(state.interrupts()[0].id.clone());
    there.resume(state, vec![reply]).await.unwrap();
    assert!(offers(&mut there, &skills));
}
