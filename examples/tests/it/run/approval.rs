//! `approval`.

use super::*;

async fn approval(folder: &Folder, args: &[&str]) -> (Option<i32>, String, String) {
    output(command("approval", &folder.0).args(args)).await
}

/// Runs the example until it is interrupted, and returns the interrupt's id.
async fn interrupted(folder: &Folder, wish: &str) -> String {
    let (code, answer, notes) = approval(folder, &[wish]).await;
    assert_eq!((code, answer.as_str()), (Some(3), ""), "{notes}");
    let mut lines = notes.lines();
    let line = lines.rfind(|line| line.contains(" --approve "));
    line.unwrap().split_whitespace().last().unwrap().to_owned()
}

#[tokio::test]
async fn approval_is_given_in_another_process() {
    let folder = Folder::new("approve");
    let (code, _, notes) = approval(&folder, &["write hello to note.txt"]).await;
    assert_eq!(code, Some(3), "{notes}");
    assert!(notes.contains("Allow the call of `write_file`?"), "{notes}");
    assert!(
        notes.contains(r#"  write_file {"path":"note.txt","text":"hello"}"#),
        "{notes}"
    );
    assert_eq!(there(&folder, "note.txt"), None);

    // The interrupt stays open until there is a reply.
    let (code, _, again) = approval(&folder, &[]).await;
    assert_eq!(code, Some(3));
    assert!(notes.ends_with(&again), "{again}");

    let (code, answer, notes) = approval(&folder, &["--approve"]).await;
    let expected = (Some(0), "Wrote 5 bytes to note.txt.\n");
    assert_eq!((code, answer.as_str()), expected, "{notes}");
    assert!(!notes.contains("→"), "unexpected tool call: {notes}");
    assert_eq!(there(&folder, "note.txt").as_deref(), Some("hello"));
    let (code, _, notes) = approval(&folder, &[]).await;
    let expected = (Some(0), "No open interrupts.\n");
    assert_eq!((code, notes.as_str()), expected);
}

#[tokio::test]
async fn a_denial_or_edit_is_followed() {
    let folder = Folder::new("deny");
    interrupted(&folder, "write hello to note.txt").await;
    let (code, answer, notes) = approval(&folder, &["--deny", "Not on Sundays."]).await;
    assert_eq!(code, Some(0), "{notes}");
    assert!(answer.contains("Not on Sundays."), "{answer}");
    assert_eq!(there(&folder, "note.txt"), None);

    interrupted(&folder, "write hello to note.txt").await;
    let edited = r#"{"path": "src/other.txt", "text": "bye"}"#;
    let (code, answer, notes) = approval(&folder, &["--edit", edited]).await;
    assert_eq!(code, Some(0), "{notes}");
    assert_eq!(answer, "Wrote 3 bytes to src/other.txt.\n");
    assert_eq!(there(&folder, "note.txt"), None);
    assert_eq!(there(&folder, "src/other.txt").as_deref(), Some("bye"));
}

#[tokio::test]
async fn approval_accepts_one_reply() {
    let folder = Folder::new("twice");
    let id = interrupted(&folder, "write hello to note.txt").await;
    let (code, ..) = approval(&folder, &["--approve", &id]).await;
    assert_eq!(code, Some(0));
    std::fs::remove_file(folder.0.join("note.txt")).unwrap();
    for args in [vec!["--approve", &id], vec!["--deny", "no", &id]] {
        let (code, answer, notes) = approval(&folder, &args).await;
        assert_eq!((code, answer.as_str()), (Some(1), ""), "{notes}");
        assert!(notes.contains("the run is over"), "{notes}");
    }
    assert_eq!(there(&folder, "note.txt"), None);
    let (code, _, notes) = approval(&folder, &["--approve", "another"]).await;
    assert_eq!(code, Some(1));
    assert!(
        notes.contains("the run to resume does not exist"),
        "{notes}"
    );
}

#[tokio::test]
async fn approval_of_several_interrupts_requires_an_id() {
    let folder = Folder::new("several");
    let first = interrupted(&folder, "write one to one.txt").await;
    interrupted(&folder, "write two to two.txt").await;
    let (code, _, notes) = approval(&folder, &["--approve"]).await;
    assert_eq!(code, Some(1));
    assert!(notes.contains("pass an id"), "{notes}");
    let (code, ..) = approval(&folder, &["--approve", &first]).await;
    assert_eq!(code, Some(0));
    assert_eq!(there(&folder, "one.txt").as_deref(), Some("one"));
    assert_eq!(there(&folder, "two.txt"), None);
    let (code, ..) = approval(&folder, &["--deny", "no"]).await;
    assert_eq!(code, Some(0));
}

#[tokio::test]
async fn concurrent_approvals_count_once() {
    let folder = Folder::new("race");
    for round in 0..4 {
        let id = interrupted(&folder, &format!("write {round} to note.txt")).await;
        let answer = async || approval(&folder, &["--approve", &id]).await;
        let (one, other) = tokio::join!(answer(), answer());
        let (won, lost) = match one.0 {
            Some(0) => (one, other),
            _ => (other, one),
        };
        assert_eq!(won.0, Some(0), "{}\n{}", won.2, lost.2);
        assert_eq!((lost.0, lost.1.as_str()), (Some(1), ""), "{}", lost.2);
        assert!(lost.2.contains("Error: conflict: "), "{}", lost.2);
        assert_eq!(there(&folder, "note.txt"), Some(round.to_string()));
    }
}

/// Runs the example until it prints a line that begins with `line`, and kills it.
#[cfg(unix)]
async fn killed_after(folder: &Folder, args: &[&str], line: &str) {
    let mut command = command("approval", &folder.0);
    command.args(args).stdout(Stdio::null());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let printed = async {
        loop {
            let next = lines.next_line().await.unwrap().expect("a further line");
            if next.starts_with(line) {
                return;
            }
        }
    };
    timeout(LIMIT, printed).await.unwrap();
    child.kill().await.unwrap();
}

/// Resumes the run once the lease of the killed process has expired.
#[cfg(unix)]
async fn continued(folder: &Folder) -> (Option<i32>, String, String) {
    let again = async {
        loop {
            let found = approval(folder, &["--continue"]).await;
            if !found.2.contains("No abandoned runs.") {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    };
    timeout(LIMIT, again).await.unwrap()
}

#[cfg(unix)]
#[tokio::test]
async fn a_run_killed_after_the_write_does_not_repeat_it() {
    let folder = Folder::new("killed");
    let id = interrupted(&folder, "write hello to note.txt").await;
    killed_after(&folder, &["--approve", &id], "← write_file").await;
    // A second write would replace this text.
    std::fs::write(folder.0.join("note.txt"), "changed since").unwrap();
    let (code, answer, notes) = continued(&folder).await;
    let expected = (Some(0), "Wrote 5 bytes to note.txt.\n");
    assert_eq!((code, answer.as_str()), expected, "{notes}");
    let now = there(&folder, "note.txt");
    assert_eq!(now.as_deref(), Some("changed since"));
    let (code, _, notes) = approval(&folder, &["--approve", &id]).await;
    assert_eq!(code, Some(1));
    assert!(notes.contains("the run is over"), "{notes}");
}

#[cfg(unix)]
#[tokio::test]
async fn a_run_killed_while_reading_continues() {
    let folder = Folder::new("continue");
    killed_after(&folder, &[ABOUT], "← read_file").await;
    let (code, answer, notes) = continued(&folder).await;
    assert_eq!(code, Some(0), "{notes}");
    assert!(answer.contains("Keeps the lamp lit."), "{answer}");
}

#[tokio::test]
async fn approval_with_an_unknown_flag_prints_its_usage() {
    let folder = Folder::new("approval-usage");
    let (code, answer, notes) = approval(&folder, &["--aprove"]).await;
    assert_eq!((code, answer.as_str()), (Some(2), ""));
    assert!(notes.starts_with("Usage:"), "{notes}");
}
