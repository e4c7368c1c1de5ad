//! A control plane to work against by hand: etcd and kube-apiserver on loopback, with a DNS server
//! for Service names. Prints where they are and ends with its standard input.
//!
//! `cargo run -p tak-os-ingress-e2e --example control_plane -- web.demo.svc.cluster.local=127.0.0.1`

use ingress_e2e::cluster::Cluster;
use ingress_e2e::dns::DnsServer;
use std::io::{Read, Write};
use std::net::IpAddr;

#[tokio::main]
async fn main() {
    let cluster = Cluster::start().await;
    let dns = DnsServer::start().await;
    for pair in std::env::args().skip(1) {
        let Some((name, address)) = pair.split_once('=') else { continue };
        if let Ok(ip) = address.parse::<IpAddr>() {
            dns.set(name, vec![ip]);
        }
    }
    let mut out = std::io::stdout();
    let _ = writeln!(out, "KUBECONFIG={}\nDNS={}", cluster.admin_kubeconfig().display(), dns.addr());
    let _ = out.flush();
    let _ = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await;
}
