//! Where in a file a field stands. Read only for objects with something to tell: it costs a second
//! reading of the document.

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};
use std::fmt;

/// A document with the place of each of its nodes.
pub(crate) struct Tree {
    root: Spanned<Node>,
    /// Line of the file on which the document begins.
    first: usize,
}

enum Node {
    Scalar(String),
    List(Vec<Spanned<Node>>),
    Map(Vec<(Spanned<String>, Spanned<Node>)>),
}

/// Where something stands, and what stands there if that is a scalar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    /// The first one is 1.
    pub line: usize,
    /// The first one is 1.
    pub column: usize,
    /// The scalar's text; `None` also where the field asked for is not there and this is what is around it.
    pub value: Option<String>,
}

impl Tree {
    /// Reads a document that begins on this line of its file; `None` if it is no YAML.
    pub(crate) fn read(document: &str, first: usize) -> Option<Self> {
        let options = serde_saphyr::options! {
            with_snippet: false,
            budget: serde_saphyr::budget! { max_events: 50_000_000, max_nodes: 20_000_000 },
        };
        let root = serde_saphyr::from_str_with_options(document, options).ok()?;
        Some(Self { root, first })
    }

    /// Follows keys and indices as far as they lead. A key's spot is the key's own, with its value.
    pub(crate) fn find<'a>(&self, way: impl IntoIterator<Item = Step<'a>>) -> Spot {
        let mut node = &self.root;
        let mut at = self.root.referenced;
        let mut whole = true;
        for step in way {
            let next = match (&node.value, step) {
                (Node::Map(pairs), Step::Key(key)) => {
                    pairs.iter().find(|(k, _)| k.value == key).map(|(k, v)| (k.referenced, v))
                }
                (Node::List(items), Step::Index(i)) => items.get(i).map(|item| (item.referenced, item)),
                _ => None,
            };
            let Some((place, next)) = next else {
                whole = false;
                break;
            };
            (at, node) = (place, next);
        }
        let value = match &node.value {
            Node::Scalar(text) if whole => Some(text.clone()),
            _ => None,
        };
        self.spot(at, value)
    }

    fn spot(&self, at: Location, value: Option<String>) -> Spot {
        let number = |n: u64| usize::try_from(n).unwrap_or_default().max(1);
        Spot { line: self.first + number(at.line()) - 1, column: number(at.column()), value }
    }
}

/// One step into a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step<'a> {
    Key(&'a str),
    Index(usize),
}

impl<'a> Step<'a> {
    /// The steps of `spec.rules[0].host`. Keys with dots in them cannot be written so.
    pub(crate) fn of(path: &'a str) -> impl Iterator<Item = Step<'a>> {
        path.split(['.', '[']).filter(|part| !part.is_empty()).map(|part| {
            let index = part.strip_suffix(']').and_then(|digits| digits.parse().ok());
            index.map_or(Step::Key(part), Step::Index)
        })
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_bool<E>(self, v: bool) -> Result<Node, E> {
        Ok(Node::Scalar(v.to_string()))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Node, E> {
        Ok(Node::Scalar(v.to_string()))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Node, E> {
        Ok(Node::Scalar(v.to_string()))
    }

    fn visit_f64<E>(self, v: f64) -> Result<Node, E> {
        Ok(Node::Scalar(v.to_string()))
    }

    fn visit_str<E>(self, v: &str) -> Result<Node, E> {
        Ok(Node::Scalar(v.to_owned()))
    }

    fn visit_bytes<E>(self, _: &[u8]) -> Result<Node, E> {
        Ok(Node::Scalar(String::new()))
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(String::new()))
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(String::new()))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        Node::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = map.next_entry()? {
            pairs.push(pair);
        }
        Ok(Node::Map(pairs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "---
# a comment
kind: List
items:
- kind: Ingress
  metadata:
    annotations:
      \"ingress.tak-os.org/ssl-redirect\": 'no'
      long: |
        spec:
        rules:
  spec:
    rules:
    - {host: a.x, http: {paths: [{path: /, n: 7}, {path: '/b'}]}}
    - host: &h b.x
      other: *h
      nothing:
";

    fn spot(path: &str) -> (usize, usize, Option<String>) {
        let tree = Tree::read(TEXT, 11).unwrap();
        let Spot { line, column, value } = tree.find(Step::of(path));
        (line - 10, column, value)
    }

    #[test]
    fn fields_are_found_where_they_stand() {
        let some = |text: &str| Some(text.to_owned());
        for (path, want) in [
            ("kind", (3, 1, some("List"))),
            ("items[0]", (5, 3, None)),
            ("items[0].spec.rules", (13, 5, None)),
            ("items[0].spec.rules[0].host", (14, 8, some("a.x"))),
            ("items[0].spec.rules[0].http.paths[0].n", (14, 44, some("7"))),
            ("items[0].spec.rules[0].http.paths[1].path", (14, 52, some("/b"))),
            ("items[0].spec.rules[1].other", (16, 7, some("b.x"))),
            ("items[0].spec.rules[1].nothing", (17, 7, some(""))),
            // not there: what is around it
            ("items[0].spec.rules[1].http.paths", (15, 7, None)),
            ("items[0].spec.rules[7].host", (13, 5, None)),
            ("status", (3, 1, None)),
        ] {
            assert_eq!(spot(path), want, "{path}");
        }
        let tree = Tree::read(TEXT, 1).unwrap();
        let way =
            Step::of("items[0].metadata.annotations").chain([Step::Key("ingress.tak-os.org/ssl-redirect")]);
        assert_eq!(tree.find(way), Spot { line: 8, column: 7, value: Some("no".into()) });
    }

    #[test]
    fn what_is_no_document_has_no_places() {
        assert!(Tree::read("a: [", 1).is_none());
        assert!(Tree::read("", 1).is_none_or(|tree| tree.find(Step::of("a.b")).line == 1));
    }
}
