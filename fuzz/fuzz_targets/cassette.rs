//! Cassettes: any file is read or refused, and what was recorded is replayed, without its secrets.
use arbitrary::{Arbitrary, Unstructured};
use bytes::Bytes;
use concentric_fuzz::block_on;
use concentric_test::cassette::{RecordLayer, Redaction, ReplayLayer};
use http_body_util::{BodyExt, Full};
use std::{convert::Infallible, fs, future::ready, path::PathBuf};
use tower::{Layer, ServiceExt, service_fn};

const SECRET: &str = "sk-canary-0123456789";

#[derive(Arbitrary, Debug)]
struct Case {
    exchanges: Vec<Exchange>,
}

#[derive(Arbitrary, Clone, Debug)]
struct Exchange {
    path: u8,
    request: Vec<u8>,
    answer: Vec<u8>,
    status: u8,
    /// Where the secret stands: in the request, in the answer.
    secret: (bool, bool),
}

impl Exchange {
    fn request(&self, at: usize) -> http::Request<Full<Bytes>> {
        // Each is another, so that it is known which answer is whose.
        let mut body = format!("{at}:").into_bytes();
        body.extend(&self.request);
        if self.secret.0 {
            body.extend(SECRET.as_bytes());
        }
        http::Request::post(format!("http://fuzz.test/v1/{}", self.path % 4))
            .header("authorization", format!("Bearer {SECRET}"))
            .body(Full::new(body.into()))
            .expect("a request")
    }

    fn answer(&self) -> Bytes {
        let mut answer = self.answer.clone();
        if self.secret.1 {
            answer.extend(SECRET.as_bytes());
        }
        answer.into()
    }

    fn status(&self) -> http::StatusCode {
        let status = [200, 400, 429, 500];
        http::StatusCode::from_u16(status[usize::from(self.status % 4)]).expect("a status")
    }
}

/// A file of this process's own, in memory where there is such a folder.
fn file() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    let folder = if memory.is_dir() {
        memory
    } else {
        std::env::temp_dir()
    };
    folder.join(format!("concentric-cassette-{}.jsonl", std::process::id()))
}

pub(crate) fn run(bytes: &[u8]) {
    let path = file();
    if bytes.first() == Some(&b'{') {
        fs::write(&path, bytes).expect("a file");
        let Ok(replay) = ReplayLayer::load(&path) else {
            return;
        };
        let request = http::Request::post("http://fuzz.test/v1/chat/completions")
            .body(Full::new(Bytes::from_static(b"{}")))
            .expect("a request");
        block_on(async {
            let response = replay.reuse().layer(()).oneshot(request).await;
            if let Ok(response) = response {
                // Its pieces are its body's, whatever the file says of them.
                drop(response.into_body().collect().await);
            }
        });
        return;
    }
    let Ok(case) = Case::arbitrary_take_rest(Unstructured::new(bytes)) else {
        return;
    };
    let _ = fs::remove_file(&path);
    let exchanges: Vec<_> = case.exchanges.into_iter().take(8).collect();
    let redaction = || Redaction::default().value(SECRET);
    let record = RecordLayer::new(&path).redaction(redaction());
    for (at, exchange) in exchanges.iter().enumerate() {
        let (status, answer) = (exchange.status(), exchange.answer());
        let http = service_fn(move |_: http::Request<Full<Bytes>>| {
            let mut response = http::Response::new(Full::new(answer.clone()));
            *response.status_mut() = status;
            ready(Ok::<_, Infallible>(response))
        });
        block_on(async {
            let response = record.layer(http).oneshot(exchange.request(at)).await;
            let response = response.expect("an answer");
            let body = response.into_body().collect().await.expect("a body");
            assert_eq!(
                body.to_bytes(),
                exchange.answer(),
                "the recorder changes it"
            );
        });
    }
    record.save().expect("it is written");
    let text = fs::read(&path).expect("a file");
    let has_secret = text.windows(SECRET.len()).any(|w| w == SECRET.as_bytes());
    assert!(!has_secret, "a secret is kept");

    let replay = ReplayLayer::load(&path).expect("what was written is read");
    let replay = replay.redaction(redaction());
    for (at, exchange) in exchanges.iter().enumerate() {
        block_on(async {
            let response = replay.layer(()).oneshot(exchange.request(at)).await;
            let response = response.expect("it was recorded");
            assert_eq!(response.status(), exchange.status());
            let body = response.into_body().collect().await.expect("a body");
            let expected = exchange.answer();
            let has = |bytes: &[u8]| bytes.windows(SECRET.len()).any(|w| w == SECRET.as_bytes());
            if !has(&expected) {
                assert_eq!(body.to_bytes(), expected, "another answer");
            }
        });
    }
    assert_eq!(replay.unused(), 0);
}
