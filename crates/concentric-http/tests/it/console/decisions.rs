//! Decisions that apply to further calls.

use super::*;
use concentric_core::{
    ThreadId,
    store::{Decisions, StoredDecision, StoredScope},
};
use std::time::{Duration, SystemTime};

/// A site whose console shows decisions.
fn site() -> Site {
    let mut site = Site::new(Model::pays(&json!({"amount": 5})));
    site.console = site.console.decisions(site.store.clone());
    site
}

async fn decide(site: &Site, tenant: &str, tool: &str, span: StoredScope, reason: Option<&str>) {
    let decision = StoredDecision::new(
        Tenant(tenant.into()),
        tool.to_owned().into(),
        "definition".into(),
        None,
        span,
        reason.is_none(),
        reason.map(|reason| reason.to_owned().into()),
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000),
    );
    site.store.remember(decision).await.unwrap();
}

#[tokio::test]
async fn a_revoked_decision_applies_to_no_further_call() {
    let site = site();
    site.start("", "r").await;
    let ann = all("ann");
    let page = site.page(&ann, "/approvals").await;
    let form = Form::deciding(&page, "approve").and("remember", "tool-always");
    assert_eq!(site.post(&ann, &form).await.status, 303);
    site.follow(&ann).await;
    assert!(site.start("", "next").await.contains("[Done: paid"));
    let page = site.page(&ann, "/decisions").await;
    assert!(page.contains("<code>pay</code>"), "{page}");
    assert!(
        page.contains("always, to all users of the tenant"),
        "{page}"
    );
    let form = Form::with(&page, "Revoke");
    let answer = site.post(&ann, &form).await;
    assert_eq!(answer.status, 303, "{}", answer.body);
    assert_eq!(answer.headers["location"], "/console/decisions?tenant=");
    let page = site.page(&ann, "/decisions?tenant=").await;
    assert!(page.contains("No decision applies"), "{page}");
    assert_eq!(site.post(&ann, &form).await.status, 409);
    let events = site.start("", "later").await;
    assert!(!events.contains("[Done: paid"), "{events}");
    assert_eq!(site.paid.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn only_those_who_may_revoke_decisions() {
    let site = site();
    let odd = "t\"'><script>\n%";
    let thread = StoredScope::Thread(ThreadId::new(odd));
    decide(&site, "", "pay", thread, Some("a secret reason")).await;
    decide(&site, "", "sell", StoredScope::Always, None).await;
    decide(&site, "other", "theirs", StoredScope::Always, None).await;
    let ann = all("ann");
    let page = site.page(&ann, "/decisions").await;
    assert!(page.contains("a secret reason"), "{page}");
    assert!(
        !page.contains("theirs") && !page.contains("<script>"),
        "{page}"
    );
    let pay = Form::with(&page, "about pay");
    let sell = Form::with(&page, "about sell");

    let without = Operator::new("ann", [Tenant::default()]).decide();
    let plain = site.page(&without, "/decisions").await;
    assert!(plain.contains("<code>pay</code>"), "{plain}");
    assert!(
        !plain.contains("a secret reason") && !plain.contains("Revoke"),
        "{plain}"
    );
    assert_eq!(site.post(&without, &pay).await.status, 403);
    assert_eq!(site.post(&all("bob"), &pay).await.status, 403);
    // The token of another decision.
    let (_, token) = &sell.fields[0];
    let mixed = pay.clone().and("token", token);
    assert_eq!(site.post(&ann, &mixed).await.status, 403);
    for tenant in ["other", "%00"] {
        let form = pay.clone().and("tenant", tenant);
        assert_eq!(site.post(&ann, &form).await.status, 404, "{tenant}");
    }
    let mut request = pay.request();
    let headers = request.headers_mut();
    headers.insert("sec-fetch-site", "cross-site".parse().unwrap());
    assert_eq!(site.send(Some(&ann), request).await.status, 403);
    assert_eq!(site.get(&ann, "/decisions?tenant=other").await.status, 404);
    assert_eq!(site.get(&ann, "/decisions?page=0").await.status, 404);
    assert_eq!(site.get(&ann, "/decisions/revoke").await.status, 405);
    assert_eq!(site.store.list(Tenant::default()).await.unwrap().len(), 2);

    // One of all tenants sees one at a time.
    let both = Operator::new("ann", [Tenant::default(), Tenant("other".into())]).remember();
    let page = site.page(&both, "/decisions?tenant=other").await;
    assert!(
        page.contains("theirs") && !page.contains("about pay"),
        "{page}"
    );
    assert_eq!(site.post(&ann, &pay).await.status, 303);
    let left = site.store.list(Tenant::default()).await.unwrap();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].tool, "sell");

    let none = Site::new(Model::writes("x"));
    assert_eq!(none.get(&ann, "/decisions").await.status, 404);
    assert_eq!(none.post(&ann, &sell).await.status, 403);
    assert!(!none.page(&ann, "/").await.contains("/decisions"));
}

#[tokio::test]
async fn decisions_are_listed_in_pages() {
    let site = site();
    for n in 0..450 {
        let tool = format!("tool{n:03}");
        decide(&site, "", &tool, StoredScope::Always, None).await;
    }
    let (ann, mut seen) = (all("ann"), Vec::new());
    for (number, rows) in [("1", 200), ("2", 200), ("3", 50), ("4", 0)] {
        let page = site.page(&ann, &format!("/decisions?page={number}")).await;
        let shown = page.split("<th scope=\"row\"><code>").skip(1);
        let shown: Vec<_> = shown
            .map(|row| row.split('<').next().unwrap().to_owned())
            .collect();
        assert_eq!(shown.len(), rows);
        assert_eq!(page.contains(">Older</a>"), rows == 200, "{page}");
        assert_eq!(page.contains(">Newer</a>"), number != "1", "{page}");
        seen.extend(shown);
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 450);
    let last = usize::MAX.to_string();
    assert_eq!(
        site.get(&ann, &format!("/decisions?page={last}"))
            .await
            .status,
        200
    );
}
