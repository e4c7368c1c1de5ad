use super::*;
use crate::metrics::testing::{metrics, value};
use prometheus::Registry;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::time::{Instant, timeout};

/// A folder that is removed with its last user.
struct Temp(PathBuf);

impl Temp {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("tak-manifests-{}-{n}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn folder(&self) -> (Folder, Registry) {
        let (metrics, registry) = metrics();
        (Folder::new(self.0.clone(), metrics), registry)
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn ingress(name: &str) -> String {
    format!("apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: {name}, namespace: shop}}\n")
}

fn names(objects: &[Object]) -> Vec<String> {
    objects.iter().map(|o| o.name().to_string()).collect()
}

/// Looks until the folder's state is taken in.
fn read(folder: &mut Folder) -> Vec<String> {
    (0..=PATIENCE).find_map(|_| folder.look()).map(|o| names(&o)).expect("news within a second")
}

#[test]
fn every_manifest_below_the_folder_is_read_and_nothing_else() {
    let temp = Temp::new();
    temp.write("a.yaml", &format!("{}---\n{}", ingress("one"), ingress("two")));
    temp.write("deep/er/b.yml", &ingress("three"));
    temp.write("notes.txt", "no");
    temp.write(".draft.yaml", &ingress("no"));
    temp.write(".git/x.yaml", &ingress("no"));
    let (mut folder, _) = temp.folder();
    let first = names(&folder.look().expect("the first look counts at once"));
    assert_eq!(first, ["ingress/shop/one", "ingress/shop/two", "ingress/shop/three"]);
    assert!(folder.look().is_none());
}

#[test]
fn an_empty_folder_is_news_once() {
    let temp = Temp::new();
    let (mut folder, _) = temp.folder();
    assert_eq!(folder.look().map(|o| o.len()), Some(0));
    assert!(folder.look().is_none());
}

#[test]
fn changed_added_and_removed_files_count() {
    let temp = Temp::new();
    temp.write("a.yaml", &ingress("one"));
    temp.write("b.yaml", &ingress("two"));
    let (mut folder, _) = temp.folder();
    read(&mut folder);
    temp.write("a.yaml", &ingress("other"));
    temp.write("c.yaml", &ingress("three"));
    fs::remove_file(temp.0.join("b.yaml")).unwrap();
    assert_eq!(read(&mut folder), ["ingress/shop/other", "ingress/shop/three"]);
}

#[test]
fn a_change_waits_for_the_folder_to_hold_still_but_not_for_ever() {
    let temp = Temp::new();
    temp.write("a.yaml", &ingress("one"));
    let (mut folder, _) = temp.folder();
    read(&mut folder);
    temp.write("a.yaml", "");
    assert!(folder.look().is_none(), "half way through a write");
    temp.write("a.yaml", &ingress("longer"));
    assert!(folder.look().is_none());
    assert_eq!(folder.look().map(|o| names(&o)), Some(vec!["ingress/shop/longer".to_owned()]));
    let looks = (0..20).position(|n| {
        temp.write("a.yaml", &ingress(&"x".repeat(n + 1)));
        folder.look().is_some()
    });
    assert_eq!(looks, Some(PATIENCE as usize));
}

#[test]
fn a_broken_file_keeps_its_last_good_content_and_is_counted() {
    let temp = Temp::new();
    temp.write("a.yaml", &ingress("one"));
    temp.write("b.yaml", &ingress("two"));
    let (mut folder, registry) = temp.folder();
    let broken = || value(&registry, "object_errors", &["file", "Unparsable"]);
    read(&mut folder);
    assert_eq!(broken(), Some(0.0));
    temp.write("a.yaml", &format!("{}---\n{{ not: [yaml\n", ingress("new")));
    assert_eq!(read(&mut folder), ["ingress/shop/one", "ingress/shop/two"]);
    assert_eq!(broken(), Some(1.0));
    temp.write("b.yaml", &ingress("still"));
    assert_eq!(read(&mut folder), ["ingress/shop/one", "ingress/shop/still"]);
    temp.write("a.yaml", &ingress("new"));
    assert_eq!(read(&mut folder), ["ingress/shop/new", "ingress/shop/still"]);
    assert_eq!(broken(), Some(0.0));
    temp.write("a.yaml", "kind: [");
    read(&mut folder);
    fs::remove_file(temp.0.join("a.yaml")).unwrap();
    assert_eq!(read(&mut folder), ["ingress/shop/still"]);
    assert_eq!(broken(), Some(0.0));
}

#[test]
fn a_file_that_was_never_good_gives_what_can_be_read_of_it() {
    let temp = Temp::new();
    temp.write("a.yaml", &format!("{}---\n{{ not: [yaml\n", ingress("one")));
    let (mut folder, _) = temp.folder();
    assert_eq!(read(&mut folder), ["ingress/shop/one"]);
}

#[test]
fn of_an_object_in_two_files_the_first_counts() {
    let temp = Temp::new();
    let with = |uid: &str| ingress("one").replace("shop}", &format!("shop, uid: {uid}}}"));
    temp.write("b.yaml", &with("second"));
    temp.write("a.yaml", &with("first"));
    let (mut folder, _) = temp.folder();
    let objects = folder.look().unwrap();
    let [Object::Ingress(one)] = &objects[..] else { panic!("{:?}", names(&objects)) };
    assert_eq!(&*one.uid, "first");
    fs::remove_file(temp.0.join("a.yaml")).unwrap();
    let objects = (0..=PATIENCE).find_map(|_| folder.look()).unwrap();
    let [Object::Ingress(one)] = &objects[..] else { panic!("{:?}", names(&objects)) };
    assert_eq!(&*one.uid, "second");
}

#[test]
fn a_mounted_config_map_is_read_once_and_its_swap_is_seen() {
    use std::os::unix::fs::symlink;
    let temp = Temp::new();
    temp.write("..v1/a.yaml", &ingress("one"));
    temp.write("..v2/a.yaml", &ingress("two"));
    symlink("..v1", temp.0.join("..data")).unwrap();
    symlink("..data/a.yaml", temp.0.join("a.yaml")).unwrap();
    symlink("a-loop", temp.0.join("a-loop")).unwrap();
    let (mut folder, _) = temp.folder();
    assert_eq!(read(&mut folder), ["ingress/shop/one"]);
    symlink("..v2", temp.0.join("..new")).unwrap();
    fs::rename(temp.0.join("..new"), temp.0.join("..data")).unwrap();
    assert_eq!(read(&mut folder), ["ingress/shop/two"]);
}

#[test]
fn a_folder_that_vanishes_keeps_what_was_read() {
    let temp = Temp::new();
    temp.write("a.yaml", &ingress("one"));
    let (mut folder, _) = temp.folder();
    read(&mut folder);
    let aside = temp.0.with_extension("aside");
    fs::rename(&temp.0, &aside).unwrap();
    assert!((0..10).all(|_| folder.look().is_none()));
    fs::rename(&aside, &temp.0).unwrap();
    temp.write("a.yaml", &ingress("two"));
    assert_eq!(read(&mut folder), ["ingress/shop/two"]);
}

#[tokio::test]
async fn a_change_is_handed_on_within_a_second() {
    let temp = Temp::new();
    temp.write("a.yaml", &ingress("one"));
    let (metrics, _) = metrics();
    let (sender, mut receiver) = mpsc::channel(4);
    let task = tokio::spawn(follow(temp.0.clone(), Default::default(), sender, metrics));
    let mut next = async || match timeout(Duration::from_secs(5), receiver.recv()).await {
        Ok(Some(Update::Files(objects))) => names(&objects),
        _ => panic!("no news"),
    };
    assert_eq!(next().await, ["ingress/shop/one"]);
    temp.write("a.yaml", &ingress("changed"));
    let before = Instant::now();
    assert_eq!(next().await, ["ingress/shop/changed"]);
    assert!(before.elapsed() < Duration::from_millis(1000), "{:?}", before.elapsed());
    task.abort();
}
