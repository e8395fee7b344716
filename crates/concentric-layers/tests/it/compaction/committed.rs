//! Summaries that replace the conversation.

use super::*;

/// The conversation of a run after it, and the conversations that replaced the consumer's.
async fn committed(
    layer: CompactionLayer,
    all: &Transcript,
) -> (Vec<ChatRequest>, Transcript, usize) {
    let model = ScriptedModel::new()
        .tool_call("look", json!({}))
        .then()
        .text("Done.");
    let tools = ScriptedTools::new().answers("look", "seen");
    let agent = AgentLayer::new(tools).layer(layer.layer(model.clone()));
    let mut body = agent
        .oneshot(ChatRequest::new(all.clone()))
        .await
        .unwrap()
        .body;
    let (mut kept, mut replaced) = (None, 0);
    while let Some(event) = body.next().await {
        match event.unwrap() {
            Event::TranscriptReplaced(_) => replaced += 1,
            Event::Finish(finish) => kept = finish.transcript,
            _ => {}
        }
    }
    (model.requests(), kept.unwrap(), replaced)
}

#[tokio::test]
async fn a_committed_summary_replaces_the_conversation() {
    let summarizer = summarizer();
    let all = exchanges(10);
    let (requests, kept, replaced) = committed(layer(&summarizer).commit(), &all).await;
    let expected = ["0?", NOTE, "9?", ".", "Now?"];
    assert_eq!(texts(&requests[0].transcript), expected);
    assert!(requests[1].transcript.extends(&requests[0].transcript));
    assert_eq!(texts(&kept.prefix(5)), expected);
    assert_eq!((kept.len(), replaced, summarizer.calls()), (7, 1, 1));

    // The message of the user is there once, wherever it was.
    let mut exchange = Transcript::from_iter([user("The task.")]);
    for n in 0..12 {
        exchange.push(round("look", &[&long(&format!("result {n}"))]));
    }
    for head in [0, 1, 3] {
        let layer = layer(&summarizer).max_summary(20).head(head).commit();
        let (requests, kept, _) = committed(layer, &exchange).await;
        for of in [&requests[0].transcript, &requests[1].transcript, &kept] {
            let tasks = texts(of).iter().filter(|text| *text == "The task.").count();
            let notes = of.iter().filter(|turn| is_note(turn)).count();
            assert_eq!((tasks, notes), (1, 1), "{head}");
        }
    }

    // A second compaction folds the committed summary in.
    let mut longer = kept;
    for n in 0..10 {
        longer.push(user(long(&format!("more {n}"))));
        longer.push(assistant(long(".")));
    }
    longer.push(user("Now?"));
    let (_, kept, _) = committed(layer(&summarizer).commit(), &longer).await;
    assert_eq!(kept.iter().filter(|turn| is_note(turn)).count(), 1);
    // Also where it would be among the first turns that are kept.
    let more = layer(&summarizer).head(5).commit();
    let (_, kept, _) = committed(more, &longer).await;
    assert_eq!(kept.iter().filter(|turn| is_note(turn)).count(), 1);
    let last = summarizer.requests().pop().unwrap().transcript;
    let asked = last.last().unwrap().as_message().text();
    let asked: Value = serde_json::from_str(&asked).unwrap();
    assert!(
        asked["previous_summary"]
            .as_str()
            .unwrap()
            .contains("The summary.")
    );
    assert!(!asked["conversation"].to_string().contains("The summary."));
}

#[tokio::test]
async fn a_summary_that_was_not_committed_is_not_made_again() {
    let summarizer = summarizer();
    let all = exchanges(10);
    let layer = layer(&summarizer).commit();
    // The model fails, or the process ends, before the commit.
    let context = Context::new();
    let failing = ScriptedModel::new().error(Error::new(ErrorKind::Server, "broken"));
    let failed = layer.layer(failing).oneshot(request(&all, &context)).await;
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Server);
    let stored = context.stored_state().unwrap();
    let resumed = Context::new();
    resumed.restore_state(&stored);
    for context in [context, resumed] {
        let model = model();
        let agent = AgentLayer::new(NoTools).layer(layer.layer(model.clone()));
        let answer = agent.oneshot(request(&all, &context)).await.unwrap();
        let kept = answer.collect().await.unwrap();
        assert_eq!(kept.transcript().unwrap().len(), 6);
        assert_eq!(summarizer.calls(), 1);
    }
}

#[tokio::test]
async fn c117_committed_random_histories_have_whole_rounds() {
    let summarizer = summarizer();
    for seed in cases(40) {
        let random = &mut Random::new(seed);
        let exchanges = random.below(14);
        let history = random_history(random, exchanges);
        let head = random.below(4) as usize;
        let layer = layer(&summarizer).head(head).max_summary(20).commit();
        let (requests, kept, _) = committed(layer, &history).await;
        let sent = &requests[0].transcript;
        let newest = |of: &Transcript| {
            let mut turns = of.rev().map(Turn::as_message);
            turns
                .find(|it| {
                    it.role == Role::User && !is_note(&Turn::message((*it).clone()).unwrap())
                })
                .cloned()
        };
        assert_eq!(newest(sent), newest(&history), "{seed}");
        assert!(
            kept.iter().filter(|turn| is_note(turn)).count() <= 1,
            "{seed}"
        );
        for turn in sent.iter() {
            assert_eq!(turn.as_message().tool_calls().count(), turn.results().len());
        }
    }
}
