//! The unmodified clients of `tests/clients`, if node and their packages are installed.

use axum::Router;
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};
use tokio::{net::TcpListener, time::timeout};

pub async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

pub fn clients() -> Option<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/clients");
    let node = std::process::Command::new("node")
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    if !node.is_ok_and(|status| status.success()) {
        eprintln!("skipped: node is not installed");
        return None;
    }
    let packages = ["@ag-ui/client", "ai", "ai6"].map(|name| dir.join("node_modules").join(name));
    if !packages.iter().all(|package| package.exists()) {
        eprintln!("skipped: run `npm ci` in {}", dir.display());
        return None;
    }
    Some(dir)
}

pub async fn node(dir: &Path, args: &[&str]) {
    let child = tokio::process::Command::new("node")
        .args(args)
        .current_dir(dir)
        .kill_on_drop(true)
        .output();
    let output = timeout(Duration::from_secs(120), child)
        .await
        .unwrap()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}\n{stdout}{stderr}");
    println!("{stdout}");
}
