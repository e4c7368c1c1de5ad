//! GatewayClasses of ours: what their statuses say.

use super::Settings;
use crate::cluster::Cluster;
use crate::cluster::gateway::{GROUP, GatewayClassObject};
use crate::status::{self, conditions::Condition};
use crate::write::Write;

/// The release of the Gateway API that this is built for and tested with; of its patches, any.
const RELEASE: &str = "v1.6";

pub(super) fn write(class: &GatewayClassObject, cluster: &Cluster, settings: &Settings, now: i64) -> Write {
    let accepted = match &class.spec.parameters_ref {
        None => Condition::new("Accepted", true, "Accepted", ""),
        Some(_) => {
            let message = "there are no parameters for classes; they are not read";
            Condition::new("Accepted", false, "InvalidParameters", message)
        }
    };
    let conditions: Vec<_> = std::iter::once(accepted).chain(supported_version(cluster)).collect();
    let Settings { gateway_listener_ports: ports, gateway_addresses: own, .. } = settings;
    let retries = cluster.definitions.get(&*format!("httproutes.{GROUP}")).is_some_and(|d| d.experimental);
    let features = status::features(ports, !own.is_empty(), retries);
    status::class(&class.meta, &conditions, &features, now)
}

/// Whether all definitions that are installed are of [`RELEASE`]; others are served as far as they are like it. `None`
/// where they are not to be read.
fn supported_version(cluster: &Cluster) -> Option<Condition> {
    const TYPE: &str = "SupportedVersion";
    let of_release = |bundle: &str| {
        bundle.strip_prefix(RELEASE).is_some_and(|patch| patch.is_empty() || patch.starts_with(['.', '-']))
    };
    let mut others: Vec<_> = cluster
        .definitions
        .values()
        .filter(|definition| !definition.bundle.as_deref().is_some_and(of_release))
        .map(|d| format!("{} is of {}", d.name, d.bundle.as_deref().unwrap_or("no release that it tells")))
        .collect();
    others.sort_unstable();
    match others.first() {
        _ if cluster.definitions.is_empty() => None,
        None => Some(Condition::new(TYPE, true, TYPE, "")),
        Some(first) => {
            let more = match others.len() {
                1 => String::new(),
                n => format!(", and {} more", n - 1),
            };
            let message = format!(
                "{first}{more}: what is tested is {RELEASE}; the rest is served as far as it is the same"
            );
            Some(Condition::new(TYPE, false, "UnsupportedVersion", message))
        }
    }
}
