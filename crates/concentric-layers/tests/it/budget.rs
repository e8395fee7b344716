//! Budgets: leases by themselves, and one test per row of [`concentric_layers::budget`]'s tables.

use concentric_core::{
    AgentLayer, Answer, BoxModel, CallId, ChatRequest, ChatResponse, Context, Error, ErrorKind,
    EventStream, Layers, Media, MediaSource, Message, ModelService, Outcome, Part, PartKind,
    Permit, Reply, Role, ToolCall, ToolCallPart, ToolOutcome, ToolSpec, ToolStatus, Transcript,
    Turn, Usage, context::Random, machine::MachineState,
};
use concentric_layers::budget::{
    Amounts, BUDGET, Budget, BudgetLayer, Dimension, Limits, OVER_BUDGET, OverBudget,
};
use concentric_layers::{Next, from_fn};
use concentric_test::{
    Pace, ScriptedModel, ScriptedTools, SeededRandom, Spurious, Strict, TestEnvironment,
    check_layer, drop_at_each_wait, watched,
};
use concentric_tools::{Toolset, agent_tool};
use futures_util::{FutureExt, StreamExt, future::join_all};
use serde_json::{Value, json};
use std::{
    cell::RefCell,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio_test::task;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};

fn money(amount: u64) -> Amounts {
    Amounts::new().money(amount)
}

fn limit(amount: u64) -> Budget {
    Budget::new(Limits::new().money(amount))
}

// ---- leases ----

#[test]
fn f034_of_two_reserves_that_do_not_fit_together_one_is_refused() {
    let budget = limit(100);
    let first = budget.reserve(money(60)).unwrap();
    let over = budget.reserve(money(60)).unwrap_err();
    let OverBudget {
        dimension,
        limit,
        used,
        wanted,
        ..
    } = over;
    assert_eq!(
        (dimension, limit, used, wanted),
        (Dimension::Money, 100, 60, 60)
    );
    // What fits beside it does.
    drop(budget.reserve(money(40)).unwrap());
    first.settle(money(40));
    budget.reserve(money(60)).unwrap().settle(money(60));
    assert_eq!((budget.spent(), budget.reserved()), (money(100), money(0)));
}

#[test]
fn f034_all_dimensions_are_reserved_or_none() {
    let limits = Limits::new().money(100).tool_calls(1).model_calls(5);
    let budget = Budget::new(limits);
    let call = money(10).model_calls(1).tool_calls(1);
    let lease = budget.reserve(call).unwrap();
    let before = budget.reserved();
    assert_eq!(
        budget.reserve(call).unwrap_err().dimension,
        Dimension::ToolCalls
    );
    assert_eq!(budget.reserved(), before);
    drop(lease);
    assert_eq!(budget.reserved(), Amounts::new());
    // What is not wanted is not looked at, and what is not limited is counted.
    budget.charge(call.output_tokens(7).tool_calls(9));
    assert!(budget.reserve(money(1)).is_ok());
    assert_eq!(budget.spent().output_tokens, 7);
}

#[test]
fn f034_a_lease_that_is_dropped_gives_all_back() {
    let budget = limit(100);
    drop(budget.reserve(money(100)).unwrap());
    assert!(budget.check(money(100)).is_ok());
    assert_eq!(budget.spent(), money(0));
}

#[test]
fn f034_what_was_more_than_estimated_is_spent_and_the_next_is_refused() {
    let budget = limit(100);
    budget.reserve(money(90)).unwrap().settle(money(130));
    assert_eq!(budget.spent(), money(130));
    assert!(budget.reserve(money(1)).is_err());
}

#[test]
fn sums_stop_at_the_largest_number() {
    let budget = limit(u64::MAX);
    budget.charge(money(u64::MAX - 1));
    budget.charge(money(u64::MAX));
    assert_eq!(budget.spent(), money(u64::MAX));
    // Of no limit, as much as one likes.
    let budget = limit(10);
    drop(
        budget
            .reserve(Amounts::new().input_tokens(u64::MAX))
            .unwrap(),
    );
    assert!(budget.reserve(money(u64::MAX)).is_err());
    budget.extend(money(u64::MAX)).unwrap();
    assert_eq!(budget.limits().money, Some(u64::MAX));
}

/// What an actor of a schedule does with a lease, if it gets one.
#[derive(Clone, Copy, Debug)]
enum Then {
    Settle(u64),
    Drop,
}

/// Calls `visit` with each order in which `left` steps of each actor can be taken.
fn schedules(left: &mut [usize], so_far: &mut Vec<usize>, visit: &mut impl FnMut(&[usize])) {
    if left.iter().all(|steps| *steps == 0) {
        return visit(so_far);
    }
    for actor in 0..left.len() {
        if left[actor] > 0 {
            left[actor] -= 1;
            so_far.push(actor);
            schedules(left, so_far, visit);
            so_far.pop();
            left[actor] += 1;
        }
    }
}

#[test]
fn f034_no_schedule_lets_two_pass_where_one_fits() {
    const LIMIT: u64 = 10;
    // Three actors, each of which reserves and then settles or drops, in all orders. A reserve is
    // one step, as nobody sees a part of it; threads are the next test's.
    let ends = [
        Then::Settle(2),
        Then::Settle(6),
        Then::Settle(9),
        Then::Drop,
    ];
    let mut checked = 0;
    for (a, b, c) in ends.iter().flat_map(|a| {
        let pairs = ends.iter().flat_map(|b| ends.iter().map(move |c| (*b, *c)));
        pairs.map(|(b, c)| (*a, b, c))
    }) {
        let actors = [(6, a), (5, b), (4, c)];
        schedules(&mut [2; 3], &mut Vec::new(), &mut |order| {
            let (budget, mut leases) = (limit(LIMIT), [None, None, None]);
            let (mut asked, mut held, mut spent, mut errors) = ([false; 3], 0, 0, 0);
            for actor in order {
                let (estimate, then) = actors[*actor];
                if !std::mem::replace(&mut asked[*actor], true) {
                    let fits = spent + held + estimate <= LIMIT;
                    let lease = budget.reserve(money(estimate));
                    assert_eq!(lease.is_ok(), fits, "{actors:?} in the order {order:?}");
                    leases[*actor] = lease.ok();
                    held += if fits { estimate } else { 0 };
                } else if let Some(lease) = leases[*actor].take() {
                    held -= estimate;
                    match then {
                        Then::Settle(actual) => {
                            lease.settle(money(actual));
                            spent += actual;
                            errors += actual.saturating_sub(estimate);
                        }
                        Then::Drop => drop(lease),
                    }
                }
                let state = (budget.spent().money, budget.reserved().money);
                assert_eq!(state, (spent, held), "{actors:?} in the order {order:?}");
                assert!(spent <= LIMIT + errors);
            }
            checked += 1;
        });
    }
    assert_eq!(checked, 64 * 90);
}

#[test]
fn f034_no_schedule_of_a_part_and_its_whole_lets_two_pass_where_one_fits() {
    const LIMIT: u64 = 10;
    const PART: u64 = 6;
    let ends = [
        Then::Settle(1),
        Then::Settle(4),
        Then::Settle(7),
        Then::Drop,
    ];
    for (first, second, outer) in ends.iter().flat_map(|a| {
        let pairs = ends.iter().flat_map(|b| ends.iter().map(move |c| (*b, *c)));
        pairs.map(|(b, c)| (*a, b, c))
    }) {
        // Two spend of the part, and a third of the whole; the last step drops the part.
        let actors = [(4, first), (3, second), (4, outer)];
        schedules(&mut [2, 2, 2, 1], &mut Vec::new(), &mut |order| {
            let whole = limit(LIMIT);
            let mut part = Some(whole.split(Limits::new().money(PART)).unwrap());
            let (mut leases, mut asked) = ([None, None, None], [false; 3]);
            let (mut part_held, mut part_spent) = (0, 0);
            let (mut held, mut spent) = (0, 0);
            for actor in order {
                // What is set aside for the part while it, or a lease of it, is there.
                let there = part.is_some() || leases[..2].iter().any(Option::is_some);
                let aside = if there {
                    PART.saturating_sub(part_spent)
                } else {
                    0
                };
                if *actor == 3 {
                    part = None;
                } else if !std::mem::replace(&mut asked[*actor], true) {
                    let estimate = actors[*actor].0;
                    let (budget, fits) = match (*actor, &part) {
                        (2, _) => (&whole, spent + held + aside + estimate <= LIMIT),
                        (_, Some(part)) => (part, part_spent + part_held + estimate <= PART),
                        (_, None) => continue,
                    };
                    let lease = budget.reserve(money(estimate));
                    assert_eq!(lease.is_ok(), fits, "{actors:?} in the order {order:?}");
                    leases[*actor] = lease.ok();
                    let held = if *actor == 2 {
                        &mut held
                    } else {
                        &mut part_held
                    };
                    *held += if fits { estimate } else { 0 };
                } else if let Some(lease) = leases[*actor].take() {
                    let (estimate, then) = actors[*actor];
                    let held = if *actor == 2 {
                        &mut held
                    } else {
                        &mut part_held
                    };
                    *held -= estimate;
                    match then {
                        Then::Settle(actual) => {
                            lease.settle(money(actual));
                            spent += actual;
                            part_spent += if *actor == 2 { 0 } else { actual };
                        }
                        Then::Drop => drop(lease),
                    }
                }
                let there = part.is_some() || leases[..2].iter().any(Option::is_some);
                let aside = if there {
                    PART.saturating_sub(part_spent)
                } else {
                    0
                };
                let state = (whole.spent().money, whole.reserved().money);
                let expected = (spent, held + aside);
                assert_eq!(state, expected, "{actors:?} in the order {order:?}");
            }
            assert_eq!(whole.reserved(), money(0));
        });
    }
}

#[test]
fn f034_threads_never_hold_more_than_there_is() {
    const LIMIT: u64 = 100;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed: u64 =
        std::env::var("SEED").map_or(now.subsec_nanos().into(), |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let whole = limit(LIMIT);
    // Never more than what the budget thinks: it is counted after a reserve, and before an end.
    let (in_use, spent) = (AtomicU64::new(0), AtomicU64::new(0));
    let refused = AtomicU64::new(0);
    thread::scope(|scope| {
        for at in 0..8 {
            let (whole, in_use, spent, refused) = (&whole, &in_use, &spent, &refused);
            scope.spawn(move || {
                let random = SeededRandom::new(seed + at);
                let below = |n: u64| random.next_u64() % n;
                for _ in 0..2_000 {
                    // Of the whole, of something within it, or of a part.
                    let budget = match below(3) {
                        0 => Some(whole.clone()),
                        1 => Some(whole.within(Limits::new().money(20))),
                        _ => whole.split(Limits::new().money(20)).ok(),
                    };
                    let estimate = 1 + below(20);
                    let lease = budget.and_then(|budget| budget.reserve(money(estimate)).ok());
                    let Some(lease) = lease else {
                        refused.fetch_add(1, Ordering::SeqCst);
                        continue;
                    };
                    let used = in_use.fetch_add(estimate, Ordering::SeqCst) + estimate;
                    assert!(used <= LIMIT, "{used} in use at once");
                    if below(4) == 0 {
                        thread::yield_now();
                    }
                    // Little is spent in all, so that the budget lasts.
                    let actual = u64::from(below(500) == 0);
                    in_use.fetch_sub(estimate - actual, Ordering::SeqCst);
                    spent.fetch_add(actual, Ordering::SeqCst);
                    match actual {
                        0 => drop(lease),
                        _ => lease.settle(money(actual)),
                    }
                }
            });
        }
    });
    println!("{} refused", refused.load(Ordering::SeqCst));
    assert_eq!(whole.reserved(), money(0));
    assert_eq!(whole.spent(), money(spent.load(Ordering::SeqCst)));
}

#[test]
fn f034_of_two_threads_that_reserve_at_the_same_moment_one_is_refused() {
    const ROUNDS: u64 = 20_000;
    let whole: Vec<Budget> = (0..ROUNDS).map(|_| limit(10)).collect();
    let arrived = AtomicU64::new(0);
    let race = || {
        let mut leases = Vec::new();
        for (round, whole) in (1..).zip(&whole) {
            let budget = whole.within(Limits::new());
            // They wait for one another, so that they go on together.
            arrived.fetch_add(1, Ordering::SeqCst);
            while arrived.load(Ordering::SeqCst) < 2 * round {
                thread::yield_now();
            }
            leases.extend(budget.reserve(money(6)));
        }
        leases
    };
    let leases = thread::scope(|scope| {
        let (a, b) = (scope.spawn(race), scope.spawn(race));
        [a.join().unwrap(), b.join().unwrap()]
    });
    assert!(whole.iter().all(|budget| budget.reserved() == money(6)));
    assert_eq!(leases.iter().map(Vec::len).sum::<usize>(), whole.len());
}

// ---- parts ----

#[test]
fn a_part_is_set_aside_as_a_whole_and_the_rest_comes_back() {
    let whole = limit(100);
    let part = whole.split(Limits::new().money(70)).unwrap();
    assert_eq!(whole.reserved(), money(70));
    assert!(whole.reserve(money(31)).is_err());
    assert!(whole.split(Limits::new().money(31)).is_err());
    part.reserve(money(50)).unwrap().settle(money(20));
    assert_eq!((whole.spent(), whole.reserved()), (money(20), money(50)));
    // A handle and a lease keep it.
    let lease = part.reserve(money(10)).unwrap();
    let other = part.clone();
    drop(part);
    drop(other);
    assert_eq!(whole.reserved(), money(50));
    lease.settle(money(10));
    assert_eq!((whole.spent(), whole.reserved()), (money(30), money(0)));
}

#[test]
fn a_part_has_what_was_set_aside_whatever_becomes_of_the_rest() {
    let whole = limit(100);
    let part = whole.split(Limits::new().money(40)).unwrap();
    whole.reserve(money(60)).unwrap().settle(money(90));
    part.reserve(money(40)).unwrap().settle(money(45));
    assert_eq!((whole.spent(), whole.reserved()), (money(135), money(0)));
}

#[test]
fn what_a_part_does_not_limit_is_taken_from_the_whole_as_it_is_spent() {
    let whole = Budget::new(Limits::new().money(100).tool_calls(2));
    let part = whole.split(Limits::new().money(50)).unwrap();
    let call = money(10).tool_calls(1);
    let lease = part.reserve(call).unwrap();
    assert_eq!(whole.reserved(), money(50).tool_calls(1));
    lease.settle(call);
    part.charge(call);
    let over = part.reserve(call).unwrap_err();
    assert_eq!((over.dimension, over.limit), (Dimension::ToolCalls, 2));
    drop(part);
    assert_eq!(
        (whole.spent(), whole.reserved()),
        (money(20).tool_calls(2), money(0))
    );
}

#[test]
fn a_part_is_extended_by_what_is_left_of_the_whole() {
    let whole = limit(100);
    let part = whole.split(Limits::new().money(60)).unwrap();
    assert!(part.extend(money(41)).is_err());
    part.extend(money(40).tool_calls(3)).unwrap();
    assert_eq!(part.limits(), Limits::new().money(100));
    assert_eq!(whole.reserved(), money(100));
}

#[test]
fn what_is_within_a_budget_fits_into_both() {
    let outer = limit(100);
    let (a, b) = (
        outer.within(Limits::new().money(60)),
        outer.within(Limits::new().money(60)),
    );
    assert_eq!(a.reserve(money(61)).unwrap_err().limit, 60);
    let lease = a.reserve(money(60)).unwrap();
    assert_eq!(b.reserve(money(60)).unwrap_err().limit, 100);
    assert_eq!(b.reserved(), money(0));
    lease.settle(money(50));
    b.reserve(money(50)).unwrap().settle(money(50));
    assert_eq!(
        (a.spent(), b.spent(), outer.spent()),
        (money(50), money(50), money(100))
    );
}

#[test]
fn amounts_are_of_a_usage() {
    let mut usage = Usage::new(10, 4);
    usage.cached_input_tokens = Some(8);
    let amounts = Amounts::of_usage(&usage);
    let expected = Amounts::new().input_tokens(10).output_tokens(4);
    assert_eq!(amounts, expected.total_tokens(14).cached_input_tokens(8));
    usage.total_tokens = Some(20);
    assert_eq!(Amounts::of_usage(&usage).total_tokens, 20);
}

#[test]
fn an_error_says_what_is_used_up() {
    let over = limit(100).reserve(money(120)).unwrap_err();
    let text = "budget exceeded: 0 of 100 money used, 120 more requested";
    let error = Error::from(over);
    assert_eq!(
        (error.kind(), error.code()),
        (ErrorKind::Halted, Some(OVER_BUDGET))
    );
    assert_eq!(error.message(), text);
    assert!(!error.is_retryable());
    let source = std::error::Error::source(&error).unwrap();
    assert_eq!(source.downcast_ref(), Some(&over));
}

// ---- one model call ----

/// A budget of any size, which charges a call 100 of money beside its tokens; each is thought to need
/// 30 tokens of input and 20 of output.
fn layer() -> BudgetLayer {
    BudgetLayer::new(Limits::new())
        .estimate(|_| Usage::new(30, 20))
        .price(|_| 100)
}

fn estimated() -> Amounts {
    let tokens = Amounts::new().input_tokens(30).output_tokens(20);
    money(100).model_calls(1).total_tokens(50).max(tokens)
}

/// A request that spends of the budget.
fn request(budget: &Budget) -> ChatRequest {
    let mut request = ChatRequest::user("hi");
    request.context.provide(budget.clone());
    request
}

/// What becomes of the budget by a call of `model` that is read to its end.
async fn spent_by(model: ScriptedModel) -> Amounts {
    let budget = limit(1_000);
    // Time that passes is charged, too.
    let mut request = ChatRequest::user("hi");
    request.context = TestEnvironment::new().context_builder().build();
    request.context.provide(budget.clone());
    if let Ok(answer) = layer().model().layer(model).oneshot(request).await {
        let _: Vec<_> = answer.body.collect().await;
    }
    assert_eq!(budget.reserved(), Amounts::new());
    budget.spent()
}

#[tokio::test(start_paused = true)]
async fn it_is_a_layer() {
    for budget in [
        BudgetLayer::new(Limits::new().total_tokens(1_000_000)),
        BudgetLayer::new(Limits::new()).ask(money(1)),
    ] {
        let layers = ServiceBuilder::new()
            .layer(budget.run())
            .layer(budget.model());
        check_layer(layers.into_inner()).await;
    }
}

#[tokio::test]
async fn a_call_sets_its_estimate_aside_and_is_charged_its_usage() {
    let budget = limit(1_000);
    let model = ScriptedModel::new()
        .deltas(["a", "b"])
        .usage(Usage::new(7, 2));
    let service = layer().model().layer(model);
    let mut body = service.oneshot(request(&budget)).await.unwrap().body;
    let aside = estimated().cached_input_tokens(1).time_ms(1);
    assert_eq!((budget.reserved(), budget.spent()), (aside, Amounts::new()));
    for _ in 0..3 {
        body.next().await.unwrap().unwrap();
    }
    let tokens = Amounts::new()
        .input_tokens(7)
        .output_tokens(2)
        .total_tokens(9);
    assert_eq!(budget.spent(), tokens.money(100).model_calls(1));
    assert_eq!(budget.reserved(), Amounts::new());
    // And once.
    drop(body);
    assert_eq!(budget.spent().model_calls, 1);
}

#[tokio::test]
async fn what_is_not_reported_is_charged_as_estimated() {
    let spent = spent_by(ScriptedModel::new().text("hi").usage(Usage::default())).await;
    assert_eq!(spent, estimated());
    let mut usage = Usage::default();
    usage.output_tokens = Some(5);
    let spent = spent_by(ScriptedModel::new().text("hi").usage(usage)).await;
    let expected = Amounts::new().input_tokens(30).output_tokens(5);
    assert_eq!(spent, expected.total_tokens(35).money(100).model_calls(1));
}

#[tokio::test]
async fn a_call_that_waits_for_the_model_sets_nothing_aside() {
    let budget = limit(1_000);
    let model = Strict::with_capacity(ScriptedModel::new().text("hi"), 1);
    let mut holder = model.clone();
    holder.ready().await.unwrap();
    let mut call = task::spawn(layer().model().layer(model).oneshot(request(&budget)));
    assert!(call.poll().is_pending());
    assert_eq!(budget.reserved(), Amounts::new());
    drop(holder);
    assert!(call.is_woken());
    assert!(call.poll().is_ready());
}

#[tokio::test]
async fn a_call_that_the_provider_refused_is_charged_nothing() {
    for error in [
        Error::new(ErrorKind::InvalidRequest, "no"),
        Error::new(ErrorKind::RateLimited, "slow down"),
        Error::new(ErrorKind::Overloaded, "later"),
        Error::new(ErrorKind::Connection, "nobody there"),
        Error::new(ErrorKind::Server, "it broke").with_status(500),
    ] {
        assert_eq!(
            spent_by(ScriptedModel::new().error(error)).await,
            Amounts::new()
        );
    }
    let unready = ScriptedModel::new().unready(Error::new(ErrorKind::Server, "it broke"));
    assert_eq!(spent_by(unready).await, Amounts::new());
}

#[tokio::test]
async fn a_call_that_failed_when_it_may_have_been_working_is_charged_the_estimate() {
    for kind in [ErrorKind::Timeout, ErrorKind::Truncated, ErrorKind::Other] {
        let spent = spent_by(ScriptedModel::new().error(Error::new(kind, "late"))).await;
        assert_eq!(spent, estimated());
    }
}

#[tokio::test]
async fn an_answer_that_is_cut_is_charged_the_estimate_or_what_was_heard() {
    let broken = || Error::new(ErrorKind::Connection, "it broke");
    let heard = "0123".repeat(25);
    let said = ScriptedModel::new().text("hi");
    assert_eq!(spent_by(said.error(broken())).await, estimated());
    let said = ScriptedModel::new().text("hi");
    assert_eq!(spent_by(said.end_early()).await, estimated());
    let spent = spent_by(ScriptedModel::new().text(heard).error(broken())).await;
    assert_eq!(spent, estimated().output_tokens(25).total_tokens(55));
}

#[tokio::test]
async fn an_answer_that_is_dropped_is_charged_the_estimate() {
    let budget = limit(1_000);
    let service = layer()
        .model()
        .layer(ScriptedModel::new().text("a").never());
    let answer = service.clone().oneshot(request(&budget)).await.unwrap();
    drop(answer);
    assert_eq!(budget.spent(), estimated());
    // So is a call that was sent, and not one that was not.
    let service = layer().model().layer(ScriptedModel::new().never());
    drop(service.clone().oneshot(request(&budget)));
    assert_eq!(budget.spent(), estimated());
    let mut call = task::spawn(service.oneshot(request(&budget)));
    assert!(call.poll().is_pending());
    drop(call);
    assert_eq!(budget.spent(), estimated().plus(estimated()));
    assert_eq!(budget.reserved(), Amounts::new());
}

#[tokio::test]
async fn f034_of_two_calls_at_once_that_do_not_fit_one_is_not_made() {
    let budget = limit(150);
    let model = ScriptedModel::new().text("a").repeat();
    let service = layer().model().layer(model.clone());
    let first = service.clone().oneshot(request(&budget)).await.unwrap();
    let error = service.clone().oneshot(request(&budget)).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.code()),
        (ErrorKind::Halted, Some(OVER_BUDGET))
    );
    assert_eq!(model.calls(), 1);
    drop(first);
    assert_eq!(budget.spent().money, 100);
}

#[tokio::test]
async fn a_call_without_a_budget_is_not_made() {
    let model = ScriptedModel::new().text("a");
    let service = layer().model().layer(model.clone());
    let error = service.oneshot(ChatRequest::user("hi")).await.unwrap_err();
    assert_eq!((error.kind(), model.calls()), (ErrorKind::Configuration, 0));
}

#[tokio::test]
async fn each_call_is_charged_its_time_by_the_clock_of_the_run() {
    let test = TestEnvironment::new();
    let budget = Budget::new(Limits::new().time_ms(5_000));
    let model = ScriptedModel::new().sleep(Duration::from_secs(5)).text("a");
    let service = layer().model().layer(model.then().text("b"));
    let with = |mut request: ChatRequest| {
        request.context.provide(budget.clone());
        request
    };
    let mut call = task::spawn(service.clone().oneshot(with(test.request("hi"))));
    assert!(call.poll().is_pending());
    test.advance(Duration::from_secs(5));
    let answer = call.await.unwrap();
    test.advance(Duration::from_millis(250));
    answer.collect().await.unwrap();
    assert_eq!(budget.spent().time_ms, 5_250);
    let error = service.oneshot(with(test.request("hi"))).await.unwrap_err();
    assert_eq!(error.code(), Some(OVER_BUDGET));
}

#[tokio::test]
async fn a_call_is_thought_to_need_a_token_for_four_bytes() {
    let budget = Budget::new(Limits::new());
    let mut request = request(&budget).with_system("12345678");
    let parts = vec![
        Part::text("abcd"),
        Part::new(PartKind::Image(Media::new(MediaSource::Url("x".into())))),
    ];
    let mut transcript = Transcript::new();
    transcript.push(Turn::message(Message::new(Role::User, parts)).unwrap());
    request.transcript = transcript;
    request.tools.push(Arc::new(ToolSpec::new(
        "name",
        "what for",
        json!({"type": "object"}),
    )));
    request.options_mut().max_output_tokens = Some(50);
    let schema = json!({"type": "object"}).to_string().len() as u64;
    let service = BudgetLayer::new(Limits::new())
        .model()
        .layer(ScriptedModel::new().text("a"));
    let answer = service.oneshot(request).await.unwrap();
    let input = (8 + 4 + 4_000 + 4 + 8 + schema) / 4;
    let reserved = budget.reserved();
    assert_eq!((reserved.input_tokens, reserved.output_tokens), (input, 50));
    assert_eq!(reserved.total_tokens, input + 50);
    drop(answer);
}

// ---- runs ----

async fn run<S>(agent: &S, request: ChatRequest) -> Answer
where
    S: ModelService<Error: std::fmt::Debug> + Clone,
{
    let answer = agent.clone().oneshot(request).await.unwrap();
    answer.collect().await.unwrap()
}

/// An agent that searches until it is out of budget; the budget's layers at every place.
fn searcher(budget: &BudgetLayer, model: &ScriptedModel) -> BoxModel {
    let agent = Layers::new()
        .with(budget.run())
        .layer(AgentLayer::new(search(budget)))
        .with(budget.model())
        .service(model.clone());
    BoxModel::new(agent)
}

fn object(name: &'static str) -> ToolSpec {
    ToolSpec::new(name, "", json!({"type": "object"}))
}

fn search(budget: &BudgetLayer) -> ScriptedTools {
    let found = service_fn(async |_: ToolCall| Ok::<_, Error>(ToolOutcome::done("found")));
    ScriptedTools::new().service(object("search"), budget.tool().layer(found))
}

/// An agent that searches once, within a budget at every place; its model and its tool take ticks.
async fn search_slowly(whole: Budget, model: ScriptedModel) -> Result<String, Error> {
    let budget = layer();
    let found = service_fn(async |call: ToolCall| {
        tokio::task::yield_now().await;
        Pace::NextTick.pass(&call.context).await;
        Ok::<_, Error>(ToolOutcome::done("found"))
    });
    let tools = ScriptedTools::new().service(object("search"), budget.tool().layer(found));
    let agent = Layers::new()
        .with(budget.run())
        .layer(AgentLayer::new(tools))
        .with(budget.model())
        .service(model);
    let answer = Spurious::new(agent.oneshot(request(&whole))).await?;
    Ok(answer.map_body(Spurious::new).collect().await?.text())
}

fn searches_once() -> ScriptedModel {
    let model = ScriptedModel::new().paced(Pace::NextTick);
    model.tool_call("search", json!({})).then().text("Done.")
}

#[test]
fn a_run_that_is_polled_without_a_wake_is_charged_once() {
    let (text, whole) = watched(async {
        let whole = limit(1_000);
        let text = search_slowly(whole.clone(), searches_once()).await;
        (text.unwrap(), whole)
    });
    assert_eq!(text, "Done.");
    let spent = whole.spent();
    assert_eq!(
        (spent.money, spent.model_calls, spent.tool_calls),
        (200, 2, 1)
    );
    assert_eq!(whole.reserved(), Amounts::new());
}

#[tokio::test]
async fn a_run_that_is_dropped_where_it_waits_reserves_nothing() {
    let scene = RefCell::new(None);
    let run = || {
        let (whole, model) = (limit(1_000), searches_once());
        *scene.borrow_mut() = Some((whole.clone(), model.clone()));
        search_slowly(whole, model)
    };
    let drops = drop_at_each_wait(run, async |polls| {
        let (whole, model) = scene.take().unwrap();
        assert_eq!(
            (whole.reserved(), model.live()),
            (Amounts::new(), 0),
            "{polls}"
        );
        assert!(whole.spent().money <= 200, "{polls}");
    });
    let drops = drops.await;
    assert!(drops > 4, "{drops}");
}

fn searches() -> ScriptedModel {
    ScriptedModel::new()
        .tool_call("search", json!({"for": "x"}))
        .usage(Usage::new(10, 10))
        .repeat()
}

/// A state as another process reads it.
fn written(answer: Answer) -> MachineState {
    assert_eq!(answer.finish.outcome, Outcome::Interrupted);
    let json = answer.finish.state.unwrap().to_json().unwrap();
    MachineState::from_json(json.as_bytes(), json.len()).unwrap()
}

fn reply(
    state: MachineState,
    reply: impl Fn(concentric_core::InterruptId) -> Reply,
) -> ChatRequest {
    let asked = state.interrupts().into_iter();
    let replies = asked.map(|asked| reply(asked.id.clone())).collect();
    ChatRequest::resume(state, replies)
}

fn statuses(answer: &Answer) -> Vec<ToolStatus> {
    let transcript = answer.finish.transcript.as_ref().unwrap();
    let results = transcript.iter().flat_map(Turn::results);
    results.map(|result| result.outcome.status).collect()
}

#[tokio::test]
async fn a_run_that_is_out_of_budget_is_halted_and_keeps_what_was_paid_for() {
    let model = searches();
    let budget = BudgetLayer::new(Limits::new().model_calls(3));
    let answer = run(&searcher(&budget, &model), ChatRequest::user("hi")).await;
    let Outcome::Halted { reason } = &answer.finish.outcome else {
        panic!("{:?}", answer.finish.outcome);
    };
    let said = "budget exceeded: 3 of 3 model calls used, 1 more requested";
    assert_eq!(reason, said);
    assert_eq!(
        (model.calls(), answer.finish.usage),
        (3, Usage::new(30, 30))
    );
    // Every call has its result, and the conversation can be gone on with.
    assert_eq!(statuses(&answer), [ToolStatus::Done; 3]);
    let mut transcript = answer.finish.transcript.unwrap();
    assert_eq!(transcript.len(), 4);
    transcript.push_user("Go on.");
    let answer = run(&searcher(&budget, &model), ChatRequest::new(transcript)).await;
    // Of another run, there is another budget.
    assert_eq!(
        (model.calls(), answer.finish.usage),
        (6, Usage::new(30, 30))
    );
}

#[tokio::test]
async fn f034_a_run_is_halted_wherever_the_limit_lies() {
    let mut halted = 0;
    for tokens in (0..1_200).step_by(4) {
        let model = searches();
        let limits = Limits::new().total_tokens(tokens);
        let budget = BudgetLayer::new(limits);
        let request = ChatRequest::user("What is it?!").with_system("You are it. ".repeat(20));
        let answer = run(&searcher(&budget, &model), request).await;
        match answer.finish.outcome {
            Outcome::Halted { .. } => halted += 1,
            Outcome::StepLimit => {}
            other => panic!("{other:?} by a limit of {tokens}"),
        }
        assert!(20 * model.calls() as u64 <= tokens);
    }
    assert!(halted > 100, "{halted}");
}

#[tokio::test]
async fn f034_a_run_that_may_ask_does_not_fail_wherever_the_limit_lies() {
    for tokens in (120..600).step_by(4) {
        let budget = BudgetLayer::new(Limits::new().total_tokens(tokens));
        let budget = budget.ask(Amounts::new().total_tokens(10));
        let agent = searcher(&budget, &searches());
        let mut request = ChatRequest::user("What is it?!").with_system("You are it. ".repeat(20));
        for _ in 0..20 {
            let answer = run(&agent, request).await;
            match answer.finish.outcome {
                Outcome::Interrupted => request = reply(written(answer), Reply::approve),
                // Ten more were not enough.
                Outcome::Halted { .. } => break,
                other => panic!("{other:?} by a limit of {tokens}"),
            }
        }
    }
}

#[tokio::test]
async fn a_call_that_needs_more_than_was_thought_between_the_steps_halts_the_run() {
    // What only the layer around the model sees: the conversation grows on the way.
    let grows = concentric_layers::from_fn(|mut request: ChatRequest, mut next: Next| async move {
        if request.context.step() == 1 {
            request.transcript.push_user("long ".repeat(1_000));
        }
        next.run(request).await
    });
    let model = searches();
    let budget = BudgetLayer::new(Limits::new().total_tokens(500));
    let agent = ServiceBuilder::new()
        .layer(budget.run())
        .layer(AgentLayer::new(search(&budget)))
        .layer(grows)
        .layer(budget.model())
        .service(model.clone());
    let answer = run(&agent, ChatRequest::user("hi")).await;
    let Outcome::Halted { reason } = &answer.finish.outcome else {
        panic!("{:?}", answer.finish.outcome);
    };
    assert!(reason.contains("budget exceeded"), "{reason}");
    // What was paid for is kept.
    let kept = answer.transcript().unwrap();
    assert!(kept.len() > 1 && model.calls() == 1, "{kept:?}");
}

#[tokio::test]
async fn a_conversation_that_is_shortened_on_the_way_is_not_taken_for_long() {
    let short = from_fn(|mut request: ChatRequest, mut next: Next| async move {
        request.transcript = Transcript::new();
        request.transcript.push_user("In short.");
        next.run(request).await
    });
    let model = ScriptedModel::new()
        .tool_call("search", json!({}))
        .then()
        .text("Done.");
    let budget = BudgetLayer::new(Limits::new().total_tokens(500));
    let agent = ServiceBuilder::new()
        .layer(budget.run())
        .layer(AgentLayer::new(search(&budget)))
        .layer(short)
        .layer(budget.model())
        .service(model);
    let answer = run(&agent, ChatRequest::user("long ".repeat(1_000))).await;
    assert_eq!(answer.finish.outcome, Outcome::Completed);
}

#[tokio::test]
async fn a_fallback_is_asked_when_the_first_model_is_too_dear() {
    let (dear, cheap) = (
        ScriptedModel::new().text("dear"),
        ScriptedModel::new().text("cheap"),
    );
    let budget = BudgetLayer::new(Limits::new().money(10));
    let dear_ones = budget.clone().price(|_| 100).model().layer(dear.clone());
    let cheap_ones = budget.clone().price(|_| 1).model().layer(cheap.clone());
    let either = service_fn(move |request: ChatRequest| {
        let (dear, cheap) = (dear_ones.clone(), cheap_ones.clone());
        async move {
            match dear.oneshot(request.clone()).await {
                Err(error) if error.code() == Some(OVER_BUDGET) => cheap.oneshot(request).await,
                other => other,
            }
        }
    });
    let agent = ServiceBuilder::new()
        .layer(budget.run())
        .layer(AgentLayer::new(ScriptedTools::new()))
        .service(either);
    assert_eq!(run(&agent, ChatRequest::user("hi")).await.text(), "cheap");
    assert_eq!((dear.calls(), cheap.calls()), (0, 1));
}

#[tokio::test]
async fn runs_at_once_through_one_layer_have_budgets_of_their_own() {
    let model = searches();
    let budget = BudgetLayer::new(Limits::new().model_calls(2));
    let agent = searcher(&budget, &model);
    join_all((0..5).map(|_| run(&agent, ChatRequest::user("hi")))).await;
    assert_eq!(model.calls(), 10);
}

#[tokio::test]
async fn runs_at_once_never_spend_more_than_is_given_for_all() {
    let model = searches();
    let budget = BudgetLayer::new(Limits::new().model_calls(4));
    let agent = searcher(&budget, &model);
    let tenant = Budget::new(Limits::new().model_calls(7));
    let answers = join_all((0..5).map(|_| agent.clone().oneshot(request(&tenant)))).await;
    let bodies = answers
        .into_iter()
        .flatten()
        .map(|answer| answer.body.collect::<Vec<_>>());
    join_all(bodies).await;
    assert_eq!((model.calls(), tenant.spent().model_calls), (7, 7));
    assert_eq!(tenant.reserved(), Amounts::new());
}

// ---- questions ----

#[tokio::test]
async fn a_run_that_is_out_of_budget_asks_and_goes_on_when_it_may() {
    let model = searches();
    let budget = BudgetLayer::new(Limits::new().model_calls(2)).ask(Amounts::new().model_calls(3));
    let answer = run(&searcher(&budget, &model), ChatRequest::user("hi")).await;
    assert_eq!(model.calls(), 2);
    let state = written(answer);
    let asked = state.interrupts()[0].clone();
    assert_eq!(asked.reason, BUDGET);
    assert_eq!(asked.metadata["extend"]["model_calls"], 3);

    let answer = run(&searcher(&budget, &model), reply(state, Reply::approve)).await;
    assert_eq!(model.calls(), 5);
    // What was added is kept, and it asks again, another question.
    let state = written(answer);
    assert_ne!(state.interrupts()[0].id, asked.id);
    let extend = |calls: u64| {
        move |id| {
            Reply::resolve(
                id,
                json!({"approved": true, "extend": {"model_calls": calls}}),
            )
        }
    };
    // Less than was asked for, and never more.
    let answer = run(&searcher(&budget, &model), reply(state, extend(1))).await;
    assert_eq!(model.calls(), 6);
    let answer = run(
        &searcher(&budget, &model),
        reply(written(answer), extend(1_000)),
    )
    .await;
    assert_eq!(model.calls(), 9);
    assert_eq!(answer.finish.outcome, Outcome::Interrupted);
}

#[tokio::test]
async fn all_but_an_approval_ends_the_run() {
    let replies: [fn(concentric_core::InterruptId) -> Reply; 5] = [
        |id| Reply::deny(id, "no"),
        Reply::cancel,
        |id| Reply::resolve(id, json!("yes")),
        |id| Reply::resolve(id, json!({"approved": true, "extend": {"money": 5}})),
        |id| Reply::resolve(id, json!({"approved": true, "extend": {"model_calls": -1}})),
    ];
    for make in replies {
        let model = searches();
        let asks = Amounts::new().model_calls(1);
        let budget = BudgetLayer::new(Limits::new().model_calls(1)).ask(asks);
        let agent = searcher(&budget, &model);
        let state = written(run(&agent, ChatRequest::user("hi")).await);
        let answer = run(&agent, reply(state, make)).await;
        assert!(matches!(answer.finish.outcome, Outcome::Halted { .. }));
        assert_eq!((model.calls(), statuses(&answer).len()), (1, 1));
    }
}

#[tokio::test]
async fn a_run_does_not_ask_for_what_is_not_its_own() {
    let model = searches();
    let budget = BudgetLayer::new(Limits::new().model_calls(5)).ask(Amounts::new().model_calls(5));
    let tenant = Budget::new(Limits::new().model_calls(2));
    let answer = run(&searcher(&budget, &model), request(&tenant)).await;
    assert!(matches!(answer.finish.outcome, Outcome::Halted { .. }));
    assert_eq!(tenant.limits(), Limits::new().model_calls(2));
}

// ---- tool calls ----

#[tokio::test]
async fn a_tool_call_that_does_not_fit_is_denied_and_has_its_one_result() {
    let tools = Arc::new(AtomicU64::new(0));
    let ran = Arc::clone(&tools);
    let budget = BudgetLayer::new(Limits::new().tool_calls(2));
    let looks = service_fn(move |_: ToolCall| {
        ran.fetch_add(1, Ordering::SeqCst);
        async {
            tokio::task::yield_now().await;
            Ok::<_, Error>(ToolOutcome::done("seen"))
        }
    });
    let model = ScriptedModel::new()
        .tool_call("look", json!({}))
        .tool_call("look", json!({}))
        .tool_call("look", json!({}))
        .then()
        .text("That was all.");
    let tools_of = ScriptedTools::new().service(object("look"), budget.tool().layer(looks));
    let agent = ServiceBuilder::new()
        .layer(budget.run())
        .layer(AgentLayer::new(tools_of))
        .layer(budget.model())
        .service(model);
    let answer = run(&agent, ChatRequest::user("hi")).await;
    assert_eq!(tools.load(Ordering::SeqCst), 2);
    // The model is told, and the run goes on.
    assert_eq!(answer.text(), "That was all.");
    let expected = [ToolStatus::Done, ToolStatus::Done, ToolStatus::Denied];
    assert_eq!(statuses(&answer), expected);
    let transcript = answer.finish.transcript.unwrap();
    let denied = &transcript
        .iter()
        .flat_map(Turn::results)
        .nth(2)
        .unwrap()
        .outcome;
    let said = "The call was not run: budget exceeded: 2 of 2 tool calls used, 1 more requested.";
    assert_eq!(denied, &ToolOutcome::denied(said));
}

fn a_call(budget: &Budget) -> ToolCall {
    let mut context = TestEnvironment::new().context_builder().build();
    context.provide(budget.clone());
    ToolCall::new(
        ToolCallPart::new(CallId::new("call_1"), "look", json!({})),
        context,
    )
}

/// What is spent by a call of a tool that does as `tool` does.
async fn spent_by_tool<F>(tool: F) -> Amounts
where
    F: Future<Output = Result<ToolOutcome, Error>> + Clone + Send + 'static,
{
    let budget = Budget::new(Limits::new());
    let service = layer()
        .tool()
        .layer(service_fn(move |_: ToolCall| tool.clone()));
    let mut call = task::spawn(service.oneshot(a_call(&budget)));
    let _ = call.poll();
    drop(call);
    assert_eq!(budget.reserved(), Amounts::new());
    budget.spent()
}

#[tokio::test]
async fn a_tool_call_is_charged_however_it_ends() {
    let one = Amounts::new().tool_calls(1);
    let done = async { Ok(ToolOutcome::done("x")) }.boxed().shared();
    assert_eq!(spent_by_tool(done).await, one);
    let fails = async { Err(Error::new(ErrorKind::Other, "no")) }
        .boxed()
        .shared();
    assert_eq!(spent_by_tool(fails).await, one);
    let hangs = std::future::pending().boxed().shared();
    assert_eq!(spent_by_tool(hangs).await, one);
    let waits = async {
        Err(Error::suspended(concentric_core::Suspension::new(
            Vec::new(),
        )))
    };
    assert_eq!(spent_by_tool(waits.boxed().shared()).await, Amounts::new());
}

#[tokio::test]
async fn a_call_that_is_only_shown_to_the_layers_is_charged_nothing() {
    let budget = Budget::new(Limits::new().tool_calls(0));
    let seen = Arc::new(Mutex::new(0));
    let counts = Arc::clone(&seen);
    let service = layer().tool().layer(service_fn(move |_: ToolCall| {
        *counts.lock().unwrap() += 1;
        async { Ok::<_, Error>(ToolOutcome::denied("no")) }
    }));
    let call = a_call(&budget);
    let denied = ToolOutcome::denied("no");
    let round = concentric_core::RoundCall::new(0, call.part().clone());
    let shown = ToolCall::of_round(
        round,
        Permit::Settled(Arc::new(denied.clone())),
        Transcript::new(),
        &call.context,
    );
    assert_eq!(service.oneshot(shown).await.unwrap(), denied);
    assert_eq!((*seen.lock().unwrap(), budget.spent()), (1, Amounts::new()));
}

#[tokio::test]
async fn a_tool_call_that_waited_is_charged_once() {
    let budget = BudgetLayer::new(Limits::new().tool_calls(1));
    let asks = service_fn(async |call: ToolCall| match call.resumed() {
        None => {
            let id = call.context.interrupt_id().unwrap();
            let asked = concentric_core::Interrupt::new(id, "choice");
            Err(Error::suspended(concentric_core::Suspension::new(vec![
                asked,
            ])))
        }
        Some(_) => Ok(ToolOutcome::done("chosen")),
    });
    let tools = ScriptedTools::new().service(object("ask"), budget.tool().layer(asks));
    let model = ScriptedModel::new()
        .tool_call("ask", json!({}))
        .then()
        .text("ok");
    let agent = ServiceBuilder::new()
        .layer(budget.run())
        .layer(AgentLayer::new(tools))
        .layer(budget.model())
        .service(model);
    let state = written(run(&agent, ChatRequest::user("hi")).await);
    let answer = run(&agent, reply(state, |id| Reply::resolve(id, json!("a")))).await;
    assert_eq!(statuses(&answer), [ToolStatus::Done]);
}

// ---- runs that go on elsewhere ----

/// An agent, and all that it is made of, as a new process makes it.
fn payer(limits: Limits) -> (BoxModel, ScriptedModel) {
    let model = ScriptedModel::new()
        .tool_call("pay", json!({}))
        .usage(Usage::new(100, 100))
        .repeat();
    let budget = BudgetLayer::new(limits);
    let agent = ServiceBuilder::new()
        .layer(budget.run())
        .layer(AgentLayer::new(ScriptedTools::new().asks("pay", "paid")))
        .layer(budget.model())
        .service(model.clone());
    (BoxModel::new(agent), model)
}

#[tokio::test]
async fn f034_a_limit_holds_over_processes() {
    let limits = Limits::new().model_calls(3).total_tokens(10_000);
    let (agent, _) = payer(limits);
    let mut answer = run(&agent, ChatRequest::user("hi")).await;
    for _ in 0..2 {
        let (agent, model) = payer(limits);
        answer = run(&agent, reply(written(answer), Reply::approve)).await;
        assert_eq!(model.calls(), 1);
    }
    let (agent, model) = payer(limits);
    let answer = run(&agent, reply(written(answer), Reply::approve)).await;
    let Outcome::Halted { reason } = &answer.finish.outcome else {
        panic!("{:?}", answer.finish.outcome);
    };
    assert!(reason.contains("3 of 3 model calls"), "{reason}");
    assert_eq!((model.calls(), statuses(&answer).len()), (0, 3));
}

#[cfg(feature = "suspend")]
#[tokio::test]
async fn f034_a_limit_holds_for_a_run_that_a_store_keeps() {
    use concentric_core::ThreadId;
    use concentric_layers::SuspendLayer;
    use concentric_store::MemoryStore;

    let limits = Limits::new().model_calls(2);
    for is_outside in [true, false] {
        let store = Arc::new(MemoryStore::new());
        let payer = || {
            let model = ScriptedModel::new().tool_call("pay", json!({})).repeat();
            let budget = BudgetLayer::new(limits);
            let agent = ServiceBuilder::new()
                .option_layer(is_outside.then(|| budget.run()))
                .layer(SuspendLayer::new(Arc::clone(&store)))
                .option_layer((!is_outside).then(|| budget.run()))
                .layer(AgentLayer::new(ScriptedTools::new().asks("pay", "paid")))
                .layer(budget.model())
                .service(model.clone());
            (agent, model)
        };
        let thread = || Context::builder().thread_id(ThreadId::new("t")).build();
        let (agent, _) = payer();
        let mut answer = run(&agent, ChatRequest::user("hi").with_context(thread())).await;
        for expected in [1, 0] {
            let asked = answer.finish.interrupts()[0].id.clone();
            let request = ChatRequest::replying(vec![Reply::approve(asked)]);
            let (agent, model) = payer();
            answer = run(&agent, request.with_context(thread())).await;
            assert_eq!(model.calls(), expected);
        }
        assert!(matches!(answer.finish.outcome, Outcome::Halted { .. }));
    }
}

#[tokio::test]
async fn what_was_spent_is_written_down_with_the_run() {
    let (agent, _) = payer(Limits::new().model_calls(3));
    let state = written(run(&agent, ChatRequest::user("hi")).await);
    let slots = state.slots().iter();
    let kept: Vec<_> = slots
        .filter(|kept| kept.slot == "concentric/budget")
        .collect();
    let [kept] = kept[..] else { panic!() };
    assert_eq!(kept.value["spent"]["total_tokens"], 200);
    assert_eq!(kept.value["spent"]["model_calls"], 1);
}

#[tokio::test]
async fn a_run_whose_spending_cannot_be_read_calls_nothing() {
    let (agent, _) = payer(Limits::new().model_calls(3));
    let state = written(run(&agent, ChatRequest::user("hi")).await);
    let mut json: Value = serde_json::from_str(&state.to_json().unwrap()).unwrap();
    for slot in json["slots"].as_array_mut().unwrap() {
        slot["value"] = json!("nothing");
    }
    let json = json.to_string();
    let state = MachineState::from_json(json.as_bytes(), json.len()).unwrap();
    let (agent, model) = payer(Limits::new().model_calls(3));
    let answer = agent.oneshot(reply(state, Reply::approve)).await.unwrap();
    let items: Vec<_> = answer.body.collect().await;
    let error = items.into_iter().find_map(Result::err).unwrap();
    assert_eq!((error.kind(), model.calls()), (ErrorKind::Configuration, 0));
}

#[tokio::test]
async fn an_agent_in_a_models_place_does_not_write_over_what_the_run_has_spent() {
    let budget = BudgetLayer::new(Limits::new().model_calls(5));
    let make = |model: &ScriptedModel| {
        // It has two calls for each step of the run around it.
        let own = BudgetLayer::new(Limits::new().model_calls(2));
        let within = searcher(&own, model);
        ServiceBuilder::new()
            .layer(budget.run())
            .layer(AgentLayer::new(ScriptedTools::new().asks("pay", "paid")))
            .service(within)
    };
    let steps = || {
        ScriptedModel::new()
            .tool_call("search", json!({}))
            .then()
            .tool_call("pay", json!({}))
            .then()
    };
    let model = steps().text("unused");
    let mut answer = run(&make(&model), ChatRequest::user("hi")).await;
    let model = steps().text("unused");
    answer = run(&make(&model), reply(written(answer), Reply::approve)).await;
    let model = steps().text("unused");
    answer = run(&make(&model), reply(written(answer), Reply::approve)).await;
    assert_eq!(model.calls(), 1);
    assert!(matches!(answer.finish.outcome, Outcome::Halted { .. }));
}

// ---- agents that are tools ----

/// A run around `inner`, which is called as its tool `ask` until the outer run is out of budget.
fn around(budget: &BudgetLayer, outer: &ScriptedModel, inner: BoxModel) -> BoxModel {
    let tools = Toolset::new().tool(agent_tool("ask", "", inner));
    let agent = ServiceBuilder::new()
        .layer(budget.run())
        .layer(AgentLayer::new(tools))
        .layer(budget.model())
        .service(outer.clone());
    BoxModel::new(agent)
}

fn asks() -> ScriptedModel {
    ScriptedModel::new()
        .tool_call("ask", json!({"task": "do it"}))
        .then()
        .text("done")
}

fn within_itself(budget: &BudgetLayer, model: &ScriptedModel) -> BoxModel {
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(search(budget)))
        .layer(budget.model())
        .service(model.clone());
    BoxModel::new(agent)
}

#[tokio::test]
async fn f033_an_agent_that_is_a_tool_spends_of_the_budget_of_its_caller() {
    let (outer, inner) = (asks(), searches());
    let budget = BudgetLayer::new(Limits::new().model_calls(5));
    let agent = around(&budget, &outer, within_itself(&budget, &inner));
    let answer = run(&agent, ChatRequest::user("hi")).await;
    // One call of its own, and four of the other, which fails; then it is stopped itself.
    assert_eq!((outer.calls(), inner.calls()), (1, 4));
    assert!(matches!(answer.finish.outcome, Outcome::Halted { .. }));
    assert_eq!(statuses(&answer), [ToolStatus::Failed]);
}

#[tokio::test]
async fn f033_an_agent_that_is_a_tool_may_have_limits_of_its_own() {
    let (outer, inner) = (asks(), searches());
    let budget = BudgetLayer::new(Limits::new().model_calls(5));
    let own = BudgetLayer::new(Limits::new().model_calls(2));
    let agent = around(&budget, &outer, searcher(&own, &inner));
    let answer = run(&agent, ChatRequest::user("hi")).await;
    assert_eq!((outer.calls(), inner.calls()), (2, 2));
    assert_eq!(answer.text(), "done");
}

#[tokio::test]
async fn f033_an_agent_that_is_a_tool_may_have_a_part() {
    async fn part(
        mut request: ChatRequest,
        mut next: Next,
    ) -> Result<ChatResponse<EventStream>, Error> {
        let budget = request.context.require::<Budget>()?;
        let part = budget.split(Limits::new().model_calls(2))?;
        request.context.provide(part);
        next.run(request).await
    }
    let (outer, inner) = (asks(), searches());
    let budget = BudgetLayer::new(Limits::new().model_calls(4));
    let agent = from_fn(part).layer(within_itself(&budget, &inner));
    let tenant = Budget::new(Limits::new());
    let agent = around(&budget, &outer, BoxModel::new(agent));
    let answer = run(&agent, request(&tenant)).await;
    assert_eq!((outer.calls(), inner.calls()), (2, 2));
    assert_eq!(answer.text(), "done");
    let spent = (tenant.spent().model_calls, tenant.reserved().model_calls);
    assert_eq!(spent, (4, 0));
}

#[tokio::test]
async fn f034_what_an_agent_that_is_a_tool_has_spent_is_known_when_it_goes_on_elsewhere() {
    let budget = BudgetLayer::new(Limits::new().model_calls(4));
    let own = BudgetLayer::new(Limits::new().model_calls(3));
    let make = |outer: &ScriptedModel, inner: &ScriptedModel| {
        let tools = ScriptedTools::new().asks("pay", "paid");
        let agent = ServiceBuilder::new()
            .layer(own.run())
            .layer(AgentLayer::new(tools))
            .layer(own.model())
            .service(inner.clone());
        around(&budget, outer, BoxModel::new(agent))
    };
    let pays = || ScriptedModel::new().tool_call("pay", json!({})).repeat();
    let (outer, inner) = (asks(), pays());
    let mut answer = run(&make(&outer, &inner), ChatRequest::user("hi")).await;
    // Each of the two has a process of its own for each of its calls.
    for _ in 0..2 {
        let inner = pays();
        let agent = make(&ScriptedModel::new(), &inner);
        answer = run(&agent, reply(written(answer), Reply::approve)).await;
        assert_eq!(inner.calls(), 1);
    }
    // Its own three are used up, and with the first of the outer run that run's four.
    let (outer, inner) = (ScriptedModel::new().text("done"), pays());
    let answer = run(
        &make(&outer, &inner),
        reply(written(answer), Reply::approve),
    )
    .await;
    assert_eq!((outer.calls(), inner.calls()), (0, 0));
    assert!(matches!(answer.finish.outcome, Outcome::Halted { .. }));
    assert_eq!(statuses(&answer), [ToolStatus::Failed]);
}

#[tokio::test]
async fn an_agent_that_is_a_tool_asks_for_the_run_that_calls_it() {
    let (outer, inner) = (asks(), searches());
    let budget = BudgetLayer::new(Limits::new().model_calls(2)).ask(Amounts::new().model_calls(2));
    let unlimited = BudgetLayer::new(Limits::new());
    let agent = around(&budget, &outer, searcher(&unlimited, &inner));
    let state = written(run(&agent, ChatRequest::user("hi")).await);
    assert_eq!(
        (outer.calls(), inner.calls(), state.interrupts().len()),
        (1, 1, 1)
    );
    let answer = run(&agent, reply(state, Reply::approve)).await;
    assert_eq!((outer.calls(), inner.calls()), (1, 3));
    assert_eq!(written(answer).interrupts().len(), 1);
}
