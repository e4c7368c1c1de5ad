//! Every annotation that exists, and what an Ingress asks for by those it carries.
//!
//! One file per feature: its rows of the table, and the parser from text to a typed value. A value
//! that does not parse is a finding; the default stands in for it where that is safe, and where the
//! annotation guards access the route is closed.

mod access;
pub(crate) mod auth;
pub(crate) mod backend;
mod cors;
mod rate_limit;
mod redirect;
mod timeouts;
mod tls;

use crate::cluster::Annotations;
use crate::finding::{Findings, Reason, quoted};
use backend::Connection;
use ingress_core::Policy;

/// What our own keys begin with.
pub const PREFIX: &str = "ingress.tak-os.org/";
/// The platform's prefix, of which one key is ours.
const PLATFORM_PREFIX: &str = "k8s.tak-os.com/";
/// The class from the days before `spec.ingressClassName`.
pub const LEGACY_CLASS: &str = "kubernetes.io/ingress.class";

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Annotation {
    /// The whole key.
    pub key: &'static str,
    /// What values parse.
    pub accepts: &'static str,
    /// What applies without it; empty: nothing does.
    pub default: &'static str,
    /// What it does.
    pub meaning: &'static str,
    /// Since when.
    pub since: Since,
}

/// Since when an annotation is honoured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// This version and all later ones.
    Version(&'static str),
    /// Not yet: it is reported, and what guards access closes the route.
    Later,
}

const CLASS: [Annotation; 1] = [Annotation {
    key: LEGACY_CLASS,
    accepts: "a class name",
    default: "",
    meaning: "the class, where spec.ingressClassName is absent",
    since: Since::Version("0.1"),
}];

/// Every annotation, in the order of the documentation.
pub fn table() -> impl Iterator<Item = &'static Annotation> {
    const TABLES: [&[Annotation]; 9] = [
        &redirect::TABLE,
        &backend::TABLE,
        &timeouts::TABLE,
        &auth::TABLE,
        &cors::TABLE,
        &rate_limit::TABLE,
        &access::TABLE,
        &tls::TABLE,
        &CLASS,
    ];
    TABLES.into_iter().flatten()
}

/// Whether a key is of those that are read at all.
pub fn is_read(key: &str) -> bool {
    key.starts_with(PREFIX) || key.starts_with(PLATFORM_PREFIX) || table().any(|row| row.key == key)
}

/// What an Ingress asks for, for all of its routes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Without authentication, which may need a Secret.
    pub policy: Policy,
    pub auth: auth::WantedAuth,
    pub connection: Connection,
    pub ssl_redirect: bool,
}

/// Reads an Ingress's annotations.
pub(crate) fn read(annotations: &Annotations, findings: &mut Findings) -> Wanted {
    let mut reader = Reader { annotations, findings };
    let wanted = Wanted {
        ssl_redirect: redirect::read(&mut reader),
        connection: backend::read(&mut reader),
        policy: Policy {
            timeouts: timeouts::read(&mut reader),
            access: access::read(&mut reader),
            cors: cors::read(&mut reader),
            rate_limit: rate_limit::read(&mut reader),
            ..Policy::default()
        },
        auth: auth::read(&mut reader),
    };
    reader.unknown();
    wanted
}

/// The annotations of one Ingress, and where its mistakes go.
pub(crate) struct Reader<'a> {
    annotations: &'a Annotations,
    findings: &'a mut Findings,
}

impl<'a> Reader<'a> {
    fn get(&self, key: &str) -> Option<&'a str> {
        self.annotations.get(key)
    }

    /// The value, unless there is nothing in it.
    fn filled(&self, key: &str) -> Option<&'a str> {
        self.get(key).filter(|value| !value.trim().is_empty())
    }

    /// The parsed value; the default where there is none or where it does not parse.
    fn parse<T>(&mut self, row: &Annotation, default: T, parse: impl Fn(&str) -> Option<T>) -> T {
        let Some(value) = self.get(row.key) else { return default };
        parse(value).unwrap_or_else(|| {
            self.invalid(row, value);
            default
        })
    }

    fn invalid(&mut self, row: &Annotation, value: &str) {
        let Annotation { key, accepts, default, .. } = row;
        let instead = match *default {
            "" => "nothing applies instead".to_owned(),
            default => format!("the default {default} applies"),
        };
        let message = format!("{} is not accepted, only {accepts}; {instead}", quoted(value));
        self.findings.add(Reason::InvalidAnnotation, *key, message);
    }

    fn unknown(&mut self) {
        for (key, _) in self.annotations.iter() {
            if table().any(|row| row.key == key) {
                continue;
            }
            let ours = key.starts_with(PREFIX);
            if !ours && !key.starts_with(PLATFORM_PREFIX) {
                continue;
            }
            match nearest(key) {
                // other products share the platform's prefix: only a slip of the pen is ours
                Some((distance, nearest)) if ours || distance <= 2 => {
                    let message = format!("there is no such annotation; the nearest is {nearest}");
                    self.findings.add(Reason::UnknownAnnotation, key, message);
                }
                _ => {}
            }
        }
    }
}

/// Octets of a key that are compared with ours.
const MAX_KEY: usize = 128;

/// The annotation whose key is the most like this one, and in how many letters they differ.
pub(crate) fn nearest(key: &str) -> Option<(usize, &'static str)> {
    let prefix = if key.starts_with(PREFIX) { PREFIX } else { PLATFORM_PREFIX };
    let rows = table().filter(|row| row.key.starts_with(prefix));
    let mut best: Option<(usize, &'static str)> = None;
    for row in rows {
        // a word that is so much longer or shorter cannot be nearer
        if best.is_some_and(|(least, _)| row.key.len().abs_diff(key.len().min(MAX_KEY)) > least) {
            continue;
        }
        let this = (distance(row.key, key), row.key);
        best = Some(best.map_or(this, |best| best.min(this)));
    }
    best
}

/// `true` or `false` in any case.
pub(crate) fn boolean(value: &str) -> Option<bool> {
    if value.eq_ignore_ascii_case("true") {
        Some(true)
    } else {
        value.eq_ignore_ascii_case("false").then_some(false)
    }
}

const BOOLEAN: &str = "\"true\" or \"false\"";

/// How many letters must be put in, taken out or replaced to get from one word to the other. Longer
/// keys than ours are compared as far as ours go.
pub(crate) fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes().get(..MAX_KEY).unwrap_or(b.as_bytes()));
    // what both begin with costs nothing, and most of a key is its prefix
    let same = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    let (a, b) = (&a[same..], &b[same..]);
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let (mut diagonal, mut left) = (i, i + 1);
        row[0] = left;
        for (cell, y) in row[1..].iter_mut().zip(b) {
            let replaced = diagonal + usize::from(x != y);
            diagonal = *cell;
            left = replaced.min(diagonal + 1).min(left + 1);
            *cell = left;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests;
