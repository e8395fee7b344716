//! The file tools, called through an agent's tool service.

use concentric::{
    Context, ToolCall,
    id::CallId,
    message::{ToolCallPart, ToolStatus},
    tools::Tool,
};
use quickstart::files;
use serde_json::{Value, json};
use std::{fs, path::PathBuf};
use tower::ServiceExt;

/// The size over which a file is not searched.
const LIMIT: usize = 4 * 1024 * 1024;

/// A folder that is removed when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("concentric-tools-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: impl AsRef<std::ffi::OsStr>, content: impl AsRef<[u8]>) {
        fs::write(self.0.join(name.as_ref()), content).unwrap();
    }

    async fn call(&self, name: &str, arguments: Value) -> (ToolStatus, String) {
        let tools = files::tools(&self.0).unwrap();
        let tools = tools.tool(files::write_file(&self.0).unwrap());
        let tool: Tool = tools
            .iter()
            .find(|tool| tool.spec().name == name)
            .unwrap()
            .clone();
        let part = ToolCallPart::new(CallId::new("call"), name, arguments.to_string());
        let call = ToolCall::new(part, Context::new());
        let outcome = tool.oneshot(call).await.unwrap();
        (outcome.status, outcome.content.text().into_owned())
    }

    async fn done(&self, name: &str, arguments: Value) -> String {
        let (status, text) = self.call(name, arguments).await;
        assert_eq!(status, ToolStatus::Done, "{text}");
        text
    }

    async fn failed(&self, name: &str, arguments: Value) -> String {
        let (status, text) = self.call(name, arguments).await;
        assert_eq!(status, ToolStatus::Failed, "{text}");
        text
    }

    async fn search(&self, text: &str) -> String {
        self.done("search_files", json!({"text": text})).await
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[tokio::test]
async fn a_search_reports_skipped_files() {
    let folder = Folder::new("left-out");
    folder.file("a.txt", "here\n");
    assert_eq!(folder.search("here").await, "a.txt:1: here\n");

    folder.file("large.txt", "here\n".repeat(LIMIT / 5 + 1));
    assert_eq!(
        folder.search("here").await,
        "a.txt:1: here\n1 file was not searched: larger than 4 MiB or not text.\n"
    );
    folder.file("binary", b"here\0");
    folder.file("latin1.txt", b"here caf\xe9");
    assert_eq!(
        folder.search("nowhere").await,
        "No line of 1 searched file contains \"nowhere\".\n\
         3 files were not searched: larger than 4 MiB or not text.\n"
    );
    let one = json!({"text": "here", "path": "binary"});
    assert!(
        folder
            .done("search_files", one)
            .await
            .ends_with("1 file was not searched: larger than 4 MiB or not text.\n")
    );
}

#[tokio::test]
async fn a_file_of_the_maximum_size_is_searched() {
    let folder = Folder::new("at-limit");
    let mut text = "x".repeat(LIMIT - 6);
    text.push_str("\nthere");
    folder.file("a.txt", &text);
    assert_eq!(folder.search("there").await, "a.txt:2: there\n");
    let last = json!({"path": "a.txt", "first_line": 2});
    assert_eq!(
        folder.done("read_file", last).await,
        "a.txt, lines 2 to 2 of 2:\nthere\n"
    );
}

#[tokio::test]
async fn a_search_reports_skipped_folders() {
    let folder = Folder::new("deep");
    let deep: PathBuf = std::iter::repeat_n("d", 70).collect();
    fs::create_dir_all(folder.0.join(&deep)).unwrap();
    folder.file(deep.join("a.txt"), "here\n");
    assert_eq!(
        folder.search("here").await,
        "No line of 0 searched files contains \"here\".\n\
         1 folder was not searched: not readable or nested too deep.\n"
    );
}

#[tokio::test]
async fn a_list_at_its_limit_is_complete() {
    let folder = Folder::new("many");
    for index in 0..500 {
        folder.file(format!("{index:03}.txt"), "x");
    }
    let all = folder.done("list_files", json!({})).await;
    assert!(all.ends_with("499.txt (1 byte)\n"), "{all}");
    folder.file("500.txt", "x");
    let some = folder.done("list_files", json!({})).await;
    assert!(
        some.ends_with("499.txt (1 byte)\nOnly the first 500 entries are listed.\n"),
        "{some}"
    );
}

#[tokio::test]
async fn a_long_matching_line_is_shown_as_cut() {
    let folder = Folder::new("long-line");
    folder.file("a.txt", format!("here {}", "x".repeat(500)));
    let found = folder.search("here").await;
    assert!(found.ends_with("x…\n"), "{found}");
}

#[tokio::test]
async fn a_line_past_the_limit_is_reported() {
    let folder = Folder::new("past");
    // Lines of 16 bytes, of which the limit holds a whole number less one byte.
    folder.file("a.txt", format!("x{}", "123456789012345\n".repeat(400_000)));
    let readable = LIMIT / 16 - 1;
    let read = async |first| {
        let arguments = json!({"path": "a.txt", "first_line": first, "lines": 1});
        folder.call("read_file", arguments).await
    };
    let head = format!(
        " of the first {readable}. The file is larger than 4 MiB, and only these {readable} can \
         be read:\n"
    );
    assert_eq!(
        read(1).await.1,
        format!("a.txt, lines 1 to 1{head}x123456789012345\n")
    );
    assert_eq!(
        read(readable).await.1,
        format!("a.txt, lines {readable} to {readable}{head}123456789012345\n")
    );
    assert_eq!(
        read(300_000).await,
        (
            ToolStatus::Failed,
            format!("Only the first {readable} lines can be read: the file is larger than 4 MiB.")
        )
    );
}

#[tokio::test]
async fn a_large_file_of_one_line_is_read_in_part() {
    let folder = Folder::new("one-line");
    // The limit falls within a character.
    folder.file("a.txt", format!("x{}", "é".repeat(LIMIT / 2)));
    let text = folder.done("read_file", json!({"path": "a.txt"})).await;
    assert!(
        text.starts_with("a.txt, lines 1 to 1 of the first 1. The file is larger than 4 MiB"),
        "{}",
        text.lines().next().unwrap()
    );
    assert!(text.ends_with("é…\n(The rest of this line is too long to be shown.)\n"));
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn escaped_names_are_unique() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
    let folder = Folder::new("bytes");
    folder.file(OsStr::from_bytes(b"bad\xff.txt"), "bytes\n");
    folder.file("bad\u{fffd}.txt", "character!\n");
    folder.file(r"bad\xff.txt", "backslash\n");
    assert_eq!(
        folder.done("list_files", json!({})).await,
        "\"bad\\\\xff.txt\" (10 bytes)\nbad\u{fffd}.txt (11 bytes)\n\"bad\\xff.txt\" (6 bytes)\n"
    );
    assert_eq!(folder.search("bytes").await, "\"bad\\xff.txt\":1: bytes\n");
    assert_eq!(
        folder.search("character").await,
        "bad\u{fffd}.txt:1: character!\n"
    );
    let read = folder.done("read_file", json!({"path": "bad\u{fffd}.txt"}));
    assert!(read.await.ends_with("character!\n"));
    let read = folder.done("read_file", json!({"path": r"bad\xff.txt"}));
    assert_eq!(
        read.await,
        "\"bad\\\\xff.txt\", lines 1 to 1 of 1:\nbackslash\n"
    );
    let quoted = folder.failed("read_file", json!({"path": r#""bad\xff.txt""#}));
    assert!(quoted.await.contains("no such file"));
}

#[cfg(unix)]
#[tokio::test]
async fn a_name_cannot_add_a_line_or_hide_its_end() {
    let folder = Folder::new("lines");
    let names = [
        ("a\nb.txt (3 bytes)", r#""a\u000ab.txt (3 bytes)""#),
        ("c\r\u{1b}[2K", r#""c\u000d\u001b[2K""#),
        ("d\u{202e}txt.exe", r#""d\u202etxt.exe""#),
        ("e.txt:2: here", r#""e.txt:2: here""#),
        ("f\"g", r#""f\"g""#),
        ("h ", r#""h ""#),
        ("i j é.txt", "i j é.txt"),
    ];
    for (name, _) in names {
        folder.file(name, "here\n");
    }
    let listed = names.map(|(_, shown)| format!("{shown} (5 bytes)\n"));
    assert_eq!(folder.done("list_files", json!({})).await, listed.concat());
    let found = names.map(|(_, shown)| format!("{shown}:1: here\n"));
    assert_eq!(folder.search("here").await, found.concat());
    for (name, shown) in names {
        let read = folder.done("read_file", json!({"path": name})).await;
        assert_eq!(read, format!("{shown}, lines 1 to 1 of 1:\nhere\n"));
        let written = folder.done("write_file", json!({"path": name, "text": "x"}));
        assert_eq!(written.await, format!("Wrote 1 byte to {shown}."));
    }
}

#[tokio::test]
async fn a_path_of_a_folder_is_not_written() {
    let folder = Folder::new("slash");
    folder.file("there.txt", "old\n");
    for name in ["there.txt", "new.txt"] {
        for end in ["/", "/.", "//", "/./", "/./."] {
            let path = format!("{name}{end}");
            let written = folder.failed("write_file", json!({"path": path, "text": "x"}));
            assert_eq!(written.await, "The path must end with the file's name.");
            let read = folder.failed("read_file", json!({"path": path}));
            assert!(read.await.contains("no such file"), "{path}");
        }
    }
    assert_eq!(
        fs::read_to_string(folder.0.join("there.txt")).unwrap(),
        "old\n"
    );
    assert!(!folder.0.join("new.txt").exists());
    for path in ["new.txt", "./there.txt", ".//new.txt"] {
        folder
            .done("write_file", json!({"path": path, "text": "x"}))
            .await;
    }
}
