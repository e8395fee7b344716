//! What models, tools and users write.

use super::*;
use concentric_core::CustomEvent;

const HOSTILE: &str = "<script>alert(1)</script>'\"><img src=x onerror=alert(1)>]]>javascript:alert(1)\u{202e}evil\u{2066}\u{200b}\u{feff}\x1b[31mred\x1b]8;;http://evil\x07\u{9b}0m\r</pre></textarea>&lt;";

#[track_caller]
fn is_harmless(page: &str) {
    for markup in [
        "<script>",
        "<img",
        "onerror=alert(1)>",
        "</pre></textarea>'",
        "href=\"javascript",
        "src=\"javascript",
    ] {
        assert!(!page.contains(markup), "{markup}: {page}");
    }
    // One script, which is ours.
    assert_eq!(page.matches("<script").count(), 1, "{page}");
    assert!(!page.contains(is_hidden), "{page:?}");
    // No attribute runs code, and no style is inline.
    for attribute in [" onclick", " onload", " style=", "javascript:\""] {
        assert!(!page.contains(attribute), "{attribute}: {page}");
    }
}

fn is_hidden(c: char) -> bool {
    (c.is_control() && c != '\n' && c != '\t') || "\u{202e}\u{2066}\u{200b}\u{feff}".contains(c)
}

fn hostile_site() -> Site {
    let mut model = Model::pays(&json!({"to": HOSTILE, HOSTILE: [HOSTILE]}));
    model.first.insert(0, Event::text(HOSTILE.to_owned()));
    Site::new(model)
}

#[tokio::test]
async fn hostile_text_is_never_markup() {
    let site = hostile_site();
    let ann = Operator::new(HOSTILE, [Tenant(HOSTILE.into()), Tenant::default()])
        .content()
        .decide()
        .cancel();
    let input = json!({"threadId": HOSTILE, "runId": HOSTILE,
        "messages": [{"id": HOSTILE, "role": "user", "content": HOSTILE}]});
    site.start_with(HOSTILE, &input).await;
    for path in [
        "/",
        "/?show=ended",
        "/?show=waiting",
        "/approvals",
        "/stacks",
    ] {
        is_harmless(&site.page(&ann, path).await);
    }
    let page = site.page(&ann, "/approvals").await;
    assert!(
        page.contains("⟦U+202E⟧") && page.contains("\\u202e"),
        "{page}"
    );
    // The ids in forms and links are exact.
    let link = page.split("href=\"/console/run?").nth(1).unwrap();
    let link = link.split('"').next().unwrap().replace("&amp;", "&");
    let run = site.page(&ann, &format!("/run?{link}")).await;
    is_harmless(&run);
    let form = Form::deciding(&page, "approve");
    assert_eq!(site.post(&ann, &form).await.status, 303);
    let events = site.page(&ann, &format!("/run/events?{link}")).await;
    let data = events
        .lines()
        .filter_map(|line| line.strip_prefix("data: "));
    for data in data {
        let ops: Vec<Vec<Option<String>>> = serde_json::from_str(data).unwrap();
        for text in ops.iter().flatten().flatten() {
            assert!(!text.contains(is_hidden), "{text:?}");
        }
    }
    is_harmless(&site.page(&ann, &format!("/run?{link}")).await);
    assert_eq!(site.paid()["to"], HOSTILE);
    // The errors of requests, too.
    for path in [
        "/none%3Cscript%3E",
        "/run?tenant=&thread=%3Cscript%3E&run=%E2%80%AE",
        "/?show=%3Cscript%3E",
    ] {
        let answer = site.get(&ann, path).await;
        assert_eq!(answer.status, 404);
        is_harmless(&answer.body);
    }
}

#[tokio::test]
async fn an_edit_sends_hidden_characters_back() {
    let site = Site::new(Model::pays(&json!({"to": "a\u{202e}b"})));
    site.start("", "r").await;
    let ann = all("ann");
    let page = site.page(&ann, "/approvals").await;
    let area = page.split("<textarea").nth(1).unwrap();
    let text = area
        .split_once('>')
        .unwrap()
        .1
        .split("</textarea>")
        .next()
        .unwrap();
    let text = text.replace("&quot;", "\"");
    assert!(text.contains("\\u202e"), "{text}");
    let form = Form::deciding(&page, "edit").and("arguments", &text);
    assert_eq!(site.post(&ann, &form).await.status, 303);
    site.follow(&ann).await;
    assert_eq!(site.paid(), json!({"to": "a\u{202e}b"}));
}

#[tokio::test]
async fn content_is_hidden_without_the_right() {
    let mut model = Model::pays(&json!({"to": "secret"}));
    model.first.insert(0, Event::text("secret".to_owned()));
    let site = Site::new(model);
    let input = json!({"threadId": "t", "runId": "r",
        "messages": [{"id": "m", "role": "user", "content": "secret"}]});
    site.start_with("", &input).await;
    let viewer = Operator::new("eve", [Tenant::default()]).decide().cancel();
    let paths = ["/", "/?show=waiting", "/approvals", RUN];
    for path in paths {
        let page = site.page(&viewer, path).await;
        assert!(!page.contains("secret"), "{path}: {page}");
    }
    assert!(
        site.page(&viewer, "/approvals")
            .await
            .contains("Call of <code>pay</code>")
    );
    assert!(
        site.page(&all("ann"), "/approvals")
            .await
            .contains("secret")
    );
    let form = Form::deciding(&site.page(&all("ann"), RUN).await, "approve");
    assert_eq!(site.post(&all("ann"), &form).await.status, 303);
    assert!(site.follow(&all("ann")).await.contains("secret"));
    let events = site.follow(&viewer).await;
    assert!(
        !events.contains("secret") && events.contains("Call of pay"),
        "{events}"
    );
    // Nor that of a stored run without a log.
    let stored = Site {
        console: site.console.clone().events(&EventLogLayer::new()),
        ..site
    };
    let page = stored.page(&viewer, RUN).await;
    assert!(
        !page.contains("secret") && page.contains("content hidden"),
        "{page}"
    );
    assert!(stored.page(&all("ann"), RUN).await.contains("secret"));
}

#[tokio::test]
async fn long_texts_are_folded() {
    let long = "\u{e9}<".repeat(350_000);
    let site = Site::new(Model::writes(&long));
    site.start("", "r").await;
    let ann = all("ann");
    let page = site.page(&ann, RUN).await;
    assert!(page.contains("KiB more</summary>"));
    assert_eq!(page.matches("&lt;").count(), 350_000);
    // Of a call, the arguments are in the question, in the form that edits them, and in the events.
    let long = "\u{e9}<".repeat(200_000);
    let site = Site::new(Model::pays(&json!({"to": long})));
    site.start("", "r").await;
    let page = site.page(&ann, RUN).await;
    assert_eq!(page.matches("&lt;").count(), 600_000);
    let form = Form::deciding(&page, "edit").and("arguments", &json!({"to": long}).to_string());
    assert_eq!(site.post(&ann, &form).await.status, 303);
    site.follow(&ann).await;
    assert_eq!(site.paid.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn events_of_all_kinds_are_shown() {
    let site = Site::new(Model::writes("Hello."));
    let agent = service_fn(|_: ChatRequest| async {
        Ok::<_, Error>(ChatResponse::new(script(vec![
            Event::ReasoningDelta("Let me think.".into()),
            Event::Custom(Box::new(CustomEvent::new("note", json!({"a": 1})))),
            crate::support::step(1, "m"),
            Event::text("Done.".to_owned()),
            Event::finish(FinishReason::Stop, Usage::new(3, 2)),
        ])))
    });
    let agent = site.log.layer(BoxModel::new(agent));
    let site = Site {
        agent: BoxModel::new(agent),
        ..site
    };
    site.start("", "r").await;
    let page = site.page(&all("ann"), RUN).await;
    for shown in [
        "Run started",
        "Reasoning",
        "Let me think.",
        "note",
        "{&quot;a&quot;:1}",
        "Assistant",
        "Done.",
        "ended, 3 input tokens, 2 output tokens",
    ] {
        assert!(page.contains(shown), "{shown}: {page}");
    }
}
