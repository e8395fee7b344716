//! The tree of budgets.

use super::source::Budget;
use crate::budget::imports::{Amounts, Limits};
use concentric_core::ChatRequest;
use loom::thread;

fn money(amount: u64) -> Amounts {
    Amounts::new().money(amount)
}

fn limits(amount: u64) -> Limits {
    Limits::new().money(amount)
}

pub(crate) fn reservations_stay_within_the_budget() {
    let outer = Budget::new(limits(1_000));
    // Each fits its own budget, but both together exceed the outer one.
    let inner = [outer.within(limits(700)), outer.within(limits(700))];
    let leases = inner.map(|budget| thread::spawn(move || budget.reserve(money(600)).ok()));
    let leases = leases.map(|lease| lease.join().unwrap());
    assert_eq!(leases.iter().flatten().count(), 1);
    assert_eq!(outer.reserved(), money(600));
    drop(leases);
    assert_eq!((outer.reserved(), outer.spent()), (money(0), money(0)));
}

pub(crate) fn nothing_stays_reserved() {
    let outer = Budget::new(limits(1_000));
    let inner = outer.within(limits(700));
    let settles = thread::spawn({
        let inner = inner.clone();
        move || match inner.reserve(money(600)) {
            Ok(lease) => {
                lease.settle(money(250));
                250
            }
            Err(_) => 0,
        }
    });
    let drops = thread::spawn({
        let outer = outer.clone();
        move || drop(outer.reserve(money(500)))
    });
    let seen = outer.reserved();
    assert!(seen.money <= 1_000);
    drops.join().unwrap();
    let spent = settles.join().unwrap();
    assert_eq!((inner.reserved(), inner.spent()), (money(0), money(spent)));
    assert_eq!((outer.reserved(), outer.spent()), (money(0), money(spent)));
}

pub(crate) fn a_part_is_returned() {
    let outer = Budget::new(limits(1_000));
    let part = outer.split(limits(600)).unwrap();
    let lease = part.reserve(money(400)).unwrap();
    let settles = thread::spawn(move || lease.settle(money(150)));
    let others = thread::spawn({
        let outer = outer.clone();
        // The part is at most the rest.
        move || assert!(outer.reserve(money(400)).is_ok())
    });
    drop(part);
    settles.join().unwrap();
    others.join().unwrap();
    assert_eq!((outer.reserved(), outer.spent()), (money(0), money(150)));
}

pub(crate) fn an_extension_fits() {
    let outer = Budget::new(limits(1_000));
    let part = outer.split(limits(300)).unwrap();
    let extends = thread::spawn(move || {
        let extended = part.extend(money(300)).is_ok();
        let lease = part.reserve(money(500));
        assert_eq!(lease.is_ok(), extended);
        if let Ok(lease) = lease {
            lease.settle(money(450));
        }
        extended
    });
    let lease = outer.reserve(money(500));
    // The order matters: an amount that is settled in between moves from one figure to the other.
    assert!(outer.spent().plus(outer.reserved()).money <= 1_000);
    let reserved = lease.is_ok();
    let extended = extends.join().unwrap();
    drop(lease);
    assert!(reserved || extended);
    let spent = if extended { 450 } else { 0 };
    assert_eq!((outer.reserved(), outer.spent()), (money(0), money(spent)));
}

pub(crate) fn a_run_keeps_its_spending() {
    let context = ChatRequest::user("hi").context;
    let budget = Budget::of_run(limits(1_000), None, &context);
    let threads = [10, 20].map(|amount| {
        let budget = budget.clone();
        thread::spawn(move || budget.charge(money(amount)))
    });
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(budget.spent(), money(30));
    let kept = context.stored_state().unwrap();
    assert_eq!(kept.first().unwrap().value["spent"]["money"], 30);
}
