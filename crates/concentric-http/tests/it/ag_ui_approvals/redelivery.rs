//! Interrupts that did not reach the client.

use super::*;

#[tokio::test]
async fn an_empty_resume_returns_the_open_interrupt() {
    for (_dir, store) in stores() {
        for has in ["all", "its own message", "nothing"] {
            let ran = Ran::default();
            let calls = vec![
                ("call_0", "look", json!({})),
                ("call_1", "refund", json!({"order": 7})),
            ];
            let asking = kept(agent(with_tokens(&ran), calls), &store);
            let mut client = interrupted(&asking).await;
            let first = client.pending[0].clone();
            match has {
                "its own message" => client.messages.truncate(1),
                "nothing" => client.messages.clear(),
                _ => {}
            }
            // The request may be repeated.
            for _ in 0..2 {
                client.pending.clear();
                let events = client.run(&asking, json!([])).await;
                assert_eq!(end(&events)["outcome"]["type"], "interrupt", "{events:?}");
                assert_eq!(client.pending[0]["id"], first["id"]);
                assert_eq!(client.pending[0]["toolCallId"], "call_1");
                // The stored run proves the interrupt; the token is not stored.
                assert!(client.pending[0]["metadata"]["token"].is_null());
                // The client has each call and result once.
                assert_eq!(
                    client.call("call_1")["function"]["arguments"],
                    r#"{"order":7}"#
                );
                assert_eq!(client.results("call_0"), ["look is done"]);
                assert!(client.results("call_1").is_empty());
            }
            let resume = client.answers(&approved());
            let events = client.run(&asking, resume).await;
            assert_eq!(end(&events)["outcome"]["type"], "success", "{events:?}");
            assert!(invalid(&events).is_empty());
            assert_eq!(
                client.last_text(),
                "[Done: look is done][Done: refund is done]"
            );
            assert_eq!(ran.lines(), ["look {}", r#"refund {"order":7}"#]);
            assert_eq!(open(&store).await, 0);
        }
    }
}

#[tokio::test]
async fn an_empty_resume_with_a_new_message_starts_a_run() {
    for (_dir, store) in stores() {
        let ran = Ran::default();
        let asking = kept(agent(tools(&ran), refund()), &store);
        let mut client = interrupted(&asking).await;
        let first = client.pending[0]["id"].clone();
        client.add_message("never mind");
        client.run(&asking, json!([])).await;
        assert_ne!(client.pending[0]["id"], first);
        assert_eq!(open(&store).await, 1);
    }
}

#[tokio::test]
async fn an_empty_resume_without_a_waiting_run_calls_no_model() {
    for (_dir, store) in stores() {
        let ran = Ran::default();
        let talks = kept(agent(tools(&ran), Vec::new()), &store);
        let mut client = Client::new();
        client
            .messages
            .push(json!({"id": "a", "role": "assistant", "content": "Hello."}));
        for messages in [2, 0] {
            client.messages.truncate(messages);
            let events = client.run(&talks, json!([])).await;
            assert_eq!(types(&events), ["RUN_STARTED", "RUN_ERROR"]);
            assert_eq!(end(&events)["code"], "run_not_found");
        }
    }
}

#[tokio::test]
async fn an_empty_resume_returns_an_open_client_call() {
    for (_dir, store) in stores() {
        let ran = Ran::default();
        let (_, mut client) = mixed(&ran);
        let calls = vec![("call_0", "confirm", json!({"text": "Sure?"}))];
        let asking = kept(agent(tools(&ran), calls), &store);
        client.run(&asking, json!(null)).await;
        client.messages.truncate(1);
        let events = client.run(&asking, json!([])).await;
        let pending = json!({"type": "success", "pendingToolCallIds": ["call_0"]});
        assert_eq!(end(&events)["outcome"], pending, "{events:?}");
        assert_eq!(
            client.call("call_0")["function"]["arguments"],
            r#"{"text":"Sure?"}"#
        );
        client
            .messages
            .push(json!({"id": "x", "role": "tool", "toolCallId": "call_0", "content": "yes"}));
        let events = client.run(&asking, json!([])).await;
        assert_eq!(end(&events)["outcome"], json!({"type": "success"}));
        assert_eq!(client.last_text(), "[Done: yes]");
    }
}

#[tokio::test]
async fn an_abandoned_run_returns_its_interrupts() {
    for (_dir, store) in stores() {
        for recovered in [true, false] {
            let ran = Ran::default();
            let asking = kept(agent(tools(&ran), refund()), &store);
            let mut client = interrupted(&asking).await;
            // Another process claims the run and dies.
            let runs = store.list_by_thread(Tenant::default(), ThreadId::new("t"), None, 1);
            let key = runs.await.unwrap().remove(0).key;
            let record = store.get(key).await.unwrap();
            let claim = store.claim(record, Vec::new(), Duration::ZERO);
            claim.await.unwrap();
            if recovered {
                let environment = concentric_core::Environment::system();
                let layer = SuspendLayer::new(Arc::clone(&store));
                let left = layer.claim_abandoned(&environment, 9).await;
                for request in left.unwrap() {
                    let response = asking.clone().oneshot(request).await.unwrap();
                    response.collect().await.unwrap();
                }
            }
            client.messages.truncate(1);
            client.runs = 0;
            let events = client.run(&asking, json!([])).await;
            assert_eq!(end(&events)["outcome"]["type"], "interrupt", "{events:?}");
            let resume = client.answers(&approved());
            let events = client.run(&asking, resume).await;
            assert_eq!(end(&events)["outcome"]["type"], "success", "{events:?}");
            assert_eq!(ran.lines().len(), 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reply_during_an_empty_resume_runs_the_call_once() {
    for (_dir, store) in stores() {
        for race in 0..20 {
            let ran = Ran::default();
            let asking = kept(agent(tools(&ran), refund()), &store);
            let client = interrupted(&asking).await;
            let clients = [client.answers(&approved()), json!([])].map(|resume| {
                let (mut client, asking) = (client.clone(), asking.clone());
                client.runs += usize::from(resume == json!([]));
                let request = client.request(&resume);
                tokio::spawn(async move { send(AgUiLayer::new().layer(asking), request).await })
            });
            let [answered, shown] = clients;
            // The answer wins, whenever it comes.
            let answered = answered.await.unwrap().events();
            shown.await.unwrap();
            assert_eq!(end(&answered)["outcome"]["type"], "success", "{race}");
            assert_eq!(ran.lines().len(), 1, "{race}");
        }
    }
}
