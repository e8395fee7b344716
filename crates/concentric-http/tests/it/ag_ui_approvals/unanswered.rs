//! Interrupts that a conversation leaves unanswered.

use super::*;

#[tokio::test]
async fn unanswered_interrupts_do_not_block_a_conversation() {
    for (_dir, store) in stores() {
        let ran = Ran::default();
        let agent = kept(agent(tools(&ran), refund()), &store);
        let mut client = interrupted(&agent).await;
        // More runs than the limit of waiting runs.
        for n in 0..40 {
            client.add_message(&format!("never mind, {n}"));
            let events = client.run(&agent, json!(null)).await;
            assert_eq!(
                end(&events)["outcome"]["type"],
                "interrupt",
                "{n}: {events:?}"
            );
            assert_eq!(open(&store).await, 1);
        }
        let resume = client.answers(&approved());
        let events = client.run(&agent, resume).await;
        assert_eq!(end(&events)["outcome"]["type"], "success", "{events:?}");
        assert_eq!(ran.lines().len(), 1);
        assert_eq!(open(&store).await, 0);
    }
}

#[tokio::test]
async fn a_newer_message_withdraws_an_interrupt() {
    for (_dir, store) in stores() {
        let ran = Ran::default();
        let asking = kept(agent(tools(&ran), refund()), &store);
        let mut client = interrupted(&asking).await;
        let mut late = client.clone();
        let mut others = Client::new();
        others.tenant = Some(Tenant("other".into()));
        let events = others.run(&asking, json!(null)).await;
        assert_eq!(end(&events)["outcome"]["type"], "interrupt");

        client.add_message("never mind");
        let talks = kept(agent(tools(&ran), Vec::new()), &store);
        let events = client.run(&talks, json!(null)).await;
        assert_eq!(end(&events)["outcome"]["type"], "success", "{events:?}");
        assert_eq!(open(&store).await, 0);
        for keeps_history in [true, false] {
            if !keeps_history {
                late.messages.truncate(1);
            }
            let resume = late.answers(&approved());
            let events = late.clone().run(&asking, resume).await;
            assert_eq!(types(&events), ["RUN_STARTED", "RUN_ERROR"]);
            assert_eq!(end(&events)["code"], "run_ended");
        }
        assert!(ran.lines().is_empty());

        // The interrupt of another tenant is unaffected.
        let resume = others.answers(&approved());
        let events = others.run(&asking, resume).await;
        assert_eq!(end(&events)["outcome"]["type"], "success", "{events:?}");
        assert_eq!(ran.lines().len(), 1);
    }
}

#[tokio::test]
async fn a_client_tool_result_does_not_withdraw_interrupts() {
    for (_dir, store) in stores() {
        let ran = Ran::default();
        let (_, mut client) = mixed(&ran);
        let calls = vec![
            ("call_0", "refund", json!({})),
            ("call_1", "confirm", json!({})),
        ];
        let agent = kept(agent(tools(&ran), calls), &store);
        client.run(&agent, json!(null)).await;
        client
            .messages
            .push(json!({"id": "x", "role": "tool", "toolCallId": "call_1", "content": "yes"}));
        let events = client.run(&agent, json!(null)).await;
        assert_eq!(end(&events)["outcome"]["type"], "interrupt", "{events:?}");
        let resume = client.answers(&approved());
        let events = client.run(&agent, resume).await;
        assert_eq!(end(&events)["outcome"], json!({"type": "success"}));
        assert_eq!(client.last_text(), "[Done: refund is done][Done: yes]");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reply_and_a_newer_message_exclude_each_other() {
    for (_dir, store) in stores() {
        for race in 0..20 {
            let ran = Ran::default();
            let asking = kept(agent(tools(&ran), refund()), &store);
            let talks = kept(agent(tools(&ran), Vec::new()), &store);
            let mut answering = interrupted(&asking).await;
            let mut messaging = answering.clone();
            messaging.add_message("never mind");
            let resume = answering.answers(&approved());
            let answered = tokio::spawn(async move { answering.run(&asking, resume).await });
            let messaged = tokio::spawn(async move {
                messaging.runs += 1;
                messaging.run(&talks, json!(null)).await
            });
            let (answered, messaged) = (answered.await.unwrap(), messaged.await.unwrap());
            assert_eq!(
                end(&messaged)["outcome"]["type"],
                "success",
                "{race}: {messaged:?}"
            );
            match end(&answered)["type"].as_str() {
                Some("RUN_FINISHED") => assert_eq!(ran.lines().len(), 1, "{race}"),
                _ => {
                    let code = end(&answered)["code"].as_str().unwrap();
                    assert!(["run_ended", "already_resumed"].contains(&code), "{code}");
                    assert!(ran.lines().is_empty(), "{race}");
                }
            }
            assert_eq!(open(&store).await, 0, "{race}");
        }
    }
}
