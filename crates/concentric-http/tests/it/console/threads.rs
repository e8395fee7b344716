//! Conversations.

use super::*;
use concentric_core::{
    Message, ThreadId,
    store::{ThreadChange, ThreadStore},
};
use std::collections::BTreeSet;

/// A site whose console shows conversations.
fn site() -> Site {
    let mut site = Site::new(Model::pays(&json!({"amount": 5})));
    site.console = site.console.threads(site.store.clone());
    site
}

async fn write(site: &Site, tenant: &str, thread: &str, texts: impl Iterator<Item = String>) {
    let mut change = ThreadChange::default();
    change.turns = texts.map(Turn::user).collect();
    let tenant = Tenant(tenant.into());
    let appended = site.store.append(tenant, ThreadId::new(thread), 0, change);
    appended.await.unwrap();
}

#[tokio::test]
async fn conversations_are_listed_newest_first_in_pages() {
    let site = site();
    for n in 0..120 {
        write(
            &site,
            "",
            &format!("t{n:03}"),
            [format!("text {n}")].into_iter(),
        )
        .await;
    }
    let ann = all("ann");
    let mut path = "/threads".to_owned();
    let mut seen = Vec::new();
    loop {
        let page = site.page(&ann, &path).await;
        assert!(!page.contains("text "), "{page}");
        let rows = page.split("<th scope=\"row\">").skip(1);
        let names = rows.map(|row| row.split('>').nth(1).unwrap().split('<').next().unwrap());
        seen.push(names.map(str::to_owned).collect::<Vec<_>>());
        let Some((before, _)) = page.split_once("\">Older</a>") else {
            assert!(page.contains(">Newest</a>"), "{page}");
            break;
        };
        let link = before.rsplit('"').next().unwrap().replace("&amp;", "&");
        path = link.strip_prefix("/console").unwrap().to_owned();
    }
    assert_eq!(seen.iter().map(Vec::len).collect::<Vec<_>>(), [50, 50, 20]);
    let expected: Vec<_> = (0..120).rev().map(|n| format!("t{n:03}")).collect();
    assert_eq!(seen.concat(), expected);
    assert_eq!(site.get(&ann, "/threads?before=x").await.status, 400);
}

#[tokio::test]
async fn a_conversation_has_pages_of_turns() {
    let site = site();
    write(&site, "", "t", (0..450).map(|n| format!("text {n}."))).await;
    let ann = all("ann");
    let page = site.page(&ann, "/thread?tenant=&thread=t").await;
    for text in [
        "251 to 450 of 450",
        "text 250.",
        "text 449.",
        ">Earlier</a>",
    ] {
        assert!(page.contains(text), "{text}: {page}");
    }
    for text in ["text 249.", ">Later</a>"] {
        assert!(!page.contains(text), "{text}: {page}");
    }
    assert!(page.contains("start=50\">Earlier"), "{page}");
    let page = site.page(&ann, "/thread?tenant=&thread=t&start=50").await;
    for text in [
        "51 to 250 of 450",
        "text 50.",
        "text 249.",
        "start=0\">Earlier",
        "start=250\">Later",
    ] {
        assert!(page.contains(text), "{text}: {page}");
    }
    for (start, shown) in [("450", true), ("18446744073709551615", true), ("-1", false)] {
        let answer = site
            .get(&ann, &format!("/thread?tenant=&thread=t&start={start}"))
            .await;
        assert_eq!(answer.status, if shown { 200 } else { 400 }, "{start}");
        assert_eq!(answer.body.contains("no turns here"), shown, "{start}");
    }
}

#[tokio::test]
async fn each_turn_of_a_large_conversation_is_on_a_page() {
    let site = site();
    let text = "x".repeat(64 << 10);
    write(
        &site,
        "",
        "t",
        (0..300).map(|n| format!("text {n}. {text}")),
    )
    .await;
    let ann = all("ann");
    let mut seen = BTreeSet::new();
    let mut path = "/thread?tenant=&thread=t".to_owned();
    let mut is_earliest = false;
    loop {
        let page = site.page(&ann, &path).await;
        // Once through the page, which is long.
        let shown = page.split("text ");
        let shown = shown.filter_map(|it| it.split_once(". ")?.0.parse().ok());
        let shown: BTreeSet<usize> = shown.collect();
        let (first, last) = (shown.first().unwrap() + 1, shown.last().unwrap() + 1);
        assert!(
            page.contains(&format!("{first} to {last} of 300")),
            "{shown:?}"
        );
        seen.extend(shown);
        is_earliest |= !page.contains("\">Earlier</a>");
        let link = if is_earliest {
            "\">Later</a>"
        } else {
            "\">Earlier</a>"
        };
        let Some((before, _)) = page.split_once(link) else {
            break;
        };
        let link = before.rsplit('"').next().unwrap().replace("&amp;", "&");
        path = link.strip_prefix("/console").unwrap().to_owned();
    }
    assert_eq!(seen.len(), 300);
}

#[tokio::test]
async fn a_conversation_links_its_runs_and_they_link_it() {
    let site = site();
    write(&site, "", "t", ["hi".to_owned()].into_iter()).await;
    site.start("", "r").await;
    let ann = all("ann");
    let page = site.page(&ann, "/thread?tenant=&thread=t").await;
    assert!(
        page.contains(">r</a> <span class=\"badge waiting\">"),
        "{page}"
    );
    let page = site.page(&ann, RUN).await;
    assert!(
        page.contains("/console/thread?tenant=&amp;thread=t\">t</a>"),
        "{page}"
    );
}

#[tokio::test]
async fn content_and_conversations_of_other_tenants_are_hidden() {
    let site = site();
    write(&site, "acme", "t", ["secret".to_owned()].into_iter()).await;
    write(&site, "other", "theirs", ["secret".to_owned()].into_iter()).await;
    let tenants = ["acme", "beta"].map(|name| Tenant(name.into()));
    let ann = Operator::new("ann", tenants);
    let list = site.page(&ann, "/threads").await;
    assert!(
        list.contains(">t</a>") && !list.contains("theirs"),
        "{list}"
    );
    assert!(list.contains("tenant=beta\">beta</a>"), "{list}");
    let empty = site.page(&ann, "/threads?tenant=beta").await;
    assert!(empty.contains("No conversations"), "{empty}");
    let page = site.page(&ann, "/thread?tenant=acme&thread=t").await;
    assert!(
        page.contains("(content hidden)") && !page.contains("secret"),
        "{page}"
    );
    let page = site
        .page(&ann.clone().content(), "/thread?tenant=acme&thread=t")
        .await;
    assert!(page.contains("secret"), "{page}");
    for path in [
        "/threads?tenant=other",
        "/thread?tenant=other&thread=theirs",
        "/thread?tenant=acme&thread=theirs",
        "/thread?tenant=acme&thread=%00",
        "/thread?tenant=acme",
    ] {
        assert_eq!(site.get(&ann, path).await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn hostile_names_and_turns_are_never_markup() {
    const HOSTILE: &str = "<script>\"'&\u{202e}";
    let site = site();
    let message = Message::assistant(HOSTILE);
    let mut change = ThreadChange::default();
    change.turns = vec![Turn::user(HOSTILE), Turn::message(message).unwrap()];
    let tenant = Tenant::default();
    let appended = site.store.append(tenant, ThreadId::new(HOSTILE), 0, change);
    appended.await.unwrap();
    let ann = all("ann");
    let list = site.page(&ann, "/threads").await;
    let link = list
        .split("<th scope=\"row\"><a href=\"/console")
        .nth(1)
        .unwrap();
    let link = link.split('"').next().unwrap().replace("&amp;", "&");
    for page in [list, site.page(&ann, &link).await] {
        assert!(
            page.contains("&lt;script&gt;&quot;&#39;&amp;\u{27e6}U+202E\u{27e7}"),
            "{page}"
        );
        assert!(
            !page.contains("<script>\"") && !page.contains('\u{202e}'),
            "{page}"
        );
    }
}

#[tokio::test]
async fn a_console_without_conversations_has_no_pages_of_them() {
    let site = Site::new(Model::writes("Hello."));
    let ann = all("ann");
    let page = site.page(&ann, "/").await;
    assert!(!page.contains("Conversations</a>"), "{page}");
    for path in ["/threads", "/thread?tenant=&thread=t"] {
        assert_eq!(site.get(&ann, path).await.status, 404, "{path}");
    }
}
