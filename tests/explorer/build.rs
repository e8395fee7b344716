//! Copies the sources of `concentric-proto`, with planted bugs that are off until one is chosen.

use std::{env, error::Error, fs, path::Path};

/// The bug, its file, the text that it replaces and its text.
const PLANTED: &[(&str, &str, &str, &str)] = &[
    (
        "a_reply_is_consumed_twice",
        "call/state.rs",
        "resume.interrupted = true,",
        "resume.interrupted = !crate::planted::is(\"a_reply_is_consumed_twice\"),",
    ),
    (
        "a_call_is_dispatched_after_a_halt",
        "machine/end.rs",
        ".retain(|action| matches!(action, Action::Emit(_)));",
        ".retain(|action| crate::planted::is(\"a_call_is_dispatched_after_a_halt\") || matches!(action, Action::Emit(_)));",
    ),
    (
        "a_cancel_leaves_the_round_open",
        "machine/input.rs",
        "Input::Cancel(reason) => self.stop(Outcome::Aborted { reason }),",
        "Input::Cancel(reason) if crate::planted::is(\"a_cancel_leaves_the_round_open\") => {
            self.drop_stream();
            self.finish(Outcome::Aborted { reason });
        }
        Input::Cancel(reason) => self.stop(Outcome::Aborted { reason }),",
    ),
    (
        "an_outcome_is_overwritten",
        "machine/round.rs",
        "if !call.is_running() {
            return;
        }
        if outcome",
        "if !call.is_running() && !crate::planted::is(\"an_outcome_is_overwritten\") {
            return;
        }
        if outcome",
    ),
    (
        "a_run_ends_twice",
        "machine/input.rs",
        "if self.is_ended() {
            return;
        }",
        "if self.is_ended() && !crate::planted::is(\"a_run_ends_twice\") {
            return;
        }",
    ),
];

fn main() -> Result<(), Box<dyn Error>> {
    let from =
        Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../../crates/concentric-proto/src");
    let to = Path::new(&env::var("OUT_DIR")?).join("proto");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", from.display());
    // A file that was renamed would be found twice.
    if to.exists() {
        fs::remove_dir_all(&to)?;
    }
    copy(&from, &to)?;
    for (name, file, before, after) in PLANTED {
        let path = to.join(file);
        let text = fs::read_to_string(&path)?;
        match text.matches(before).count() {
            1 => fs::write(&path, text.replace(before, after))?,
            count => return Err(format!("{name}: `{before}` occurs {count} times").into()),
        }
    }
    let names: Vec<&str> = PLANTED.iter().map(|(name, ..)| *name).collect();
    let modules = format!(
        "/// The names of the planted bugs.
        pub const BUGS: &[&str] = &{names:?};
        #[allow(warnings, clippy::all, clippy::pedantic, clippy::restriction)]
        #[path = {:?}]
        pub(crate) mod proto;",
        to.join("lib.rs")
    );
    fs::write(to.with_file_name("planted.rs"), modules)?;
    Ok(())
}

/// Copies a folder of sources as those of the module `crate::planted::proto`.
fn copy(from: &Path, to: &Path) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to)?;
        } else {
            let text = fs::read_to_string(entry.path())?;
            fs::write(
                to,
                text.replace("crate::", "crate::planted::proto::")
                    // An exported macro is at the root of its crate.
                    .replace(
                        "crate::planted::proto::opaque_debug!",
                        "concentric_proto::opaque_debug!",
                    ),
            )?;
        }
    }
    Ok(())
}
