use super::*;
use concentric_core::{Arguments, CallId, Context, ToolCallPart};

fn call(name: &str) -> ToolCall {
    let part = ToolCallPart::new(CallId::new("c"), name, Arguments::new("{}"));
    ToolCall::new(part, Context::new())
}

fn now(matcher: impl Into<Matcher>, name: &str) -> Result<bool, String> {
    match matcher.into().evaluate(&call(name)) {
        Matched::Now(matched) => matched.map_err(|error| error.to_string()),
        Matched::Later(_) => Err("later".to_owned()),
    }
}

#[test]
fn a_star_is_any_run_of_characters() {
    for (pattern, text, fit) in [
        ("*", "", true),
        ("*", "a", true),
        ("**", "ab", true),
        ("a*", "a", true),
        ("a*", "ba", false),
        ("*a", "ba", true),
        ("*a", "ab", false),
        ("a*a", "a", false),
        ("a*a", "aa", true),
        ("a*b*c", "a__b__c", true),
        ("a*b*c", "acb", false),
        ("*ab*ab*", "abab", true),
        ("*ab*ab*", "aba", false),
        ("ä*ü", "äöü", true),
        ("fs__*", "fs__read", true),
        ("fs__*", "fs_read", false),
    ] {
        assert_eq!(fits(pattern, text), fit, "{pattern} {text}");
    }
    // Linear time: no backtracking.
    let pattern = "*a".repeat(10_000);
    let text = "a".repeat(1_000_000);
    assert!(!fits(&format!("{pattern}*b"), &text));
}

#[test]
fn a_list_matches_any_of_its_names_and_patterns() {
    assert_eq!(now(["refund", "pay_*"], "refund"), Ok(true));
    assert_eq!(now(["refund", "pay_*"], "pay_out"), Ok(true));
    assert_eq!(now(["refund", "pay_*"], "search"), Ok(false));
    assert_eq!(now(Vec::<Str>::new(), "search"), Ok(false));
    assert_eq!(now(Matcher::name("pay_*"), "pay_out"), Ok(false));
    assert_eq!(now(Matcher::name("pay_*"), "pay_*"), Ok(true));
}

#[test]
fn an_unknown_tool_has_the_most_restrictive_annotations() {
    assert_eq!(now(Matcher::effects(), "x"), Ok(true));
    assert_eq!(now(Matcher::read_only(), "x"), Ok(false));
    assert_eq!(now(Matcher::annotated(|a| a.destructive), "x"), Ok(true));
    assert_eq!(now(Matcher::group("g"), "x"), Ok(false));
}

#[test]
fn a_failed_predicate_matters_if_the_result_depends_on_it() {
    let fails = || Matcher::try_when(|_| Err("gone".into()));
    let panics = || Matcher::when(|call| call.name().is_empty() || panic!("secret"));
    assert_eq!(now(fails(), "x"), Err("gone".to_owned()));
    assert!(now(panics(), "x").unwrap_err().contains("panicked"));
    assert!(!now(panics(), "x").unwrap_err().contains("secret"));
    assert!(now(panics().not(), "x").is_err());
    assert_eq!(now(fails().or("x"), "x"), Ok(true));
    assert!(now(fails().or("y"), "x").is_err());
    assert_eq!(now(fails().and("y"), "x"), Ok(false));
    assert!(now(fails().and("x"), "x").is_err());
    assert_eq!(now(Matcher::from("x").or(fails()), "x"), Ok(true));
}

#[tokio::test]
async fn an_asynchronous_predicate_runs_if_the_result_depends_on_it() {
    let long = || Matcher::when_async(async |call: ToolCall| Ok(call.name().len() > 3));
    assert_eq!(now(Matcher::from("no").and(long()), "x"), Ok(false));
    assert_eq!(now(Matcher::from("x").or(long()), "x"), Ok(true));
    for (matcher, name, matched) in [
        (long(), "long", true),
        (long().not(), "long", false),
        (long().and("l*"), "long", true),
        (long().and("x"), "long", false),
        (long().or("x"), "x", true),
        (long().or(long()), "x", false),
    ] {
        let later = matcher.evaluate(&call(name));
        assert!(matches!(later, Matched::Later(_)), "{matcher}");
        let result = matcher.matches(&call(name)).await;
        assert_eq!(result.unwrap(), matched, "{matcher}");
    }
    let panics = Matcher::when_async(async |_| panic!("secret"));
    assert!(panics.matches(&call("x")).await.is_err());
    let or = panics.clone().or("x");
    assert!(or.matches(&call("x")).await.unwrap());
    assert!(panics.and("x").matches(&call("x")).await.is_err());
}

#[test]
fn display_describes_the_matched_calls() {
    let matcher = Matcher::from(["a", "b*"]).and(!Matcher::group("g"));
    assert_eq!(matcher.to_string(), "(`a` or `b*`) and not group `g`");
    let when = Matcher::when(|_| true);
    assert!(format!("{when:?}").starts_with("Matcher(when `concentric_tools"));
    assert_eq!(Matcher::from(["a"; 0]).to_string(), "none");
}

#[test]
fn names_are_more_exact_than_the_rest() {
    let exact = |matcher: Matcher| matcher.exactness() == Exactness::Name;
    assert!(exact("a".into()));
    assert!(exact(["a", "b"].into()));
    assert!(exact(Matcher::from("a").and(Matcher::when(|_| true))));
    assert!(!exact(["a", "b*"].into()));
    assert!(!exact(Matcher::from("a").not()));
    assert!(!exact(Matcher::all()));
    assert!(Exactness::Name > Exactness::Other);
}
