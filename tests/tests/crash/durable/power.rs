//! Power failures: a process is killed, and what it wrote to its databases and did not sync is lost.
//!
//! `unsynced.c`, loaded into the process, saves what each write replaces; see there for the format.
//! Without a C compiler, or on another system than Linux, no process can be started that way.

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// The library that a process must load; `None` where it cannot be built.
pub fn library() -> Option<&'static Path> {
    static LIBRARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    LIBRARY.get_or_init(build).as_deref()
}

fn build() -> Option<PathBuf> {
    if !cfg!(all(target_os = "linux", target_env = "gnu")) {
        return None;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/crash/durable/unsynced.c");
    let name = format!("unsynced-{}.so", std::process::id());
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O2", "-o"])
        .args([&library, &source])
        .status();
    match built {
        Ok(status) if status.success() => Some(library),
        Ok(status) => panic!("{} could not be built: {status}", source.display()),
        Err(error) => {
            println!("no power failures: cc: {error}");
            None
        }
    }
}

/// Takes back what the databases in `folder` were told and did not sync. No process may have them
/// open. Returns how many writes were lost.
pub fn fail(folder: &Path) -> usize {
    let mut lost = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let undo = entry.unwrap().path();
        if undo.extension().is_none_or(|extension| extension != "undo") {
            continue;
        }
        let records = fs::read(&undo).unwrap();
        let file = undo.with_extension("");
        if let Ok(file) = OpenOptions::new().write(true).open(&file) {
            for (offset, size, old) in parse(&records).into_iter().rev() {
                file.write_all_at(old, offset).unwrap();
                file.set_len(size).unwrap();
                lost += 1;
            }
        }
        fs::remove_file(&undo).unwrap();
        // The shared memory of the write-ahead log is not in the file system after a restart.
        if let Some(database) = file.to_str().and_then(|name| name.strip_suffix("-wal")) {
            let _ = fs::remove_file(format!("{database}-shm"));
        }
    }
    lost
}

/// The records of an undo file: offset, size of the file, old bytes. The process may have been killed
/// while it appended the last one: then the write that it is of never began.
fn parse(mut bytes: &[u8]) -> Vec<(u64, u64, &[u8])> {
    let mut records = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<24>() {
        let number = |at: usize| u64::from_ne_bytes(head[at..at + 8].try_into().unwrap());
        let (offset, length, size) = (number(0), number(8), number(16));
        let Some((old, rest)) = rest.split_at_checked(usize::try_from(length).unwrap()) else {
            break;
        };
        records.push((offset, size, old));
        bytes = rest;
    }
    records
}
