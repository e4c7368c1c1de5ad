//! Which Ingresses are ours.

use super::Settings;
use crate::annotations::LEGACY_CLASS;
use crate::cluster::{Cluster, IngressObject};
use crate::finding::{Finding, Findings, Outcome, Reason, quoted};
use ingress_core::{Kind, ResourceRef};

/// `spec.controller` of the IngressClasses that we serve.
pub const CONTROLLER: &str = "tak-os.org/ingress-controller";

/// Whether the class that we are to serve is ours.
#[derive(Default)]
pub(super) struct Class {
    foreign: bool,
    /// What was last told of it.
    told: Box<[Finding]>,
}

impl Class {
    /// Looks at the class's object; says whether Ingresses are to be looked at anew. A class without
    /// an object is ours: its name is enough.
    pub(super) fn read(&mut self, cluster: &Cluster, name: &str, outcomes: &mut Vec<Outcome>) -> bool {
        let object = cluster.classes.get(name);
        let foreign = object.is_some_and(|class| *class.controller != *CONTROLLER);
        let mut findings = Findings::default();
        if let Some(class) = object.filter(|_| foreign) {
            let message = format!(
                "the class belongs to the controller {}, not to {CONTROLLER}; its Ingresses are not served",
                quoted(&class.controller)
            );
            findings.add(Reason::ForeignIngressClass, "spec.controller", message);
        }
        let findings = findings.finish();
        if findings != self.told {
            self.told.clone_from(&findings);
            outcomes.push(Outcome {
                source: ResourceRef::new(Kind::IngressClass, "", name),
                uid: object.map_or_else(|| "".into(), |class| class.uid.clone()),
                resource_version: object.map_or_else(|| "".into(), |class| class.resource_version.clone()),
                findings,
            });
        }
        std::mem::replace(&mut self.foreign, foreign) != foreign
    }

    /// Whether an Ingress is served: its field decides, else its annotation, else the flag.
    pub(super) fn serves(&self, object: &IngressObject, settings: &Settings) -> bool {
        let legacy = object.annotations.get(LEGACY_CLASS).filter(|class| !class.is_empty());
        match object.class.as_deref().or(legacy) {
            Some(class) => *class == *settings.ingress_class && !self.foreign,
            None => settings.process_without_class,
        }
    }
}
