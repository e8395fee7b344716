use crate::common::{connect, server};
use concentric_core::{Annotations, ErrorKind};
use std::{collections::BTreeMap, time::Duration};

async fn error_of(how: &str) -> concentric_core::Error {
    server(how).connect().await.unwrap_err()
}

#[tokio::test]
async fn a_listing_beyond_the_limits_is_an_error() {
    for how in ["many-tools", "many-pages", "large-listing", "long-cursor"] {
        let error = error_of(how).await;
        assert_eq!(error.kind(), ErrorKind::TooLarge, "{how}: {error}");
    }
}

#[tokio::test]
async fn a_repeated_page_is_an_error() {
    let error = error_of("cursor-loop").await;
    assert_eq!(error.code(), Some("repeated_cursor"));
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_an_error() {
    let server = server("no-answer").connect_timeout(Duration::from_millis(300));
    assert_eq!(
        server.connect().await.unwrap_err().kind(),
        ErrorKind::Timeout
    );
}

#[tokio::test]
async fn a_program_that_does_not_exist_is_an_error() {
    let command = std::process::Command::new("/does/not/exist");
    let error = concentric_mcp::McpServer::stdio("none", &command)
        .connect()
        .await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Configuration);
}

#[tokio::test]
async fn only_tools_with_valid_definitions_are_offered() {
    let server = connect("schemas").await;
    let tools = server.tools();
    let names: Vec<_> = tools.iter().map(|tool| tool.spec().name.as_str()).collect();
    let odd = names
        .iter()
        .find(|name| name.starts_with("hostile__od_d_"))
        .unwrap();
    let mut expected = vec!["hostile__claims", "hostile__good", "hostile__slow", odd];
    expected.sort_unstable();
    assert_eq!(names, expected);
    let odd = tools.iter().find(|tool| tool.spec().name == **odd).unwrap();
    assert_eq!(odd.spec().description, "abc");

    let refused = server.refused();
    let reasons: BTreeMap<_, _> = refused.iter().map(|it| (&*it.name, &*it.reason)).collect();
    for (name, reason) in [
        ("remote", "another document"),
        ("file", "another document"),
        ("deep", "too deeply"),
        ("large", "bytes"),
        ("look-ahead", "look"),
        ("list", "not `object`"),
        ("twice", "several tools"),
    ] {
        assert!(reasons[name].contains(reason), "{name}: {}", reasons[name]);
    }
    assert_eq!(reasons.len(), 7, "{reasons:?}");
}

#[tokio::test]
async fn annotations_are_those_of_the_application() {
    let tool = |server: &concentric_mcp::McpConnection| {
        let mut tools = server.tools().into_iter();
        tools
            .find(|tool| tool.spec().name == "hostile__claims")
            .unwrap()
    };
    let distrusted = connect("schemas").await;
    assert_eq!(tool(&distrusted).spec().annotations, Annotations::default());
    let trusted = server("schemas").annotations(|tool| Some(tool.annotations.clone()));
    let trusted = trusted.connect().await.unwrap();
    assert!(tool(&trusted).spec().annotations.read_only);
}

#[tokio::test]
async fn an_invalid_name_of_a_server_is_an_error() {
    for name in ["", "a.b", &"x".repeat(33)] {
        let command = std::process::Command::new(crate::common::SERVER);
        let error = concentric_mcp::McpServer::stdio(name, &command)
            .connect()
            .await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Configuration);
    }
}
