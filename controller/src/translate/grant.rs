//! Who may refer to objects of another namespace: ReferenceGrants, which the owner of the target writes.

use crate::cluster::Cluster;
use crate::cluster::gateway::GrantObject;
use std::collections::HashMap;
use std::sync::Arc;

/// What refers, or is referred to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kinded<'a> {
    /// API group; empty for the core group.
    pub group: &'a str,
    pub kind: &'a str,
    pub namespace: &'a str,
}

/// Every grant, by the namespace that it opens.
#[derive(Default)]
pub(super) struct Grants(HashMap<Arc<str>, Vec<Arc<GrantObject>>>);

impl Grants {
    pub(super) fn of(cluster: &Cluster) -> Self {
        let mut grants: HashMap<Arc<str>, Vec<_>> = HashMap::new();
        for grant in cluster.grants.values() {
            grants.entry(grant.meta.key.namespace.clone()).or_default().push(grant.clone());
        }
        Self(grants)
    }

    /// Whether `from` may refer to `to` named `name`. Within a namespace nothing is asked.
    pub(super) fn permit(&self, from: Kinded<'_>, to: Kinded<'_>, name: &str) -> bool {
        from.namespace == to.namespace
            || self.0.get(to.namespace).into_iter().flatten().any(|grant| {
                grant
                    .spec
                    .from
                    .iter()
                    .any(|f| (&*f.group, &*f.kind, &*f.namespace) == (from.group, from.kind, from.namespace))
                    && grant.spec.to.iter().any(|t| {
                        (&*t.group, &*t.kind) == (to.group, to.kind)
                            && t.name.as_ref().is_none_or(|n| n.is_empty() || **n == *name)
                    })
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_written_is_permitted() {
        let cluster = Cluster::from_yaml(
            "
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {name: g, namespace: b}
spec:
  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: a}]
  to: [{group: '', kind: Service, name: web}]
---
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: g, namespace: c}
spec:
  from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: a}]
  to: [{group: '', kind: Secret}]
",
        )
        .unwrap();
        let grants = Grants::of(&cluster);
        let ask = |kind, from, to_kind, to, name| {
            let from = Kinded { group: "gateway.networking.k8s.io", kind, namespace: from };
            grants.permit(from, Kinded { group: "", kind: to_kind, namespace: to }, name)
        };
        assert!(ask("HTTPRoute", "a", "Service", "b", "web"));
        assert!(ask("HTTPRoute", "b", "Service", "b", "other"));
        assert!(ask("Gateway", "a", "Secret", "c", "any"));
        for (kind, from, to_kind, to, name) in [
            ("HTTPRoute", "a", "Service", "b", "other"),
            ("HTTPRoute", "a", "Secret", "b", "web"),
            ("GRPCRoute", "a", "Service", "b", "web"),
            ("HTTPRoute", "c", "Service", "b", "web"),
            ("HTTPRoute", "a", "Service", "c", "web"),
        ] {
            assert!(!ask(kind, from, to_kind, to, name), "{kind} {from} {to_kind} {to} {name}");
        }
    }
}
