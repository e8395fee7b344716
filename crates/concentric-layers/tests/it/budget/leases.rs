use super::*;

// Case F034.
#[test]
fn of_two_conflicting_reservations_one_is_rejected() {
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

// Case F034.
#[test]
fn all_dimensions_are_reserved_or_none() {
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

// Case F034.
#[test]
fn a_dropped_lease_returns_everything() {
    let budget = limit(100);
    drop(budget.reserve(money(100)).unwrap());
    assert!(budget.check(money(100)).is_ok());
    assert_eq!(budget.spent(), money(0));
}

// Case F034.
#[test]
fn spending_above_the_estimate_rejects_the_next_reservation() {
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

// Case F034.
#[test]
fn no_schedule_admits_two_where_one_fits() {
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

// Case F034.
#[test]
fn no_schedule_overspends_a_part_and_its_whole() {
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

// Case F034.
#[test]
fn threads_never_hold_more_than_the_limit() {
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

// Case F034.
#[test]
fn of_two_simultaneous_reservations_one_is_rejected() {
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
