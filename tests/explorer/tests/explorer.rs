//! The machine keeps its properties in small bounds, and each planted bug is found.

use concentric_explorer::{BUGS, Bounds, explore, explore_planted, find};

#[test]
fn the_machine_keeps_its_properties() {
    for bounds in [Bounds::small(), Bounds::single()] {
        let report = explore(&bounds, |_| {});
        println!("{report}");
        assert!(report.violation.is_none() && report.complete, "{report}");
        assert!(report.states > 1_000, "{report}");
    }
}

#[test]
fn the_copy_without_a_bug_keeps_the_properties() {
    let copy = explore_planted("", &Bounds::single());
    assert!(copy.violation.is_none() && copy.complete, "{copy}");
}

#[test]
fn each_planted_bug_violates_its_property() {
    let expected = [
        ("a_reply_is_consumed_twice", "a_decision_is_consumed_once"),
        (
            "a_call_is_dispatched_after_a_halt",
            "nothing_starts_after_a_stop",
        ),
        (
            "a_cancel_leaves_the_round_open",
            "every_exit_closes_the_round",
        ),
        ("an_outcome_is_overwritten", "an_outcome_is_kept"),
        ("a_run_ends_twice", "one_terminal_outcome"),
    ];
    assert_eq!(expected.map(|(bug, _)| bug), BUGS);
    for (bug, property) in expected {
        let violation = find(bug);
        assert_eq!(violation.map(|it| it.property), Some(property), "{bug}");
    }
}
