use super::*;

#[cfg(feature = "suspend")]
mod suspended {
    use super::*;
    use concentric_core::{
        Reply, ThreadId,
        store::{RunStore, Tenant, waiting},
    };
    use concentric_layers::SuspendLayer;
    use concentric_store::MemoryStore;

    #[tokio::test]
    async fn one_that_asks_is_found_in_the_store_and_goes_on() {
        let store = Arc::new(MemoryStore::new());
        let (layer, log) = (DetachLayer::new(), Log::default());
        let tools = ScriptedTools::new().asks("pay", "paid");
        let model = ScriptedModel::new()
            .text("Well, ")
            .tool_call("pay", json!({}))
            .then()
            .text("Done.");
        let agent = ServiceBuilder::new()
            .layer(layer.clone())
            .layer(log.ends("inside"))
            .layer(SuspendLayer::new(Arc::clone(&store)))
            .layer(AgentLayer::new(tools.clone()))
            .service(model);
        let thread = ThreadId::new("t");
        let context = || Context::builder().thread_id(thread.clone()).build();
        let request = ChatRequest::user("Pay.").with_context(context());
        drop(agent.clone().oneshot(request).await.unwrap());
        while layer.available() < 64 {
            yield_now().await;
        }
        assert_eq!(log.lines(), ["inside: interrupted"]);

        let asked = waiting(&*store, Tenant::default(), thread.clone());
        let asked = asked.await.unwrap();
        assert_eq!(asked.len(), 1);
        let replies = asked.iter().map(|asked| Reply::approve(asked.id.clone()));
        let request = ChatRequest::replying(replies.collect()).with_context(context());
        // Nobody hears that either.
        drop(agent.oneshot(request).await.unwrap());
        layer.shutdown().await;
        assert_eq!(log.lines(), ["inside: interrupted", "inside: completed"]);
        assert_eq!(tools.done(), 1);
        let open = store
            .list_by_thread(Tenant::default(), thread, None, 1)
            .await;
        assert!(open.unwrap().is_empty());
    }
}

#[cfg(feature = "session")]
#[tokio::test]
async fn a_session_around_the_layer_is_rejected() {
    use concentric_core::ThreadId;
    use concentric_layers::session::{MakeSession, SessionTarget};

    let scene = Scene::new(ScriptedModel::new().text("Yes.").repeat());
    let sessions = MakeSession::new(scene.agent());
    let target = SessionTarget::new(ThreadId::new("t"));
    let session = sessions.oneshot(target).await.unwrap();
    let error = session.clone().oneshot(session.user("hi")).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
    for name in ["DetachLayer", "MakeSession"] {
        assert!(error.message().contains(name), "{error}");
    }
    assert_eq!(scene.model.calls(), 0);
    assert_eq!(session.history().len(), 0);
}

mod hooked {
    use super::*;
    use concentric_core::BoxError;
    use concentric_core::hooks::{self, Hooks, Summary};

    struct Told(&'static str, Log);

    impl Hooks for Told {
        fn id(&self) -> &str {
            self.0
        }

        async fn after_run(&self, end: End<'_>, run: &Summary) -> Result<(), BoxError> {
            // One that waits is waited for, detached too.
            yield_now().await;
            let used = run.usage().output_tokens().unwrap_or_default();
            self.1.add(match end {
                End::Finished(finish) => format!("{}: {:?}, {used}", self.0, finish.outcome),
                End::Dropped => format!("{}: dropped", self.0),
                other => format!("{}: {other:?}", self.0),
            });
            Ok(())
        }
    }

    #[tokio::test]
    async fn hooks_inside_see_the_end_and_those_outside_a_drop() {
        let (layer, log) = (DetachLayer::new(), Log::default());
        let tools = ScriptedTools::new().answers("look", "seen");
        let model = ScriptedModel::new()
            .tool_call("look", json!({}))
            .then()
            .text("Done.");
        let agent = ServiceBuilder::new()
            .layer(hooks::run(Arc::new(Told("outside", log.clone()))))
            .layer(layer.clone())
            .layer(hooks::run(Arc::new(Told("inside", log.clone()))))
            .layer(AgentLayer::new(tools))
            .service(model);
        drop(agent.oneshot(ChatRequest::user("hi")).await.unwrap());
        layer.shutdown().await;
        settle().await;
        let mut lines = log.lines();
        lines.sort();
        assert_eq!(lines, ["inside: Completed, 2", "outside: dropped"]);
    }
}
