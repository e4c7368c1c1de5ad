//! Manifests checked without a cluster: the translator's own findings, each with the line it is about.

use crate::annotations;
use crate::certificate;
use crate::cluster::{Cluster, Dirty, IngressObject, Located, Spot, Step, Tree, documents};
use crate::finding::{Finding, Reason, Severity, quoted};
use crate::manifests;
use crate::parallel;
use crate::translate::{Settings, Translation, Translator};
use crate::update::{Name, Object, Update};
use ingress_core::{Kind, ResourceRef};
use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::panic::catch_unwind;
use std::path::Path;
use std::sync::Arc;

/// A file, or what was given in its place.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// What it is called in messages.
    pub name: String,
    /// Its text, or why it cannot be read.
    pub text: Result<String, String>,
}

/// What is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// What it is.
    pub reason: Reason,
    /// The file.
    pub file: String,
    /// The first one is 1.
    pub line: usize,
    /// The first one is 1.
    pub column: usize,
    /// The object, if there is one.
    pub object: Option<ResourceRef>,
    /// Key or field; empty where it is none.
    pub field: Box<str>,
    /// What stands there, where that may be repeated.
    pub value: Option<String>,
    /// What is accepted there; empty where nothing can be named.
    pub accepted: &'static str,
    /// The name that was probably meant.
    pub nearest: Option<&'static str>,
    /// The words of the Event.
    pub message: Box<str>,
}

/// What came of a check.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// In the order of files and lines.
    pub mistakes: Vec<Mistake>,
    /// Files that were read.
    pub files: usize,
    /// Ingresses that would be served.
    pub ingresses: usize,
    /// Routes of these.
    pub routes: usize,
}

impl Report {
    /// How many mistakes are this bad.
    pub fn count(&self, severity: Severity) -> usize {
        self.mistakes.iter().filter(|m| m.reason.severity() == severity).count()
    }
}

/// The manifests at a path: the file itself, or those of a folder that `--manifests` would read.
pub fn read(path: &Path) -> io::Result<Vec<Manifest>> {
    let one = |path: &Path| Manifest {
        name: path.display().to_string(),
        text: std::fs::read_to_string(path).map_err(|error| error.to_string()),
    };
    if path.is_dir() {
        return Ok(manifests::files(path)?.iter().map(|path| one(path)).collect());
    }
    std::fs::metadata(path)?;
    Ok(vec![one(path)])
}

/// Checks manifests as one cluster. Of other namespaces than `only` names nothing is looked at, if it names any.
pub fn check(files: &[Manifest], settings: &Settings, only: &[String]) -> Report {
    // these are meant for a cluster, which has DNS for its Services and Secrets of its own
    let settings = Settings { backends_from_slices: false, default_tls_secret: None, ..settings.clone() };
    let Translated { told, ingresses, translation } = translate(files, settings, only);
    Report { mistakes: told.located(), files: files.len(), ingresses, routes: translation.route_count }
}

/// Manifests as they would be served, and what there is to tell of them.
pub(crate) struct Translated<'a> {
    pub told: Mistakes<'a>,
    /// Ingresses that are served.
    pub ingresses: usize,
    pub translation: Translation,
}

/// Translates manifests as one cluster, with these very settings.
pub(crate) fn translate<'a>(files: &'a [Manifest], settings: Settings, only: &[String]) -> Translated<'a> {
    let mut check = Check { files, places: HashMap::new(), told: Vec::new() };
    let only: HashSet<&str> = only.iter().map(String::as_str).collect();
    let objects = check.load(&only);
    let ours: Vec<_> = objects
        .iter()
        .filter_map(|object| match object {
            Object::Ingress(ingress) => Some((object.name(), ingress.class.clone())),
            _ => None,
        })
        .collect();
    let mut cluster = Cluster::default();
    let mut dirty = Dirty::default();
    Update::Files(objects).apply(&mut cluster, &mut dirty);
    // the cluster that they are meant for has cert-manager, as far as can be known
    cluster.certificates_readable(None, true, &mut dirty);
    let class = settings.ingress_class.clone();
    let mut translator = Translator::new(settings.clone());
    let translation = translator.translate(&cluster, &dirty);
    for outcome in &translation.outcomes {
        for finding in &outcome.findings {
            check.tell(&outcome.source, finding.clone());
        }
    }
    let issuer = (settings.create_certificates && !settings.backends_from_slices)
        .then(|| settings.default_cluster_issuer.clone());
    let mut ingresses = 0;
    for (name, named) in ours {
        let Name::Ingress(key) = &name else { continue };
        if translator.serves(key) {
            ingresses += 1;
            if let (Some(issuer), Some(object)) = (&issuer, cluster.ingresses.get(key)) {
                default_issuer(object, issuer)
                    .into_iter()
                    .for_each(|finding| check.tell(&source(&name), finding));
            }
            continue;
        }
        let message = match &named {
            Some(named) if **named == *class => continue, // told on the class
            Some(named) => {
                format!("the class is {}, and {class:?} is served; it is not looked at", quoted(named))
            }
            None => format!("no class is named, and {class:?} is served; it is not looked at"),
        };
        let finding = Finding {
            reason: Reason::OtherClass,
            field: "spec.ingressClassName".into(),
            message: message.into(),
        };
        check.tell(&source(&name), finding);
    }
    let Check { told, .. } = check;
    Translated { told: Mistakes { files, told }, ingresses, translation }
}

/// That a block's certificate will come from the default issuer.
fn default_issuer(object: &IngressObject, issuer: &str) -> Option<Finding> {
    let block = object.tls.iter().position(|tls| tls.secret.is_none() && !tls.hosts.is_empty())?;
    certificate::by_default(object).then(|| Finding {
        reason: Reason::DefaultIssuer,
        field: format!("spec.tls[{block}]").into(),
        message: format!(
            "neither a Secret nor an issuer is named: ClusterIssuer {issuer} is asked for a certificate"
        )
        .into(),
    })
}

/// Where an object was written.
#[derive(Clone)]
struct Place {
    file: usize,
    line: usize,
    document: Range<usize>,
    path: Arc<str>,
}

/// What is wrong with manifests, before lines are looked for.
pub struct Mistakes<'a> {
    files: &'a [Manifest],
    told: Vec<Told>,
}

/// A finding on its way to a line of a file.
struct Told {
    place: Place,
    object: Option<ResourceRef>,
    finding: Finding,
}

struct Check<'a> {
    files: &'a [Manifest],
    places: HashMap<ResourceRef, Place>,
    told: Vec<Told>,
}

impl Check<'_> {
    /// Every object, the first of each name.
    fn load(&mut self, only: &HashSet<&str>) -> Vec<Object> {
        let mut found = Vec::new();
        for (file, manifest) in self.files.iter().enumerate() {
            match &manifest.text {
                Ok(text) => found.extend(documents(text).into_iter().map(|document| (file, document))),
                Err(error) => {
                    self.unparsable(file, 1, format!("the file cannot be read: {error}").into());
                }
            }
        }
        // reading YAML is most of the work
        let read = parallel::map(&found, |(_, document)| catch_unwind(|| document.parse()));
        let mut objects = Vec::new();
        for ((file, document), located) in found.iter().zip(read) {
            let file = *file;
            let Ok(located) = located else {
                self.unparsable(file, document.line, "reading the document broke off".into());
                continue;
            };
            for Located { object, line, document, path } in located {
                let object = match object {
                    Ok(parsed) => Object::parsed(parsed),
                    Err(problem) => {
                        self.unparsable(file, problem.line, problem.message);
                        continue;
                    }
                };
                let Some(object) = object else { continue };
                let name = object.name();
                if name.namespace().is_some_and(|n| !only.is_empty() && !only.contains(&**n)) {
                    continue;
                }
                let source = source(&name);
                let place = Place { file, line, document, path: path.into() };
                let Some(first) = self.places.get(&source) else {
                    self.places.insert(source, place);
                    objects.push(object);
                    continue;
                };
                let at = if first.file == file { "this file" } else { &self.files[first.file].name };
                let message = format!("it stands in {at} before; that one counts").into();
                let finding =
                    Finding { reason: Reason::WrittenTwice, field: "metadata.name".into(), message };
                self.told.push(Told { place, object: Some(source), finding });
            }
        }
        objects
    }

    fn unparsable(&mut self, file: usize, line: usize, message: Box<str>) {
        let place = Place { file, line, document: 0..0, path: "".into() };
        let finding = Finding { reason: Reason::Unparsable, field: Box::default(), message };
        self.told.push(Told { place, object: None, finding });
    }

    fn tell(&mut self, source: &ResourceRef, finding: Finding) {
        if let Some(place) = self.places.get(source).cloned() {
            self.told.push(Told { place, object: Some(source.clone()), finding });
        }
    }
}

impl Mistakes<'_> {
    /// What is wrong with this object.
    pub fn of(mut self, object: &ResourceRef) -> Vec<Mistake> {
        self.told.retain(|told| told.object.as_ref() == Some(object));
        self.located()
    }

    /// What was told, with the lines, in their order. Each document is looked into once.
    fn located(self) -> Vec<Mistake> {
        let Self { files, mut told } = self;
        let document = |told: &Told| (told.place.file, told.place.document.start, told.place.document.end);
        told.sort_by_key(document);
        let groups: Vec<_> = told.chunk_by(|a, b| document(a) == document(b)).collect();
        let mistakes = parallel::map(&groups, |same| {
            let tree = same.first().and_then(|Told { place, .. }| {
                let text = files[place.file].text.as_deref().unwrap_or_default().get(place.document.clone());
                text.filter(|text| !text.is_empty()).and_then(|text| Tree::read(text, place.line))
            });
            let one = |told: &Told| (told.place.file, mistake(told, files, tree.as_ref()));
            same.iter().map(one).collect::<Vec<_>>()
        });
        let mut mistakes: Vec<_> = mistakes.into_iter().flatten().collect();
        mistakes.sort_by(|(a, x), (b, y)| (a, x.line, x.column).cmp(&(b, y.line, y.column)));
        mistakes.into_iter().map(|(_, mistake)| mistake).collect()
    }
}

fn mistake(told: &Told, files: &[Manifest], tree: Option<&Tree>) -> Mistake {
    let Told { place, object, finding } = told;
    let Finding { reason, field, message } = finding.clone();
    let spot = match tree {
        Some(tree) => spot(tree, &place.path, &field),
        None => Spot { line: place.line, column: 1, value: None },
    };
    let annotation = annotations::table().find(|row| row.key == &*field);
    let nearest = (reason == Reason::UnknownAnnotation).then(|| annotations::nearest(&field)).flatten();
    // what an annotation holds may be confidential: it is repeated only where the Event repeats it
    let value = spot.value.filter(|value| field.starts_with("spec.") || message.contains(&quoted(value)));
    Mistake {
        reason,
        file: files[place.file].name.clone(),
        line: spot.line,
        column: spot.column,
        object: object.clone(),
        value,
        accepted: annotation.map_or(reason.entry().accepts, |row| row.accepts),
        nearest: nearest.map(|(_, key)| key),
        field,
        message,
    }
}

/// Where a field of the object stands, as far as it is there; the object where it names none.
fn spot(tree: &Tree, object: &str, field: &str) -> Spot {
    let object = Step::of(object);
    if field.contains('/') {
        tree.find(object.chain(Step::of("metadata.annotations")).chain([Step::Key(field)]))
    } else {
        tree.find(object.chain(Step::of(field)))
    }
}

fn source(name: &Name) -> ResourceRef {
    let (kind, namespace, name) = match name {
        Name::Ingress(key) => (Kind::Ingress, &key.namespace, &key.name),
        Name::Class(name) => return ResourceRef::new(Kind::IngressClass, "", Arc::clone(name)),
        Name::Service(key) => (Kind::Service, &key.namespace, &key.name),
        Name::Slice(service, name) => (Kind::EndpointSlice, &service.namespace, &name.name),
        Name::Secret(key) => (Kind::Secret, &key.namespace, &key.name),
        Name::ConfigMap(key) => (Kind::ConfigMap, &key.namespace, &key.name),
        Name::Certificate(ingress, block) => {
            let name = crate::cluster::certificate::name(&ingress.name, *block);
            return ResourceRef::new(Kind::Certificate, ingress.namespace.clone(), name);
        }
        Name::Definition(name) => {
            return ResourceRef::new(Kind::CustomResourceDefinition, "", Arc::clone(name));
        }
        Name::Namespace(name) => return ResourceRef::new(Kind::Namespace, "", Arc::clone(name)),
        Name::GatewayApi(kind, key) => (*kind, &key.namespace, &key.name),
    };
    ResourceRef { kind, namespace: namespace.clone(), name: name.clone() }
}

#[cfg(test)]
mod tests;
