use super::*;
use concentric::Context;

/// A folder that is removed when it is dropped.
struct Temp(PathBuf);

impl Temp {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("concentric-files-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("inside/sub")).unwrap();
        fs::create_dir_all(path.join("inside/target")).unwrap();
        fs::write(path.join("outside.txt"), "not yours\n").unwrap();
        fs::write(path.join("inside/a.txt"), "one\nTwo\nthree\n").unwrap();
        fs::write(path.join("inside/sub/b.txt"), "two again\n").unwrap();
        fs::write(path.join("inside/target/made.txt"), "two by a machine\n").unwrap();
        fs::write(path.join("inside/.env"), "KEY=two\n").unwrap();
        fs::write(path.join("inside/binary"), b"two\0\x01").unwrap();
        fs::write(path.join("inside/latin1.txt"), b"two caf\xe9").unwrap();
        Self(path)
    }

    fn folder(&self) -> Folder {
        Folder::open(&self.0.join("inside")).unwrap()
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn read(folder: &Folder, path: &str) -> Result<String, String> {
    let args = ReadFile {
        path: path.to_owned(),
        first_line: None,
        lines: None,
    };
    folder
        .read(&args, &Context::new())
        .map_err(|error| error.message().to_owned())
}

#[test]
fn a_list_omits_hidden_and_generated_files() {
    let temp = Temp::new("list");
    let list = |path: Option<&str>, depth| {
        let args = ListFiles {
            path: path.map(str::to_owned),
            depth,
        };
        temp.folder().list(&args, &Context::new()).unwrap()
    };
    let all =
        "a.txt (14 bytes)\nbinary (5 bytes)\nlatin1.txt (8 bytes)\nsub/\nsub/b.txt (10 bytes)\n";
    assert_eq!(list(None, None), all);
    assert!(!list(None, Some(1)).contains("b.txt"));
    assert_eq!(list(Some("sub"), None), "sub/b.txt (10 bytes)\n");
}

#[test]
fn a_search_finds_lines_in_text_files() {
    let temp = Temp::new("search");
    let search = |text: &str, max_hits| {
        let args = SearchFiles {
            text: text.to_owned(),
            path: None,
            max_hits,
        };
        temp.folder().search(&args, &Context::new()).unwrap()
    };
    assert_eq!(
        search("TWO", None),
        "a.txt:2: Two\nsub/b.txt:1: two again\n\
         2 files were not searched: larger than 4 MiB or not text.\n"
    );
    assert!(search("two", Some(1)).starts_with("a.txt:2: Two\nThere are more"));
    assert!(search("nowhere", None).starts_with("No line"));
}

#[test]
fn a_file_is_read_by_lines() {
    let temp = Temp::new("read");
    let folder = temp.folder();
    let args = |first_line, lines| ReadFile {
        path: "a.txt".into(),
        first_line,
        lines,
    };
    let context = Context::new();
    let some = folder.read(&args(Some(2), Some(1)), &context).unwrap();
    assert_eq!(some, "a.txt, lines 2 to 2 of 3:\nTwo\n");
    let error = folder.read(&args(Some(9), None), &context).unwrap_err();
    assert_eq!(error.message(), "The file has only 3 lines.");
}

#[test]
fn binary_files_are_rejected() {
    let temp = Temp::new("binary");
    assert!(
        read(&temp.folder(), "binary")
            .unwrap_err()
            .contains("binary")
    );
    assert!(
        read(&temp.folder(), "latin1.txt")
            .unwrap_err()
            .contains("UTF-8")
    );
    assert!(read(&temp.folder(), "sub").unwrap_err().contains("folder"));
}

#[test]
fn no_path_leads_out_of_the_folder() {
    let temp = Temp::new("confined");
    let outside = temp.0.join("outside.txt");
    for path in [
        "../outside.txt",
        "sub/../../outside.txt",
        &outside.to_string_lossy(),
    ] {
        assert!(
            read(&temp.folder(), path).unwrap_err().contains("relative"),
            "{path}"
        );
    }
    assert!(
        read(&temp.folder(), "missing.txt")
            .unwrap_err()
            .contains("no such file")
    );
    assert!(read(&temp.folder(), ".env").unwrap_err().contains("Hidden"));
}

#[cfg(unix)]
#[test]
fn no_link_leads_out_of_the_folder() {
    use std::os::unix::fs::symlink;
    let temp = Temp::new("links");
    let inside = temp.0.join("inside");
    symlink(temp.0.join("outside.txt"), inside.join("link.txt")).unwrap();
    symlink(&temp.0, inside.join("up")).unwrap();
    symlink(inside.join(".env"), inside.join("env.txt")).unwrap();
    symlink(inside.join("a.txt"), inside.join("fine.txt")).unwrap();
    for path in ["link.txt", "up/outside.txt"] {
        assert!(
            read(&temp.folder(), path)
                .unwrap_err()
                .contains("leads out"),
            "{path}"
        );
    }
    assert!(
        read(&temp.folder(), "env.txt")
            .unwrap_err()
            .contains("Hidden")
    );
    assert!(read(&temp.folder(), "fine.txt").is_ok());
    let args = SearchFiles {
        text: "yours".into(),
        path: None,
        max_hits: None,
    };
    assert!(
        temp.folder()
            .search(&args, &Context::new())
            .unwrap()
            .starts_with("No line")
    );
}

#[test]
fn a_cancelled_run_stops_a_walk() {
    let temp = Temp::new("cancelled");
    let context = Context::new();
    context.cancel(concentric::CancelReason::User);
    let args = SearchFiles {
        text: "two".into(),
        path: None,
        max_hits: None,
    };
    let error = temp.folder().search(&args, &context).unwrap_err();
    assert!(error.message().contains("cancelled"));
}

fn write(folder: &Folder, path: &str, text: &str) -> Result<String, String> {
    let args = WriteFile {
        path: path.to_owned(),
        text: text.to_owned(),
    };
    folder
        .write(&args, &Context::new())
        .map_err(|error| error.message().to_owned())
}

#[test]
fn a_file_is_written_atomically() {
    let temp = Temp::new("write");
    let folder = temp.folder();
    let there = |path: &str| fs::read_to_string(temp.0.join("inside").join(path)).unwrap();
    let message = write(&folder, "new.txt", "héllo").unwrap();
    assert_eq!(message, "Wrote 6 bytes to new.txt.");
    assert_eq!(there("new.txt"), "héllo");
    write(&folder, "./sub/b.txt", "").unwrap();
    assert_eq!(there("sub/b.txt"), "");
    let mut all = fs::read_dir(temp.0.join("inside")).unwrap().flatten();
    assert!(!all.any(|entry| entry.file_name().to_string_lossy().ends_with(".tmp")));
}

#[test]
fn no_path_leads_a_file_out_of_the_folder() {
    let temp = Temp::new("write-out");
    let folder = temp.folder();
    let outside = temp.0.join("outside.txt");
    for path in [
        "../outside.txt",
        "sub/../../outside.txt",
        &outside.to_string_lossy(),
        "",
        ".",
        "..",
        "sub/..",
        "sub",
        "missing/new.txt",
        "a.txt/new.txt",
        ".env",
        ".git/config",
        "sub/.hidden",
    ] {
        assert!(write(&folder, path, "mine").is_err(), "{path}");
    }
    assert_eq!(fs::read_to_string(&outside).unwrap(), "not yours\n");
    let hidden = fs::read_to_string(temp.0.join("inside/.env"));
    assert_eq!(hidden.unwrap(), "KEY=two\n");
}

#[cfg(unix)]
#[test]
fn no_link_leads_a_file_out_of_the_folder() {
    use std::os::unix::fs::symlink;
    let temp = Temp::new("write-links");
    let inside = temp.0.join("inside");
    symlink(temp.0.join("outside.txt"), inside.join("link.txt")).unwrap();
    symlink(temp.0.join("new.txt"), inside.join("dangling.txt")).unwrap();
    symlink(&temp.0, inside.join("up")).unwrap();
    for path in ["link.txt", "dangling.txt", "up/outside.txt", "up/new.txt"] {
        assert!(write(&temp.folder(), path, "mine").is_err(), "{path}");
    }
    let outside = fs::read_to_string(temp.0.join("outside.txt"));
    assert_eq!(outside.unwrap(), "not yours\n");
    assert!(!temp.0.join("new.txt").exists());
}
