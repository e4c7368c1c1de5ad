//! A TCP relay between the product and the API server that a test can slow down, hold and cut.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ingress_e2e::TempDir;
use ingress_e2e::cluster::Cluster;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// Largest piece that is passed on at once.
const PIECE: usize = 16 * 1024;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Open,
    /// Pauses before each piece that the server sends.
    Slow(Duration),
    /// Keeps back what the server sends.
    Held,
    /// Ends connections, and new ones at once.
    Cut,
}

/// The relay. It ends when dropped.
pub struct Relay {
    addr: SocketAddr,
    mode: watch::Sender<Mode>,
    accepts: Arc<AtomicUsize>,
    task: JoinHandle<()>,
    dir: TempDir,
}

impl Relay {
    /// A relay to the cluster's API server, which may come and go behind it.
    pub async fn to(cluster: &Cluster) -> Self {
        let server: SocketAddr = cluster.server().strip_prefix("https://").unwrap().parse().unwrap();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (mode, modes) = watch::channel(Mode::Open);
        let accepts = Arc::new(AtomicUsize::new(0));
        let counter = accepts.clone();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::SeqCst);
                connections.spawn(pass(client, server, modes.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        Self { addr, mode, accepts, task, dir: TempDir::new("relay") }
    }

    /// A copy of a kubeconfig that leads here.
    pub fn kubeconfig(&self, of: &Path) -> PathBuf {
        let mut config: Value = serde_json::from_slice(&std::fs::read(of).unwrap()).unwrap();
        config["clusters"][0]["cluster"]["server"] = format!("https://{}", self.addr).into();
        self.dir.write("kubeconfig", config.to_string())
    }

    /// Connections accepted so far, those that were cut at once included.
    pub fn accepts(&self) -> usize {
        self.accepts.load(Ordering::SeqCst)
    }

    pub fn open(&self) {
        self.mode.send_replace(Mode::Open);
    }

    pub fn slow(&self, pause: Duration) {
        self.mode.send_replace(Mode::Slow(pause));
    }

    pub fn hold(&self) {
        self.mode.send_replace(Mode::Held);
    }

    pub fn cut(&self) {
        self.mode.send_replace(Mode::Cut);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pass(client: TcpStream, server: SocketAddr, modes: watch::Receiver<Mode>) {
    let mut cut = modes.clone();
    let both_ways = async {
        let server = TcpStream::connect(server).await?;
        let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
        tokio::try_join!(copy(from_client, to_server, None), copy(from_server, to_client, Some(modes)))?;
        io::Result::Ok(())
    };
    tokio::select! {
        _ = cut.wait_for(|mode| *mode == Mode::Cut) => {}
        _ = both_ways => {}
    }
}

async fn copy(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut modes: Option<watch::Receiver<Mode>>,
) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        let length = from.read(&mut piece).await?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(modes) = &mut modes {
            let mode = *modes.wait_for(|mode| *mode != Mode::Held).await.map_err(io::Error::other)?;
            if let Mode::Slow(pause) = mode {
                tokio::time::sleep(pause).await;
            }
        }
        to.write_all(&piece[..length]).await?;
    }
}
