//! Processes that go on with one run at the same time.
//!
//! Two to eight of them are shown the same question and answer it, or find the same run that was
//! left, over one SQLite file. One of them runs the tool; the others learn that they were late.
//!
//! | in the environment | | default |
//! |---|---|---|
//! | `CONCENTRIC_RACES` | how many races | 15 |

use crate::durable::{
    actor::{Part, Said, block, drive, key, replying, run, say, wait},
    agent::{ONE, abandoned, agent, script, store},
    check::{Figures, check},
    points::Plan,
    setting,
    world::{Entry, World},
};
use concentric_core::{Reply, store::RunStore};
use std::collections::BTreeMap;

/// Drives the run until it waits.
#[test]
#[ignore = "a child process of the test below"]
fn host() {
    let Some(part) = Part::mine() else { return };
    let said = block(drive(&part));
    say(&serde_json::to_string(&said).unwrap());
}

/// Takes the run up when it is told to.
#[test]
#[ignore = "a child process of the test below"]
fn racer() {
    let Some(part) = Part::mine() else { return };
    let said = block(async {
        let (world, points) = (part.world(), part.points());
        let store = store(&world, &points, part.clock());
        let agent = agent(script(&part.script), &store);
        let environment = part.environment();
        let record = store.get(key()).await.unwrap();
        let asked = record.state.interrupts();
        let replies = asked
            .iter()
            .map(|it| Reply::approve(it.id.clone()))
            .collect();
        let reply = replying(&environment, replies);
        say("ready");
        wait();
        let request = match part.answers_first {
            true => Some(reply),
            false => abandoned(&store, &environment, 2).await.pop(),
        };
        match request {
            Some(request) => run(&agent, &world, &points, request).await,
            None => Said::Failed("Conflict".to_owned(), "nothing abandoned".to_owned()),
        }
    });
    say(&serde_json::to_string(&said).unwrap());
}

#[test]
fn c087_f043_one_of_several_processes_goes_on_with_a_run_and_tells_of_it() {
    let mut lost: BTreeMap<String, usize> = BTreeMap::new();
    let races: usize = setting("CONCENTRIC_RACES", 15);
    let (mut processes, mut winners, mut figures) = (0, 0, Figures::default());
    for race in 0..races {
        let dir = tempfile::tempdir().unwrap();
        let world = World::new(dir.path());
        let part = Part::new(dir.path(), "one");
        assert_eq!(part.start("resume_races::host").result(), Some(Said::Waits));

        // In one of three races the run was claimed by a process that is dead.
        let is_left = race % 3 == 2;
        if is_left {
            let mut dying = part.clone();
            dying.plan = Plan::KillAt("claim:after#1".to_owned());
            assert_eq!(dying.start("resume_races::host").result(), None);
        }
        let mut racers: Vec<_> = (0..2 + race % 7)
            .map(|n| {
                let mut part = part.clone();
                part.leases = 1;
                // Every other one answers anew; what was accepted counts all the same.
                part.answers_first = !is_left || n % 2 == 0;
                part.start("resume_races::racer")
            })
            .collect();
        for racer in &mut racers {
            assert_eq!(racer.hear().as_deref(), Some("ready"));
        }
        for racer in &mut racers {
            racer.go();
        }
        processes += racers.len();
        let mut won = 0;
        for racer in racers {
            match racer.result() {
                Some(Said::Over) => won += 1,
                Some(Said::Failed(kind, code)) => {
                    assert_eq!(kind, "Conflict", "race {race}: {code}");
                    assert!(
                        ["already_resumed", "run_ended", "nothing abandoned"].contains(&&*code),
                        "race {race}: {code}"
                    );
                    *lost.entry(code).or_default() += 1;
                }
                other => panic!("race {race}: {other:?}"),
            }
        }
        winners += won;
        assert_eq!(won, 1, "race {race}");
        let entries = world.entries();
        let count = |wanted: fn(&Entry) -> bool| entries.iter().filter(|e| wanted(e)).count();
        assert_eq!(
            count(|e| matches!(e, Entry::Started { .. })),
            1,
            "race {race}"
        );
        assert_eq!(count(|e| matches!(e, Entry::Approved(_))), 1, "race {race}");
        assert_eq!(count(|e| matches!(e, Entry::Over(_))), 1, "race {race}");
        figures += check(&world, ONE, &format!("race {race}"));
    }
    let refused: usize = lost.values().sum();
    println!(
        "{races} races of {processes} processes, {winners} resumed the run, {refused} refused; \
         {figures}"
    );
    println!("refused with: {lost:?}");
}
