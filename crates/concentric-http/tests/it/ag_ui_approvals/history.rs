//! The history that the server keeps while an approval waits.

use super::{
    messages::attentive,
    overwritten::{shown, texts},
    *,
};
use concentric_layers::{ConversationLayer, conversation::Merge};
use concentric_test::{ScriptedModel, ScriptedTools};

/// The agent over a store for its runs and its conversation, of which the client sends a copy.
fn with_history(agent: BoxModel, store: &MemoryStore) -> BoxModel {
    let conversation = ConversationLayer::new(store.clone());
    let conversation = conversation.history(Merge::ServerWins).required();
    let suspend = SuspendLayer::new(Arc::new(store.clone()));
    BoxModel::new(suspend.layer(conversation.layer(agent)))
}

fn answers(model: &ScriptedModel) -> BoxModel {
    BoxModel::new(AgentLayer::new(ScriptedTools::new()).layer(model.clone()))
}

#[tokio::test]
async fn the_history_has_the_message_while_its_approval_waits() {
    let store = MemoryStore::new();
    let agent = with_history(attentive(tools(&Ran::default()), refund()), &store);
    let mut client = interrupted(&agent).await;
    assert_eq!(texts(&store).await, ["hi"]);
    // The client repeats its message.
    client.add_message("and now?");
    let resume = client.answers(&approved());
    client.run(&agent, resume).await;
    let answer = "refund is done, and now?";
    assert_eq!(
        texts(&store).await,
        ["hi", "refund is done", "and now?", answer]
    );
    client.add_message("thanks");
    client.run(&agent, json!(null)).await;
    let last = "refund is done, and now?, refund is done, and now?, thanks";
    assert_eq!(
        texts(&store).await,
        ["hi", "refund is done", "and now?", answer, "thanks", last]
    );
    assert_eq!(client.last_text(), last);
}

#[tokio::test]
async fn the_model_reads_a_message_whose_approval_was_withdrawn() {
    let store = MemoryStore::new();
    let agent = with_history(attentive(tools(&Ran::default()), refund()), &store);
    let mut client = interrupted(&agent).await;
    client.add_message("never mind");
    let model = ScriptedModel::new().text("Fine.").then().text("Bye.");
    let talks = with_history(answers(&model), &store);
    client.run(&talks, json!(null)).await;
    let seen: Vec<_> = model.request(0).transcript.iter().cloned().collect();
    let seen: Vec<_> = seen.iter().map(|turn| turn.as_message().text()).collect();
    assert_eq!(seen, ["hi", "never mind"]);
    assert_eq!(texts(&store).await, ["hi", "never mind", "Fine."]);
    client.add_message("bye");
    client.run(&talks, json!(null)).await;
    assert_eq!(texts(&store).await, shown(&client));
}
