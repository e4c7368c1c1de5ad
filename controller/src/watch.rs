//! Watches on the Kubernetes API, each turned into [`Update`]s of reduced objects.
//!
//! A first list, and each later one, is collected and handed on whole: the table that serves is
//! never emptied on the way, and a deletion that was missed while disconnected is found. Objects
//! are reduced as they arrive; nothing here keeps one as the API sent it.

use crate::cluster::Key;
use crate::cluster::backend_tls::{BackendTlsPolicySpec, ConfigMap};
use crate::cluster::certificate::Certificate;
use crate::cluster::gateway::{
    GatewayClassSpec, GatewaySpec, GrantSpec, GrpcRouteSpec, HttpRouteSpec, ListenerSetSpec, TlsRouteSpec,
    Wire,
};
use crate::metrics::Metrics;
use crate::update::{Name, Object, Update, Watched};
use futures::{FutureExt as _, Stream, StreamExt as _};
use ingress_core::Kind;
use k8s_openapi::api::core::v1::{Namespace, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::{Ingress, IngressClass};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kube::api::Api;
use kube::core::{DeserializeGuard, PartialObjectMeta, Status};
use kube::runtime::watcher::{self, Event, watcher};
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, watch as cell};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

const PAGE: u32 = 500;
/// ConfigMaps can be large, and nearly all of them are not kept.
const CONFIG_MAP_PAGE: u32 = 100;
/// Of Secrets, those of Helm releases are not read: they are many and large.
pub(crate) const SECRETS: &str = "type!=helm.sh/release.v1";
/// Of EndpointSlices, those that the cluster's own controllers write for headless Services; those of all other Services, which are
/// by far the most, never come here.
pub(crate) const HEADLESS: &str = "service.kubernetes.io/headless";
/// Of EndpointSlices without that label, those that neither of these controllers writes: somebody's own, which can be a
/// headless Service's. No selector says "one or the other", so they are another list.
pub(crate) const FOREIGN: &str = "!service.kubernetes.io/headless,endpointslice.kubernetes.io/managed-by \
                                  notin (endpointslice-controller.k8s.io,endpointslicemirroring-controller.k8s.io)";
const FIRST_RETRY: Duration = Duration::from_millis(200);
/// A server that is back after a long outage is seen within this.
const LAST_RETRY: Duration = Duration::from_secs(5);
/// RBAC is not mended within seconds.
const REFUSED_RETRY: Duration = Duration::from_secs(10);
/// How soon kinds that are installed later are found.
const ABSENT_RETRY: Duration = Duration::from_secs(5);
/// Errors further apart than this are two interruptions.
const APART: Duration = Duration::from_secs(60);

/// One list to read: a kind, in one namespace or in all, or what a selector takes of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Part {
    pub kind: Kind,
    /// `None`: the whole cluster
    pub namespace: Option<Arc<str>>,
    /// Label selector; `None`: every object
    pub labels: Option<Arc<str>>,
}

/// When kinds are wanted that are read only then.
pub(crate) struct OnDemand {
    pub config_maps: cell::Receiver<bool>,
    pub definitions: cell::Receiver<bool>,
}

/// Objects that do not decode, by the part that they are in.
type Unreadable = Arc<Mutex<HashMap<Part, HashSet<Key>>>>;

/// Starts a watch for each kind (and namespace, where only some are to be read); returns the parts
/// whose first list is needed. Dropping `tasks` stops them. Without `gateway_api` nothing of the Gateway API is read;
/// what is read on demand of it, from when that says so.
pub(crate) fn start(
    client: &kube::Client,
    namespaces: &[String],
    gateway_api: Option<OnDemand>,
    certificates: bool,
    updates: &mpsc::Sender<Update>,
    metrics: &Metrics,
    tasks: &mut JoinSet<()>,
) -> HashSet<Part> {
    let all = namespaces.is_empty();
    let mut begin = Begin { client, namespaces, updates, metrics, tasks, parts: HashSet::new(), when: None };
    begin.namespaced::<Ingress>(config(), false);
    begin.namespaced::<Service>(config(), false);
    begin.namespaced::<Secret>(config().fields(SECRETS), false);
    let unreadable = Unreadable::default();
    for labels in [HEADLESS, FOREIGN] {
        begin.namespaced_with::<EndpointSlice>(&config().labels(labels), true, &unreadable);
    }
    // roles in some namespaces cannot allow kinds that have none
    begin.cluster::<IngressClass>(config(), !all);
    if all {
        begin.metadata::<Namespace>(config());
    }
    if certificates {
        // nothing that serves waits for these
        let needed = begin.parts.clone();
        begin.namespaced::<Certificate>(config(), true);
        begin.parts = needed;
    }
    if let Some(OnDemand { config_maps, definitions }) = gateway_api {
        begin.cluster::<Wire<GatewayClassSpec>>(config(), true);
        begin.namespaced::<Wire<GatewaySpec>>(config(), true);
        begin.namespaced::<Wire<ListenerSetSpec>>(config(), true);
        begin.namespaced::<Wire<GrantSpec>>(config(), true);
        begin.namespaced::<Wire<HttpRouteSpec>>(config(), true);
        begin.namespaced::<Wire<GrpcRouteSpec>>(config(), true);
        begin.namespaced::<Wire<TlsRouteSpec>>(config(), true);
        begin.namespaced::<Wire<BackendTlsPolicySpec>>(config(), true);
        // waited for only if something asks for them
        let needed = begin.parts.clone();
        begin.when = Some(definitions);
        begin.metadata::<CustomResourceDefinition>(config());
        begin.when = Some(config_maps);
        begin.namespaced::<ConfigMap>(config().page_size(CONFIG_MAP_PAGE), true);
        begin.parts = needed;
    }
    begin.parts
}

fn config() -> watcher::Config {
    watcher::Config::default().page_size(PAGE)
}

struct Begin<'a> {
    client: &'a kube::Client,
    namespaces: &'a [String],
    updates: &'a mpsc::Sender<Update>,
    metrics: &'a Metrics,
    tasks: &'a mut JoinSet<()>,
    parts: HashSet<Part>,
    /// Watches begin when this says so.
    when: Option<cell::Receiver<bool>>,
}

impl Begin<'_> {
    fn namespaced<K>(&mut self, config: watcher::Config, optional: bool)
    where
        K: Watched<Scope = NamespaceResourceScope>,
    {
        self.namespaced_with::<K>(&config, optional, &Unreadable::default());
    }

    fn namespaced_with<K>(&mut self, config: &watcher::Config, optional: bool, unreadable: &Unreadable)
    where
        K: Watched<Scope = NamespaceResourceScope>,
    {
        if self.namespaces.is_empty() {
            let api = Api::<DeserializeGuard<K>>::all(self.client.clone());
            self.spawn(api, config.clone(), None, optional, Arc::clone(unreadable));
            return;
        }
        for namespace in self.namespaces {
            let api = Api::<DeserializeGuard<K>>::namespaced(self.client.clone(), namespace);
            let namespace = Some(namespace.as_str().into());
            self.spawn(api, config.clone(), namespace, optional, Arc::clone(unreadable));
        }
    }

    fn cluster<K: Watched<Scope = ClusterResourceScope>>(&mut self, config: watcher::Config, optional: bool) {
        let api = Api::<DeserializeGuard<K>>::all(self.client.clone());
        self.spawn(api, config, None, optional, Arc::default());
    }

    /// Objects of which the metadata alone is sent. A guard around them would have them sent whole.
    fn metadata<K>(&mut self, config: watcher::Config)
    where
        PartialObjectMeta<K>: Watched<Scope = ClusterResourceScope>,
    {
        let api = Api::<PartialObjectMeta<K>>::all(self.client.clone());
        let part = Part { kind: PartialObjectMeta::<K>::KIND, namespace: None, labels: None };
        let streams = move || watcher(api.clone(), config.clone()).map(|event| event.map(guarded));
        self.follow(part, true, Unreadable::default(), streams);
    }

    fn spawn<K: Watched>(
        &mut self,
        api: Api<DeserializeGuard<K>>,
        config: watcher::Config,
        namespace: Option<Arc<str>>,
        optional: bool,
        unreadable: Unreadable,
    ) {
        let labels = config.label_selector.as_deref().map(Into::into);
        let part = Part { kind: K::KIND, namespace, labels };
        self.follow(part, optional, unreadable, move || watcher(api.clone(), config.clone()));
    }

    /// Has a watch followed for ever; each stream is a new attempt.
    fn follow<K: Watched, S>(
        &mut self,
        part: Part,
        optional: bool,
        unreadable: Unreadable,
        streams: impl Fn() -> S + Send + 'static,
    ) where
        S: Stream<Item = watcher::Result<Event<DeserializeGuard<K>>>> + Send,
    {
        self.parts.insert(part.clone());
        let watch = Watch {
            part,
            optional,
            unreadable,
            updates: self.updates.clone(),
            metrics: self.metrics.clone(),
        };
        let when = self.when.clone();
        self.tasks.spawn(async move {
            if let Some(mut when) = when
                && when.wait_for(|now| *now).await.is_err()
            {
                return;
            }
            let mut trouble = Trouble::default();
            loop {
                match AssertUnwindSafe(watch.follow::<K>(streams(), &mut trouble)).catch_unwind().await {
                    Ok(Ended::Unheard) => return,
                    Ok(Ended::CutOff) => {}
                    Err(_) => {
                        tracing::error!(kind = %K::KIND, "a watch broke off: starting it anew");
                        sleep(Duration::from_secs(1)).await;
                    }
                }
            }
        });
    }
}

/// One watch and where its news goes.
pub(crate) struct Watch {
    pub part: Part,
    /// Whether the start may go on when RBAC refuses it.
    pub optional: bool,
    /// Objects of this kind that do not decode now, of all parts.
    pub unreadable: Unreadable,
    pub updates: mpsc::Sender<Update>,
    pub metrics: Metrics,
}

/// Why a watch is not followed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The stream is over, or nobody listens.
    Unheard,
    /// The connection broke. What is behind it may be another store by now, one whose revisions
    /// have not come as far: a watch that goes on from the old one would wait in silence, and miss
    /// what happens below it. Only a new list tells.
    CutOff,
}

impl Watch {
    /// Follows the stream until it ends, is cut off, or nobody listens any more.
    pub(crate) async fn follow<K: Watched>(
        &self,
        stream: impl Stream<Item = watcher::Result<Event<DeserializeGuard<K>>>>,
        trouble: &mut Trouble,
    ) -> Ended {
        let mut stream = pin!(stream);
        let mut list = Vec::new();
        let mut listed = 0_usize;
        let mut unreadable = HashSet::new();
        while let Some(event) = stream.next().await {
            let update = match event {
                // also sent ahead of each failing attempt: no sign of life
                Ok(Event::Init) => {
                    list.clear();
                    listed = 0;
                    unreadable.clear();
                    None
                }
                Ok(Event::InitApply(object)) => {
                    listed += 1;
                    match read(object) {
                        Ok(object) => list.push(object),
                        Err(Unread::NotOurs(_)) => {}
                        Err(Unread::Broken(key, error)) => {
                            warn_unreadable::<K>(&key, &error);
                            unreadable.insert(key);
                        }
                    }
                    None
                }
                Ok(Event::InitDone) => {
                    trouble.over(&self.part);
                    self.renew_unreadable(std::mem::take(&mut unreadable));
                    tracing::info!(
                        kind = %self.part.kind,
                        namespace = self.part.namespace.as_deref(),
                        count = listed,
                        "watch synced"
                    );
                    Some(Update::List { part: self.part.clone(), objects: std::mem::take(&mut list) })
                }
                Ok(Event::Apply(object)) => {
                    trouble.over(&self.part);
                    self.one(object)
                }
                Ok(Event::Delete(object)) => {
                    trouble.over(&self.part);
                    self.readable(&key_of(&object));
                    match read(object) {
                        Ok(object) => Some(Update::Remove(object.name())),
                        Err(Unread::NotOurs(name)) => name.map(Update::Remove),
                        Err(Unread::Broken(key, _)) => K::name_of(key).map(Update::Remove),
                    }
                }
                Err(error) => {
                    let (update, pause) = self.failed::<K>(trouble, &error);
                    if let Some(update) = update
                        && self.updates.send(update).await.is_err()
                    {
                        return Ended::Unheard;
                    }
                    sleep(pause).await;
                    if matches!(error, watcher::Error::WatchStartFailed(_) | watcher::Error::WatchFailed(_)) {
                        return Ended::CutOff;
                    }
                    None
                }
            };
            if let Some(update) = update
                && self.updates.send(update).await.is_err()
            {
                return Ended::Unheard;
            }
        }
        Ended::Unheard
    }

    fn one<K: Watched>(&self, object: DeserializeGuard<K>) -> Option<Update> {
        let key = key_of(&object);
        match read(object) {
            Ok(object) => {
                self.readable(&key);
                Some(Update::Apply(object))
            }
            Err(Unread::NotOurs(name)) => name.map(Update::Remove),
            Err(Unread::Broken(key, error)) => {
                warn_unreadable::<K>(&key, &error);
                let mut broken = self.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
                broken.entry(self.part.clone()).or_default().insert(key);
                self.count(&broken);
                None
            }
        }
    }

    /// What to hand on after an error, and how long to wait.
    fn failed<K: Watched>(
        &self,
        trouble: &mut Trouble,
        error: &watcher::Error,
    ) -> (Option<Update>, Duration) {
        if let Some(status) = status(error)
            && (status.code == 403 || status.is_forbidden())
        {
            if std::mem::replace(&mut trouble.refused, true) {
                return (None, jitter(REFUSED_RETRY));
            }
            let (group, plural) = (K::group(&()), K::plural(&()));
            // RBAC does not look at labels: the kind's other watch says the same
            if self.part.labels.as_deref() != Some(FOREIGN) {
                tracing::error!(
                    kind = %self.part.kind,
                    namespace = self.part.namespace.as_deref(),
                    error = %status.message,
                    "not allowed to read {plural}: {} the role needs the rule \
                     apiGroups [\"{group}\"], resources [\"{plural}\"], verbs [\"list\", \"watch\"]",
                    if self.optional { "going on without;" } else { "waiting;" }
                );
            }
            let update = self.optional.then(|| Update::Refused(self.part.clone()));
            return (update, jitter(REFUSED_RETRY));
        }
        if let Some(status) = status(error)
            && status.code == 404
            && self.optional
        {
            if std::mem::replace(&mut trouble.absent, true) {
                return (None, jitter(ABSENT_RETRY));
            }
            let plural = K::plural(&());
            tracing::info!(kind = %self.part.kind, "{plural} are not installed: going on without, until they are");
            // where they were taken away, so are all of them
            let update = Update::Absent(self.part.clone());
            return (Some(update), jitter(ABSENT_RETRY));
        }
        let (first, pause) = trouble.next();
        if first {
            self.metrics.interrupted(self.part.kind);
            tracing::warn!(
                kind = %self.part.kind,
                namespace = self.part.namespace.as_deref(),
                %error,
                "watch interrupted"
            );
        }
        (None, pause)
    }

    fn readable(&self, key: &Key) {
        let mut broken = self.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
        if broken.get_mut(&self.part).is_some_and(|keys| keys.remove(key)) {
            self.count(&broken);
        }
    }

    fn renew_unreadable(&self, fresh: HashSet<Key>) {
        let mut broken = self.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
        if broken.is_empty() && fresh.is_empty() {
            return;
        }
        broken.insert(self.part.clone(), fresh);
        self.count(&broken);
    }

    fn count(&self, broken: &HashMap<Part, HashSet<Key>>) {
        let all = broken.values().map(HashSet::len).sum();
        self.metrics.in_error(self.part.kind.as_str(), "Undecodable", all);
    }
}

/// An event of objects that are decoded already.
fn guarded<K>(event: Event<K>) -> Event<DeserializeGuard<K>> {
    let whole = |object| DeserializeGuard(Ok(object));
    match event {
        Event::Apply(object) => Event::Apply(whole(object)),
        Event::Delete(object) => Event::Delete(whole(object)),
        Event::Init => Event::Init,
        Event::InitApply(object) => Event::InitApply(whole(object)),
        Event::InitDone => Event::InitDone,
    }
}

enum Unread {
    /// Of a sort that is not kept; what was known under the name is no more.
    NotOurs(Option<Name>),
    Broken(Key, String),
}

fn read<K: Watched>(object: DeserializeGuard<K>) -> Result<Object, Unread> {
    let key = key_of(&object);
    match object.0 {
        Ok(object) => object.reduce().map_err(Unread::NotOurs),
        Err(invalid) => Err(Unread::Broken(key, invalid.error)),
    }
}

/// The object, if it is one that is read and can be.
pub(crate) fn readable<K: Watched>(object: DeserializeGuard<K>) -> Option<Object> {
    read(object).ok()
}

fn key_of<K: Watched>(object: &DeserializeGuard<K>) -> Key {
    use kube::Resource as _;
    let meta = object.meta();
    Key {
        namespace: meta.namespace.as_deref().unwrap_or_default().into(),
        name: meta.name.as_deref().unwrap_or_default().into(),
    }
}

fn warn_unreadable<K: Watched>(key: &Key, error: &str) {
    // the decoder's words can quote the object
    let error = if K::KIND == Kind::Secret { "(withheld)" } else { error };
    tracing::warn!(
        kind = %K::KIND, namespace = %key.namespace, name = %key.name, error,
        "an object cannot be decoded and is left out"
    );
}

fn status(error: &watcher::Error) -> Option<&Status> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status)) => Some(status),
        watcher::Error::WatchError(status) => Some(status),
        _ => None,
    }
}

/// How long a watch has been failing.
#[derive(Default)]
pub(crate) struct Trouble {
    last: Option<Instant>,
    attempts: u32,
    refused: bool,
    absent: bool,
}

impl Trouble {
    /// Whether this is a new interruption, and the pause before the next attempt.
    fn next(&mut self) -> (bool, Duration) {
        let now = Instant::now();
        let first = self.last.is_none_or(|last| now.duration_since(last) > APART);
        self.attempts = if first { 0 } else { self.attempts.saturating_add(1) };
        self.last = Some(now);
        // A gentle growth: a server that comes back within a few seconds is found within two.
        let grown = FIRST_RETRY.as_secs_f64() * 1.3f64.powi(self.attempts.min(16) as i32);
        (first, jitter(Duration::from_secs_f64(grown.min(LAST_RETRY.as_secs_f64()))))
    }

    /// The server answers.
    fn over(&mut self, part: &Part) {
        if self.last.is_some() || self.refused || self.absent {
            tracing::info!(kind = %part.kind, namespace = part.namespace.as_deref(), "watch goes on");
            *self = Self::default();
        }
    }
}

/// Between 80 and 100 % of it, so that Pods do not come back in step.
fn jitter(pause: Duration) -> Duration {
    let random = (RandomState::new().hash_one(0u8) % 1000) as f64 / 1000.0;
    pause.mul_f64(0.8 + 0.2 * random)
}

#[cfg(test)]
mod tests;
