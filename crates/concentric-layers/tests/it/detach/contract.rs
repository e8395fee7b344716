use super::*;

#[tokio::test(start_paused = true)]
async fn the_layer_contract_holds_while_the_consumer_is_connected() {
    let layer = DetachLayer::new();
    layer_check::readiness(&layer).await;
    layer_check::finished(&layer).await;
    layer_check::failed(&layer).await;
    layer_check::ended_early(&layer).await;
    layer_check::polled(&layer).await;
    layer_check::size_hint(&layer).await;
}

#[tokio::test(start_paused = true)]
async fn the_layer_contract_holds_when_no_run_may_continue() {
    check_layer(DetachLayer::new().limit(0)).await;
}

#[tokio::test]
async fn the_description_names_the_inner_service() {
    let model = ScriptedModel::new();
    let agent = DetachLayer::new().layer(AgentLayer::new(ScriptedTools::new()).layer(model));
    let described = concentric_core::describe::describe(&agent);
    let names: Vec<_> = described
        .lines()
        .map(|line| line.split_whitespace().last().unwrap())
        .collect();
    assert_eq!(names, ["Detach", "Agent", "ScriptedTools", "ScriptedModel"]);
}
