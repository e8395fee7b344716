//! Copies the modelled sources, with stand-ins for their imports, and with planted bugs.

use std::{env, error::Error, fmt::Write, fs, path::Path};

type Change = (&'static str, &'static str);

/// Name, file, and changes that reduce the number of steps.
const SOURCES: &[(&str, &str, &[Change])] = &[
    (
        "outbox",
        "concentric-core/src/outbox.rs",
        &[(
            "const CAPACITY: usize = 1024;",
            "const CAPACITY: usize = 1;",
        )],
    ),
    ("live", "concentric-core/src/hub.rs", &[]),
    ("slots", "concentric-core/src/slots/values.rs", &[]),
    // The last handle of a part returns its rest, so loom must count the handles.
    (
        "budget",
        "concentric-layers/src/budget/handle.rs",
        &[("sync::{Arc, ", "sync::{CountedArc as Arc, ")],
    ),
    ("in_flight", "concentric-layers/src/in_flight/mod.rs", &[]),
    ("body", "concentric-layers/src/body.rs", &[]),
    ("wait", "concentric-layers/src/wait.rs", &[]),
];

/// Name, file, prefix, the copied parts (first words and end), and suffix.
const PARTS: &[(&str, &str, &str, &[Change], &str)] = &[CANCEL];

const CANCEL: (&str, &str, &str, &[Change], &str) = (
    "cancel",
    "concentric-core/src/context/cancel.rs",
    "use crate::{outbox::source::Outbox, stand_in::{Token, std::sync::OnceLock}};
        use concentric_core::CancelReason;
        pub(crate) struct Cancel {
            pub(crate) reason: OnceLock<CancelReason>,
            pub(crate) token: Token,
        }
        pub(crate) struct Run {
            pub(crate) cancel: Cancel,
            pub(crate) outbox: Outbox,
        }
        pub(crate) struct Context {
            pub(crate) run: Run,
        }
        impl Context {
            const fn outer(&self) -> Option<&Self> {
                None
            }
            const fn parent(&self) -> Option<&Self> {
                None
            }
            const fn of_shared(&self) -> Option<&Cancel> {
                None
            }
            const fn own_cancel(&self) -> &Cancel {
                &self.run.cancel
            }
            const fn token(&self) -> &Token {
                &self.run.cancel.token
            }\n",
    &[
        ("    pub fn cancel(&self", "\n    }\n"),
        ("    pub fn is_cancelled(&self", "\n    }\n"),
        ("    pub fn cancel_reason(&self", "\n    }\n"),
    ],
    "}\n",
);

/// Name, source, the model that must find the bug, and the changes that plant it.
const PLANTED: &[(&str, &str, &str, &[Change])] = &[
    (
        "push_wakes_no_driver",
        "outbox",
        "pushes_wake_the_driver",
        &[(
            "let driver = queue.driver.take();\n        drop(queue);\n        if",
            "let driver: Option<Waker> = None;\n        drop(queue);\n        if",
        )],
    ),
    (
        "driver_is_never_registered",
        "outbox",
        "pushes_wake_the_driver",
        &[(
            "false => queue.driver.replace(waker.clone()),",
            "false => None::<Waker>,",
        )],
    ),
    (
        "pop_does_not_notify_senders",
        "outbox",
        "senders_wait_for_room",
        &[(
            "drop(queue);\n            self.room.notify_one();",
            "drop(queue);",
        )],
    ),
    (
        "send_checks_before_it_listens",
        "outbox",
        "close_ends_senders",
        &[
            ("let room = self.room.notified();", ""),
            ("room.await;", "self.room.notified().await;"),
        ],
    ),
    (
        "pop_forgets_the_call",
        "outbox",
        "a_call_of_the_driver_is_kept",
        &[(
            "queue.called || !queue.events.is_empty()",
            "!queue.events.is_empty()",
        )],
    ),
    (
        "flag_is_set_after_the_push",
        "outbox",
        "the_flag_reports_pending_events",
        &[
            (
                "self.filled.store(true, Ordering::Release);\n        let driver",
                "let driver",
            ),
            (
                "drop(queue);\n        if let Some(driver)",
                "drop(queue);\n        self.filled.store(true, Ordering::Release);\n        if let Some(driver)",
            ),
        ],
    ),
    (
        "accepted_reply_is_lost",
        "live",
        "an_accepted_reply_is_delivered",
        &[(
            "receiver.try_recv().map_err(|_| unanswered)",
            "Err(unanswered)",
        )],
    ),
    (
        "interrupt_outlives_its_request",
        "live",
        "a_dropped_interrupt_is_withdrawn",
        &[("self.of.lock().remove(&self.key);", "")],
    ),
    (
        "update_does_not_compare",
        "slots",
        "no_update_is_lost",
        &[(
            "if !Arc::ptr_eq(&value, &last) =>",
            "if !Arc::ptr_eq(&value, &value) =>",
        )],
    ),
    (
        "first_read_overwrites",
        "slots",
        "a_first_read_keeps_updates",
        &[(
            "Some(value) => value,\n            None => inner.set::<S>(place, read),",
            "_ => inner.set::<S>(place, read),",
        )],
    ),
    (
        "resume_is_repeated",
        "slots",
        "a_run_is_restored_once",
        &[("if !std::mem::replace(&mut inner.resumed, true) {", "{")],
    ),
    (
        "cancel_before_its_reason",
        "cancel",
        "a_cancelled_run_has_its_reason",
        &[
            ("let _ = self.own_cancel().reason.set(reason);", ""),
            (
                "self.run.outbox.call_driver();",
                "let _ = self.own_cancel().reason.set(reason);\n        self.run.outbox.call_driver();",
            ),
        ],
    ),
    (
        "check_and_reserve_apart",
        "budget",
        "reservations_stay_within_the_budget",
        &[(
            "let mut state = self.lock();\n        state.check(wanted)?;",
            "self.lock().check(wanted)?;\n        let mut state = self.lock();",
        )],
    ),
    (
        "part_is_not_returned",
        "budget",
        "a_part_is_returned",
        &[("(parent, estimate.plus(freed))", "(parent, estimate)")],
    ),
    (
        "stale_spending_is_kept",
        "budget",
        "a_run_keeps_its_spending",
        &[
            (
                "let _ = context.update_state::<Kept>(|_| {",
                "let state = *self.lock();\n            drop(self.lock());\n            let _ = context.update_state::<Kept>(|_| {",
            ),
            (
                "} = *self.lock();\n                Spent",
                "} = state;\n                Spent",
            ),
        ],
    ),
    (
        "permit_ends_with_the_future",
        "in_flight",
        "one_response_at_a_time",
        &[(
            "InFlightBody::new(body, permit)",
            "InFlightBody::new(body, None)",
        )],
    ),
    (
        "waiter_is_never_registered",
        "in_flight",
        "one_response_at_a_time",
        &[(
            "waiting.permit.poll_acquire(cx)",
            "waiting.permit.poll_acquire(&mut Context::from_waker(std::task::Waker::noop()))",
        )],
    ),
    (
        "place_is_never_released",
        "in_flight",
        "the_queue_is_bounded",
        &[("self.0.waiting.fetch_sub(1, Ordering::AcqRel);", "")],
    ),
    (
        "place_is_taken_in_two_steps",
        "in_flight",
        "the_queue_is_bounded",
        &[(
            "let has_place = limit.waiting.fetch_add(1, Ordering::AcqRel) < queue;",
            "let n = limit.waiting.load(Ordering::Acquire);
        limit.waiting.store(n + 1, Ordering::Release);
        let has_place = n < queue;",
        )],
    ),
];

fn main() -> Result<(), Box<dyn Error>> {
    let crates = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../../crates");
    let models = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("src/models");
    let out = env::var("OUT_DIR")?;
    println!("cargo::rerun-if-changed=build.rs");

    let mut texts = Vec::new();
    for (name, file, changes) in SOURCES {
        texts.push((*name, changed(&read(&crates.join(file))?, changes)?));
    }
    for (name, file, prefix, parts, suffix) in PARTS {
        let source = read(&crates.join(file))?;
        let mut text = (*prefix).to_owned();
        for (from, to) in *parts {
            let part = source
                .split_once(from)
                .and_then(|(_, rest)| rest.split_once(to));
            let (part, _) = part.ok_or_else(|| format!("`{from}` not found in {file}"))?;
            text += &[from, part, to].concat();
        }
        texts.push((*name, text + suffix));
    }
    for (name, text) in &texts {
        fs::write(format!("{out}/{name}.rs"), text)?;
    }

    let (mut modules, mut list) = (String::new(), String::new());
    for (name, source, model, changes) in PLANTED {
        let (_, text) = texts
            .iter()
            .find(|(of, _)| of == source)
            .ok_or("unknown source")?;
        let file = format!("{out}/planted_{name}.rs");
        fs::write(
            &file,
            changed(text, changes).map_err(|error| format!("{name}: {error}"))?,
        )?;
        let models = models.join(format!("{source}.rs"));
        writeln!(
            modules,
            "pub(crate) mod {name} {{
                #[allow(warnings, clippy::all, clippy::pedantic, clippy::restriction)]
                pub(crate) mod source {{ include!({file:?}); }}
                #[allow(dead_code)]
                #[path = {models:?}]
                pub(crate) mod models;
                #[allow(unused_imports)]
                use crate::{source}::imports::*;
            }}"
        )?;
        writeln!(
            list,
            "({name:?}, {source:?}, {model:?}, {name}::models::{model} as fn()),"
        )?;
    }
    let planted =
        format!("{modules}\npub(crate) const ALL: &[(&str, &str, &str, fn())] = &[\n{list}];\n");
    fs::write(format!("{out}/planted.rs"), planted)?;
    Ok(())
}

/// Returns the text of a file, including modules in files of their own.
fn read(file: &Path) -> Result<String, Box<dyn Error>> {
    println!("cargo::rerun-if-changed={}", file.display());
    let mut text = String::new();
    for line in fs::read_to_string(file)?.lines() {
        let module = line
            .strip_prefix("mod ")
            .and_then(|rest| rest.strip_suffix(';'));
        if module == Some("shared") {
            // The connection with a store is not modelled.
            text += "mod shared { pub(super) use crate::shared::Link; }\n";
        } else if let Some(module) = module {
            let inner = read(&file.with_file_name(format!("{module}.rs")))?;
            writeln!(text, "mod {module} {{\n{inner}}}")?;
        } else if !line.starts_with("//!") {
            let imported = ["std", "tokio", "tokio_util"].into_iter().find_map(|from| {
                let rest = line.strip_prefix(&format!("use {from}::"))?;
                Some(format!("use crate::stand_in::{from}::{rest}"))
            });
            // Imports of the parent module are used by the models beside it.
            text += &imported
                .as_deref()
                .unwrap_or(line)
                .replace("pub(super)", "pub(crate)");
            text.push('\n');
        }
    }
    Ok(text)
}

/// Applies changes, each to a text that occurs exactly once.
fn changed(text: &str, changes: &[Change]) -> Result<String, String> {
    changes
        .iter()
        .try_fold(text.to_owned(), |text, (from, to)| {
            match text.matches(from).count() {
                1 => Ok(text.replace(from, to)),
                count => Err(format!("`{from}` occurs {count} times")),
            }
        })
}
