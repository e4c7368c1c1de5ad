//! A folder of YAML files in the place of a cluster.
//!
//! Files are looked at four times a second. A change is taken in when the folder has held still
//! between two looks (an editor may be half way through a file), at the latest after a second.

use crate::cluster::parse_documents;
use crate::finding::Reason;
use crate::metrics::Metrics;
use crate::update::{Name, Object, Update};
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

const LOOK: Duration = Duration::from_millis(250);
/// Looks that a change may wait for the folder to hold still.
const PATIENCE: u32 = 3;
/// Deeper folders are taken for a loop of links.
const MAX_DEPTH: usize = 16;

/// Follows the folder for as long as somebody listens. Where `only` names namespaces, the objects of
/// others are left out.
pub(crate) async fn follow(
    dir: PathBuf,
    only: HashSet<Arc<str>>,
    updates: mpsc::Sender<Update>,
    metrics: Metrics,
) {
    let mut folder = Folder::new(dir, metrics);
    let mut clock = interval(LOOK);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        clock.tick().await;
        if let Some(mut objects) = folder.look() {
            objects.retain(|o| only.is_empty() || o.name().namespace().is_none_or(|n| only.contains(n)));
            if updates.send(Update::Files(objects)).await.is_err() {
                return;
            }
        }
    }
}

/// What tells one content of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    modified: (i64, i64),
    len: u64,
    inode: (u64, u64),
}

type Scan = BTreeMap<PathBuf, Stamp>;

/// One file's last good content.
struct Content {
    stamp: Stamp,
    objects: Vec<Object>,
    broken: bool,
}

struct Folder {
    dir: PathBuf,
    metrics: Metrics,
    files: BTreeMap<PathBuf, Content>,
    /// `None`: nothing was handed on yet
    loaded: Option<Scan>,
    last: Option<Scan>,
    waited: u32,
    unreadable: bool,
    doubles: HashSet<(Name, PathBuf)>,
}

impl Folder {
    fn new(dir: PathBuf, metrics: Metrics) -> Self {
        Self {
            dir,
            metrics,
            files: BTreeMap::new(),
            loaded: None,
            last: None,
            waited: 0,
            unreadable: false,
            doubles: HashSet::new(),
        }
    }

    /// Every object of the folder, when that is news.
    fn look(&mut self) -> Option<Vec<Object>> {
        let scan = match scan(&self.dir) {
            Ok(scan) => scan,
            Err(error) => {
                if !std::mem::replace(&mut self.unreadable, true) {
                    let dir = self.dir.display();
                    tracing::error!(%dir, %error, "the manifests cannot be read: keeping what there is");
                }
                return None;
            }
        };
        if std::mem::take(&mut self.unreadable) {
            tracing::info!(dir = %self.dir.display(), "the manifests can be read again");
        }
        if self.loaded.as_ref() == Some(&scan) {
            self.waited = 0;
            self.last = None;
            return None;
        }
        let still = self.loaded.is_none() || self.last.as_ref() == Some(&scan);
        if !still && self.waited < PATIENCE {
            self.waited += 1;
            self.last = Some(scan);
            return None;
        }
        self.waited = 0;
        self.last = None;
        self.load(&scan);
        self.loaded = Some(scan);
        Some(self.objects())
    }

    fn load(&mut self, scan: &Scan) {
        self.files.retain(|path, _| scan.contains_key(path));
        for (path, stamp) in scan {
            if self.files.get(path).is_some_and(|content| content.stamp == *stamp) {
                continue;
            }
            let old = self.files.remove(path).map(|content| content.objects);
            let (objects, broken) = match parse(path) {
                Ok(objects) => (objects, false),
                Err(read) => (old.unwrap_or(read), true),
            };
            self.files.insert(path.clone(), Content { stamp: *stamp, objects, broken });
        }
        let broken = self.files.values().filter(|content| content.broken).count();
        self.metrics.in_error("file", &Reason::Unparsable.to_string(), broken);
        tracing::info!(dir = %self.dir.display(), files = self.files.len(), broken, "manifests read");
    }

    /// The whole set; of an object that is written twice, the first in the order of file names.
    fn objects(&mut self) -> Vec<Object> {
        let mut seen = HashSet::new();
        let mut doubles = HashSet::new();
        let mut objects = Vec::new();
        for (path, content) in &self.files {
            for object in &content.objects {
                let name = object.name();
                if seen.insert(name.clone()) {
                    objects.push(object.clone());
                    continue;
                }
                if !self.doubles.contains(&(name.clone(), path.clone())) {
                    let file = path.display();
                    tracing::warn!(%file, object = %name, "an object is written twice: the first one counts");
                }
                doubles.insert((name, path.clone()));
            }
        }
        self.doubles = doubles;
        objects
    }
}

/// The file's objects; where something in it does not parse, those that do.
fn parse(path: &Path) -> Result<Vec<Object>, Vec<Object>> {
    let file = path.display();
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            tracing::warn!(%file, %error, "a manifest cannot be read: its last good content counts");
            return Err(Vec::new());
        }
    };
    let mut objects = Vec::new();
    let mut broken = false;
    let documents = catch_unwind(|| parse_documents(&text)).unwrap_or_else(|_| {
        tracing::error!(%file, "reading a manifest broke off: its last good content counts");
        broken = true;
        Vec::new()
    });
    for document in documents {
        match document {
            Ok(parsed) => objects.extend(Object::parsed(parsed)),
            Err(problem) => {
                broken = true;
                tracing::warn!(%file, %problem, "a manifest does not parse: its last good content counts");
            }
        }
    }
    objects.shrink_to_fit();
    if broken { Err(objects) } else { Ok(objects) }
}

/// Every manifest below the folder, in order.
pub(crate) fn files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(scan(dir)?.into_keys().collect())
}

/// Every manifest below the folder. Names that begin with a dot are left out: editors' drafts,
/// `.git`, and the `..data` folders behind a mounted ConfigMap's links.
fn scan(dir: &Path) -> io::Result<Scan> {
    let mut found = Scan::new();
    walk(dir, 0, &mut found)?;
    Ok(found)
}

fn walk(dir: &Path, depth: usize, found: &mut Scan) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")) {
            continue;
        }
        // follows links; what vanished since or leads nowhere is not there
        let meta = match fs::metadata(&path) {
            Ok(meta) => meta,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(error),
            Err(_) => continue,
        };
        if meta.is_dir() {
            if depth < MAX_DEPTH {
                match walk(&path, depth + 1, found) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
        } else if path.extension().is_some_and(|e| e == "yaml" || e == "yml") {
            let stamp = Stamp {
                modified: (meta.mtime(), meta.mtime_nsec()),
                len: meta.len(),
                inode: (meta.dev(), meta.ino()),
            };
            found.insert(path, stamp);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
