//! Requests that must be refused.

use super::*;
use concentric_http::Shutdown;
use concentric_test::TestEnvironment;
use http::HeaderMap;
use std::{net::SocketAddr, time::Duration};

/// A site with a run that waits, and the form that approves its call.
async fn waiting() -> (Site, Form) {
    let site = Site::new(Model::pays(&json!({"amount": 5})));
    site.start("", "r").await;
    let page = site.page(&all("ann"), "/approvals").await;
    let form = Form::deciding(&page, "approve");
    (site, form)
}

#[track_caller]
fn is_secure(headers: &HeaderMap) {
    let policy = headers["content-security-policy"].to_str().unwrap();
    assert!(
        policy.starts_with("default-src 'none'; script-src 'self'; "),
        "{policy}"
    );
    assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
    assert!(
        policy.contains("require-trusted-types-for 'script'"),
        "{policy}"
    );
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(headers["x-content-type-options"], "nosniff");
    assert_eq!(headers["referrer-policy"], "no-referrer");
    assert!(headers.contains_key("cache-control"));
}

#[tokio::test]
async fn every_response_has_the_headers() {
    let (site, form) = waiting().await;
    let ann = all("ann");
    for path in [
        "/",
        "/approvals",
        "/stacks",
        RUN,
        "/none",
        "/run",
        "/assets/none",
    ] {
        let answer = site.get(&ann, path).await;
        is_secure(&answer.headers);
        assert_eq!(answer.headers["cache-control"], "no-store", "{path}");
    }
    is_secure(&site.send(None, get("/")).await.headers);
    is_secure(&site.post(&ann, &form).await.headers);
    site.follow(&ann).await;
    let events = site.get(&ann, "/run/events?tenant=&thread=t&run=r").await;
    is_secure(&events.headers);
    assert_eq!(events.headers["cache-control"], "no-store");
}

#[tokio::test]
async fn nothing_is_shown_without_an_operator() {
    let (site, form) = waiting().await;
    let paths = ["/", "/approvals", "/stacks", "/changes", RUN];
    for path in paths
        .into_iter()
        .chain(["/run/events?tenant=&thread=t&run=r"])
    {
        let answer = site.send(None, get(path)).await;
        assert_eq!(answer.status, 403, "{path}");
        assert!(!answer.body.contains("amount"), "{path}");
    }
    assert_eq!(site.send(None, form.request()).await.status, 403);
    assert!(site.paid.lock().unwrap().is_empty());
}

#[tokio::test]
async fn assets_are_the_only_cached_responses() {
    let (site, _) = waiting().await;
    let page = site.page(&all("ann"), "/").await;
    let links = page.split("\"/console").skip(1);
    let links = links.map(|link| link.split('"').next().unwrap());
    let assets: Vec<&str> = links.filter(|link| link.starts_with("/assets/")).collect();
    assert_eq!(assets.len(), 2, "{page}");
    for asset in assets {
        let answer = site.send(None, get(asset)).await;
        assert_eq!(answer.status, 200);
        assert!(
            answer.body.len() <= 30 << 10,
            "{asset}: {}",
            answer.body.len()
        );
        let caching = answer.headers["cache-control"].to_str().unwrap();
        assert!(caching.contains("immutable"), "{caching}");
        is_secure(&answer.headers);
    }
}

#[tokio::test]
async fn an_unlisted_host_is_refused() {
    let (mut site, form) = waiting().await;
    let ann = all("ann");
    site.console = site.console.clone().host("ops.example.com");
    for (host, status) in [
        ("localhost", 200),
        ("127.0.0.1:9", 200),
        ("[::1]:8080", 200),
        ("ops.example.com", 200),
        ("OPS.example.com.:443", 200),
        ("evil.example", 421),
        ("ops.example.com.evil.example", 421),
        ("localhost.evil.example", 421),
        ("", 421),
        ("user@evil.example", 421),
    ] {
        let mut request = get("/");
        request.headers_mut().insert("host", host.parse().unwrap());
        assert_eq!(
            site.send(Some(&ann), request).await.status,
            status,
            "{host}"
        );
    }
    let mut request = get("/");
    request.headers_mut().remove("host");
    assert_eq!(site.send(Some(&ann), request).await.status, 421);
    let mut request = form.request();
    let evil = "evil.example".parse().unwrap();
    request.headers_mut().insert("host", evil);
    assert_eq!(site.send(Some(&ann), request).await.status, 421);
}

#[tokio::test]
async fn a_form_of_another_site_is_refused() {
    let (site, form) = waiting().await;
    let ann = all("ann");
    let own = "http://localhost:8080";
    for (site_of, origin) in [
        (Some("cross-site"), Some(own)),
        (Some("same-site"), Some(own)),
        (Some("none"), None),
        (Some("same-origin"), Some("https://evil.example")),
        (Some("same-origin"), Some("http://localhost:8081")),
        (None, None),
        (None, Some("null")),
        (None, Some("https://evil.example")),
        (None, Some("http://localhost")),
        (None, Some("http://localhost:8080.evil.example")),
    ] {
        let mut request = form.request();
        let headers = request.headers_mut();
        for (name, value) in [("sec-fetch-site", site_of), ("origin", origin)] {
            headers.remove(name);
            if let Some(value) = value {
                headers.insert(name, value.parse().unwrap());
            }
        }
        let answer = site.send(Some(&ann), request).await;
        assert_eq!(answer.status, 403, "{site_of:?} {origin:?}");
    }
    // Two values are none that is accepted.
    let mut request = form.request();
    let other = "cross-site".parse().unwrap();
    request.headers_mut().append("sec-fetch-site", other);
    assert_eq!(site.send(Some(&ann), request).await.status, 403);
    // Another type of content needs no form, and a link can't change anything.
    let mut request = form.request();
    let text = "text/plain".parse().unwrap();
    request.headers_mut().insert("content-type", text);
    assert_eq!(site.send(Some(&ann), request).await.status, 415);
    assert_eq!(site.get(&ann, "/approvals/reply").await.status, 405);
    assert_eq!(site.get(&ann, "/run/cancel").await.status, 405);
    assert!(site.paid.lock().unwrap().is_empty());
    // A browser that does not send `Sec-Fetch-Site`.
    let mut request = form.request();
    request.headers_mut().remove("sec-fetch-site");
    request.headers_mut().insert("origin", own.parse().unwrap());
    assert_eq!(site.send(Some(&ann), request).await.status, 303);
}

#[tokio::test]
async fn a_token_is_valid_for_its_operator_and_form() {
    let (site, form) = waiting().await;
    let ann = all("ann");
    let others = [
        all("bob"),
        all("ann").session("another login"),
        all("an").session("n"),
    ];
    for operator in others {
        assert_eq!(site.post(&operator, &form).await.status, 403);
    }
    let run = Form::deciding(&site.page(&ann, RUN).await, "approve");
    let token = |form: &Form| form.fields[0].1.clone();
    assert_eq!(form.fields[0].0, "token");
    let until = token(&form).split('.').next().unwrap().to_owned();
    for forged in [
        "",
        ".",
        "x",
        &until,
        &format!("{until}."),
        &format!("9{}", token(&form)),
    ] {
        let answer = site.post(&ann, &form.clone().and("token", forged)).await;
        assert_eq!(answer.status, 403, "{forged}");
    }
    // For another call, or another run.
    for (field, value) in [
        ("digest", "AAAA"),
        ("interrupt", "other"),
        ("run", "s"),
        ("thread", "u"),
    ] {
        let fields = form.fields.iter().cloned().map(|(name, known)| {
            let value = if name == field {
                value.to_owned()
            } else {
                known
            };
            (name, value)
        });
        let changed = Form {
            action: form.action.clone(),
            fields: fields.collect(),
        };
        assert_eq!(site.post(&ann, &changed).await.status, 403, "{field}");
    }
    // To cancel the run.
    let cancel = Form {
        action: "/console/run/cancel".to_owned(),
        ..form.clone()
    };
    assert_eq!(site.post(&ann, &cancel).await.status, 403);
    // Of another process, without a shared secret.
    let other = Site::new(Model::pays(&json!({"amount": 5})));
    other.start("", "r").await;
    assert_eq!(other.post(&ann, &form).await.status, 403);
    assert!(site.paid.lock().unwrap().is_empty());
    // The form of the run's page is as good, once.
    assert_eq!(site.post(&ann, &run).await.status, 303);
    site.follow(&ann).await;
    assert_eq!(site.post(&ann, &run).await.status, 409);
    assert_eq!(site.paid.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_token_expires() {
    let (mut site, _) = waiting().await;
    let test = TestEnvironment::new();
    site.console = site.console.clone().environment(test.environment());
    let ann = all("ann");
    let form = Form::deciding(&site.page(&ann, "/approvals").await, "approve");
    test.advance(Duration::from_secs(12 * 60 * 60 + 1));
    let answer = site.post(&ann, &form).await;
    assert_eq!(answer.status, 403);
    assert!(
        answer.body.contains("not valid any more"),
        "{}",
        answer.body
    );
}

#[tokio::test]
async fn processes_with_one_secret_accept_each_others_forms() {
    let (mut site, _) = waiting().await;
    let mut other = Site::new(Model::pays(&json!({"amount": 5})));
    site.console = site.console.clone().secret([7; 32]);
    other.console = site.console.clone().secret([7; 32]);
    let ann = all("ann");
    let form = Form::deciding(&site.page(&ann, "/approvals").await, "approve");
    assert_eq!(other.post(&ann, &form).await.status, 303);
    other.console = other.console.clone().secret([8; 32]);
    assert_eq!(other.post(&ann, &form).await.status, 403);
}

#[tokio::test]
async fn runs_of_another_tenant_do_not_exist() {
    let site = Site::new(Model::pays(&json!({"amount": 5})));
    site.start("acme", "r").await;
    let tenants = |names: &[&str]| {
        names
            .iter()
            .map(|name| Tenant((*name).into()))
            .collect::<Vec<_>>()
    };
    let of = |names: &[&str]| {
        Operator::new("ann", tenants(names))
            .content()
            .decide()
            .cancel()
    };
    let own = of(&["acme", "other"]);
    let page = site.page(&own, "/approvals").await;
    let form = Form::deciding(&page, "approve");
    for operator in [of(&["other"]), of(&[]), of(&["acm"]), of(&[""])] {
        for path in ["/run?", "/run/events?"] {
            let theirs = site
                .get(&operator, &format!("{path}tenant=acme&thread=t&run=r"))
                .await;
            let none = site
                .get(&operator, &format!("{path}tenant=acme&thread=t&run=none"))
                .await;
            assert_eq!((theirs.status, none.status), (404, 404));
            assert_eq!(theirs.body, none.body);
        }
        for path in ["/", "/?show=waiting", "/?show=ended", "/approvals"] {
            let page = site.page(&operator, path).await;
            assert!(!page.contains("acme") && !page.contains(">r<"), "{page}");
        }
        assert_eq!(site.post(&operator, &form).await.status, 404);
        let cancel = Form {
            action: "/console/run/cancel".to_owned(),
            ..form.clone()
        };
        assert_eq!(site.post(&operator, &cancel).await.status, 404);
    }
    assert!(site.paid.lock().unwrap().is_empty());
    assert_eq!(site.post(&own, &form).await.status, 303);
}

#[tokio::test]
async fn only_this_machine_reaches_a_loopback_console() {
    let peer = |request: &http::request::Parts| request.extensions.get::<SocketAddr>().copied();
    let console = Console::loopback_only(peer, all("me"));
    let status = async |address: Option<&str>, header: Option<&'static str>| {
        let mut request = get("/");
        if let Some(address) = address {
            let address: SocketAddr = address.parse().unwrap();
            request.extensions_mut().insert(address);
        }
        if let Some(name) = header {
            let far = "192.0.2.1".parse().unwrap();
            request.headers_mut().insert(name, far);
        }
        send(console.clone(), request).await.status
    };
    for near in [
        "127.0.0.1:9",
        "127.9.9.9:9",
        "[::1]:9",
        "[::ffff:127.0.0.1]:9",
    ] {
        assert_eq!(status(Some(near), None).await, 200, "{near}");
    }
    for far in [
        "192.0.2.1:9",
        "10.0.0.1:9",
        "0.0.0.0:9",
        "[::ffff:192.0.2.1]:9",
        "[fe80::1]:9",
    ] {
        assert_eq!(status(Some(far), None).await, 403, "{far}");
    }
    assert_eq!(status(None, None).await, 403);
    for header in [
        "forwarded",
        "via",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-proto",
        "x-real-ip",
    ] {
        assert_eq!(
            status(Some("127.0.0.1:9"), Some(header)).await,
            403,
            "{header}"
        );
    }
}

#[tokio::test]
async fn a_form_that_is_too_large_is_refused() {
    let (site, form) = waiting().await;
    let large = form.and("reason", &"x".repeat(3 << 20));
    assert_eq!(site.post(&all("ann"), &large).await.status, 413);
}

#[tokio::test]
async fn a_panic_of_the_host_is_an_error_page() {
    let console = Console::authorize(|_| async { panic!("secret") });
    let answer = send(console, get("/")).await;
    assert_eq!(answer.status, 500);
    assert!(!answer.body.contains("secret"));
    is_secure(&answer.headers);
}

#[tokio::test(start_paused = true)]
async fn a_stream_ends_so_that_its_operator_is_found_again() {
    let site = Site::new(Model::writes("Hello.").endless());
    let run = site.start_endless("", "r").await;
    let ann = all("ann");
    assert!(site.follow(&ann).await.contains("Hello."));
    assert!(site.page(&ann, "/changes").await.contains("counts"));
    drop(run);
}

#[tokio::test]
async fn the_stream_of_a_list_ends_when_a_shutdown_begins() {
    let mut site = Site::new(Model::writes("Hello."));
    let shutdown = Shutdown::new();
    site.console = site.console.clone().shutdown(shutdown.clone());
    let mut request = get("/changes");
    request.extensions_mut().insert(all("ann"));
    let body = site.console.clone().oneshot(request).await.unwrap();
    shutdown.begin(Duration::from_secs(3600));
    let body = body.into_body();
    http_body_util::BodyExt::collect(body).await.unwrap();
    shutdown.drained().await;
}
