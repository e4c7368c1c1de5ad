//! The conformance suite of HTTP/2 servers.

mod common;

use std::process::Command;
use std::time::Duration;

use common::{HOST, Ingress, serve, service};
use ingress_e2e::origin::Origin;
use ingress_e2e::peers;

/// Cases that the product does not pass. Each has its reason in docs/http2.md.
const DEVIATIONS: [&str; 0] = [];

#[tokio::test(flavor = "multi_thread")]
async fn http2_is_spoken_to_the_letter() {
    let origin = Origin::echo().await;
    // The suite names the address, for which there is no rule but the one for every host.
    let product = serve([
        Ingress::new("web").prefix("", "/", "web").prefix(HOST, "/", "web").yaml(),
        service("web", &[origin.addr()]),
    ])
    .await;
    for (mode, least) in [(&[][..], 145), (&["--strict"], 146)] {
        let mut command = Command::new(peers::program("h2spec"));
        command
            .args(["-h", "127.0.0.1", "-t", "-k", "-o", "5", "-p"])
            .arg(product.https().port().to_string());
        command.args(mode);
        let run = tokio::task::spawn_blocking(move || command.output().unwrap());
        let output = tokio::time::timeout(Duration::from_secs(300), run).await.unwrap().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let (done, passed) = summary(&text);
        assert!(done >= least && passed == done - DEVIATIONS.len(), "{text}");
    }
    assert!(origin.requests() > 0, "the suite has reached the backend");
}

/// Of `145 tests, 145 passed, 0 skipped, 0 failed`, the first two.
fn summary(text: &str) -> (usize, usize) {
    let line = text.lines().rev().find(|line| line.contains(" tests, ")).unwrap_or_else(|| panic!("{text}"));
    let mut numbers = line.split(", ").filter_map(|part| part.split(' ').next()?.parse().ok());
    (numbers.next().unwrap(), numbers.next().unwrap())
}
