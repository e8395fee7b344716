//! Lists, runs and stacks.

use super::*;
use concentric_http::ui_messages::UiMessagesLayer;
use http_body_util::BodyExt;

#[tokio::test]
async fn runs_are_listed_by_their_state() {
    let site = Site::new(Model::pays(&json!({"amount": 5})));
    site.start("", "r").await;
    let ann = all("ann");
    let waiting = site.page(&ann, "/?show=waiting").await;
    assert!(
        waiting.contains(">r</a>") && waiting.contains("badge waiting"),
        "{waiting}"
    );
    for show in ["/", "/?show=ended"] {
        let page = site.page(&ann, show).await;
        assert!(!page.contains(">r</a>"), "{page}");
        assert!(page.contains("data-count=\"waiting\">1<"), "{page}");
    }
    let approvals = site.page(&ann, "/approvals").await;
    let form = Form::deciding(&approvals, "approve");
    assert_eq!(site.post(&ann, &form).await.status, 303);
    site.follow(&ann).await;
    let ended = site.page(&ann, "/?show=ended").await;
    assert!(
        ended.contains(">r</a>") && ended.contains("<td>clerk</td>"),
        "{ended}"
    );
    assert!(ended.contains("data-count=\"waiting\">0<"), "{ended}");
}

#[tokio::test]
async fn a_list_has_pages_of_fifty() {
    let site = Site::new(Model::writes("Hello."));
    for n in 0..120 {
        site.start("", &format!("r{n:03}")).await;
    }
    let ann = all("ann");
    let rows = |page: &str| page.matches("<th scope=\"row\">").count();
    let mut seen = Vec::new();
    for (page, expected) in [("1", 50), ("2", 50), ("3", 20), ("99", 20)] {
        let page = site.page(&ann, &format!("/?show=ended&page={page}")).await;
        assert_eq!(rows(&page), expected);
        assert!(page.contains("of 3</span>"), "{page}");
        seen.push(page);
    }
    assert!(!seen[0].contains(">Newer</a>") && seen[0].contains(">Older</a>"));
    assert!(seen[1].contains(">Newer</a>") && seen[1].contains(">Older</a>"));
    for page in ["0", "x", "-1"] {
        let answer = site.get(&ann, &format!("/?page={page}")).await;
        assert_eq!(answer.status, 404);
    }
}

#[tokio::test]
async fn a_live_run_is_followed_from_its_page_on() {
    let site = Site::new(Model::writes("Hello.").endless());
    let run = site.start_endless("", "r").await;
    let ann = all("ann");
    let list = site.page(&ann, "/").await;
    assert!(
        list.contains(">r</a>") && list.contains("badge running"),
        "{list}"
    );
    assert!(list.contains("<td>clerk</td>"), "{list}");
    let page = site.page(&ann, RUN).await;
    assert!(
        page.contains("Hello.") && page.contains("http-equiv=\"refresh\""),
        "{page}"
    );
    // The layers around the model are marked.
    assert!(
        page.contains("<dd id=\"at\">the model answers</dd>"),
        "{page}"
    );
    let rings: Vec<&str> = page.split("<rect").skip(1).collect();
    let marked = |place| {
        let mut of = rings.iter().filter(|ring| ring.contains(place)).peekable();
        of.peek().is_some() && of.all(|ring| ring.contains(" now\""))
    };
    assert!(marked("data-at=\"model\""), "{page}");
    assert!(
        !marked("data-at=\"round\"") && !marked("data-at=\"\""),
        "{page}"
    );
    let events = page.split("data-events=\"/console").nth(1).unwrap();
    let events = events.split('"').next().unwrap().replace("&amp;", "&");
    let form = Form::with(&page, "Cancel the run");
    assert_eq!(site.post(&ann, &form).await.status, 303);
    // What the page has is not sent again.
    let events = site.page(&ann, &events).await;
    assert!(
        !events.contains("Hello.") && events.contains("\"end\""),
        "{events}"
    );
    let id = events.split("id: ").last().unwrap().lines().next().unwrap();
    let mut request = get("/run/events?tenant=&thread=t&run=r&after=1");
    request
        .headers_mut()
        .insert("last-event-id", id.parse().unwrap());
    assert_eq!(site.send(Some(&ann), request).await.status, 204);
    drop(run);
}

#[tokio::test]
async fn a_list_tells_of_its_changes() {
    let site = Site::new(Model::writes("Hello."));
    let ann = all("ann");
    let page = site.page(&ann, "/?show=ended").await;
    let known = page
        .split("data-list=\"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap()
        .to_owned();
    let mut request = get("/changes?show=ended");
    request.extensions_mut().insert(ann.clone());
    let response = site.console.clone().oneshot(request).await.unwrap();
    let mut body = Box::pin(response.into_body());
    let mut next = async || {
        let frame = body.frame().await.unwrap().unwrap();
        let text = String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap();
        let json = text.strip_prefix("data: ").unwrap();
        serde_json::from_str::<Value>(json).unwrap()
    };
    let first = next().await;
    assert_eq!(
        (first["list"].as_str(), first["counts"]["ended"].as_str()),
        (Some(&*known), Some("0"))
    );
    site.start("", "r").await;
    let second = next().await;
    assert_ne!(second["list"].as_str(), Some(&*known));
    assert_eq!(second["counts"]["ended"], "1");
}

#[tokio::test]
async fn at_most_two_hundred_streams_are_open() {
    let site = Site::new(Model::writes("Hello."));
    let open = async || {
        let mut request = get("/changes");
        request.extensions_mut().insert(all("ann"));
        site.console.clone().oneshot(request).await.unwrap()
    };
    let mut streams = Vec::new();
    for _ in 0..200 {
        streams.push(open().await);
    }
    assert_eq!(open().await.status(), 429);
    streams.pop();
    assert_eq!(open().await.status(), 200);
}

#[tokio::test]
async fn a_stack_is_shown_as_rings_and_as_a_list() {
    let site = Site::new(Model::writes("Hello."));
    let page = site.page(&all("ann"), "/stacks").await;
    let rings = page.matches("<rect").count();
    assert_eq!(rings, page.matches("<li><span class=\"place").count());
    for layer in ["Detach", "EventLog", "Suspend", "Agent", "Toolset"] {
        assert!(page.contains(&format!("<code>{layer}")), "{layer}: {page}");
    }
    assert!(rings >= 5, "{page}");
}

#[tokio::test]
async fn a_console_without_stores_has_empty_pages() {
    let console = Console::authorize(|_| async { Some(all("ann")) })
        .path("/")
        .title("Clerk");
    for path in [
        "/",
        "/?show=waiting",
        "/?show=ended",
        "/approvals",
        "/stacks",
        "/usage",
    ] {
        let answer = send(console.clone(), get(path)).await;
        assert_eq!(answer.status, 200, "{path}");
        assert!(answer.body.contains("class=\"empty\""), "{}", answer.body);
        assert!(
            answer.body.contains("href=\"/approvals\""),
            "{}",
            answer.body
        );
    }
    let answer = send(console.clone(), get("/run?tenant=&thread=t&run=r")).await;
    assert_eq!(answer.status, 404);
    let mut request = get("/");
    *request.method_mut() = http::Method::HEAD;
    let head = send(console.clone(), request).await;
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    let mut request = get("/");
    *request.method_mut() = http::Method::PUT;
    let put = send(console, request).await;
    assert_eq!(put.status, 405);
    assert_eq!(put.headers["allow"], "GET, HEAD");
}

#[tokio::test]
async fn a_run_of_use_chat_has_an_outcome() {
    let site = Site::new(Model::writes("Hello."));
    let input = json!({"id": "t", "messages": [
        {"id": "u", "role": "user", "parts": [{"type": "text", "text": "hi"}]}]});
    let service = UiMessagesLayer::new().layer(site.agent.clone());
    send(service, post(input.to_string())).await;
    let page = site.page(&all("ann"), "/?show=ended").await;
    assert!(page.contains("ended: stop"), "{page}");
}

#[tokio::test]
async fn tokens_and_their_cost_are_summed() {
    let mut site = Site::new(Model::writes("Hello."));
    for run in ["r", "s"] {
        site.start("", run).await;
    }
    let input = json!({"id": "t", "messages": [
        {"id": "u", "role": "user", "parts": [{"type": "text", "text": "hi"}]}]});
    let service = UiMessagesLayer::new().layer(site.agent.clone());
    send(service, post(input.to_string())).await;
    let ann = all("ann");
    let counts = |calls: u64| {
        let (input, output) = (3 * calls, 2 * calls);
        format!("<td>{calls}</td><td>{input}</td><td>0</td><td>{output}</td><td>0</td>")
    };
    let agent = |agent: &str, runs: u64, rest: &str| {
        format!(
            "<tr><td>{agent}</td><td>{runs}</td>{}{rest}</tr>",
            counts(runs)
        )
    };
    let page = site.page(&ann, "/usage").await;
    let model = format!("<tr><td>–</td><td>–</td>{}</tr>", counts(3));
    for row in [agent("clerk", 2, ""), agent("–", 1, ""), model] {
        assert!(page.contains(&row), "{row}: {page}");
    }
    assert!(!site.page(&ann, RUN).await.contains("<dt>Cost</dt>"));
    let cost = |usage: &RunUsage| usage.total().input_tokens().map(|it| format!("{it} <EUR>"));
    site.console = site.console.cost(cost);
    let page = site.page(&ann, "/usage").await;
    let row = agent("clerk", 2, "<td>6 &lt;EUR&gt;</td>");
    assert!(page.contains(&row), "{page}");
    let page = site.page(&ann, RUN).await;
    assert!(
        page.contains("<dt>Cost</dt><dd>3 &lt;EUR&gt;</dd>"),
        "{page}"
    );
    site.console = site.console.cost(|_| None);
    let page = site.page(&ann, "/usage").await;
    assert!(
        page.contains(&agent("clerk", 2, "<td>unknown</td>")),
        "{page}"
    );
    assert!(!site.page(&ann, RUN).await.contains("<dt>Cost</dt>"));
    // Those of another tenant are not counted.
    let other = Operator::new("eve", [Tenant("other".into())]);
    let page = site.page(&other, "/usage").await;
    assert!(page.contains("No run has"), "{page}");
}

#[tokio::test]
async fn the_tokens_before_an_approval_are_counted() {
    let mut site = Site::new(Model::pays(&json!({"amount": 5})));
    let cost = |usage: &RunUsage| usage.total().input_tokens().map(|it| format!("{it} EUR"));
    site.console = site.console.cost(cost);
    site.start("", "r").await;
    let ann = all("ann");
    let page = site.page(&ann, RUN).await;
    assert!(page.contains("<dt>Cost</dt><dd>3 EUR</dd>"), "{page}");
    let approvals = site.page(&ann, "/approvals").await;
    let form = Form::deciding(&approvals, "approve");
    assert_eq!(site.post(&ann, &form).await.status, 303);
    site.follow(&ann).await;
    let page = site.page(&ann, RUN).await;
    assert!(page.contains("<dt>Cost</dt><dd>6 EUR</dd>"), "{page}");
    let page = site.page(&ann, "/usage").await;
    assert!(page.contains("<td>1</td><td>2</td><td>6</td>"), "{page}");
}
