//! Conditions as values, and what has to be written so that an object shows them.

use serde_json::{Map, Value, json};
use std::fmt::Write as _;

/// A condition as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    /// `type`
    pub kind: &'static str,
    /// True or False.
    pub status: bool,
    /// CamelCase word.
    pub reason: &'static str,
    /// A sentence for people.
    pub message: Box<str>,
}

impl Condition {
    pub(crate) fn new(
        kind: &'static str,
        status: bool,
        reason: &'static str,
        message: impl Into<Box<str>>,
    ) -> Self {
        Self { kind, status, reason, message: message.into() }
    }
}

/// The API refuses longer messages.
const MAX_MESSAGE: usize = 32 * 1024;

/// The list with these conditions in it: one that says the same already stays as it is, with its time; types that
/// are not ours are left alone, unless `own` says that all of the list is ours.
pub(crate) fn merged(current: &Value, wanted: &[Condition], generation: i64, now: i64, own: bool) -> Value {
    let empty = Vec::new();
    let current = current.as_array().unwrap_or(&empty);
    let is = |condition: &Value, kind: &str| condition["type"] == *kind;
    let mut list: Vec<Value> =
        wanted.iter().map(|c| one(current.iter().find(|old| is(old, c.kind)), c, generation, now)).collect();
    if !own {
        let foreign = current.iter().filter(|old| !wanted.iter().any(|c| is(old, c.kind)));
        list.extend(foreign.cloned());
    }
    // in the order in which they stand there, so that nothing is written for the sake of order
    let place = |c: &Value| current.iter().position(|old| old["type"] == c["type"]).unwrap_or(usize::MAX);
    list.sort_by_key(place);
    Value::Array(list)
}

fn one(old: Option<&Value>, wanted: &Condition, generation: i64, now: i64) -> Value {
    let status = if wanted.status { "True" } else { "False" };
    let message = &wanted.message[..wanted.message.floor_char_boundary(MAX_MESSAGE)];
    let time = old.filter(|old| old["status"] == *status).map(|old| old["lastTransitionTime"].clone());
    let mut condition = json!({
        "type": wanted.kind,
        "status": status,
        "reason": wanted.reason,
        "message": message,
        "lastTransitionTime": time.filter(Value::is_string).unwrap_or_else(|| timestamp(now).into()),
    });
    // files have no generation
    if generation > 0
        && let Some(condition) = condition.as_object_mut()
    {
        condition.insert("observedGeneration".into(), generation.into());
    }
    condition
}

/// Whether the object's status speaks of a later generation than the one that was looked at: a newer Pod knows more.
pub(crate) fn is_ahead(conditions: &Value, generation: i64) -> bool {
    let all = conditions.as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter().any(|c| c["observedGeneration"].as_i64().is_some_and(|seen| seen > generation))
}

/// Only the fields that differ; `None` if none does.
pub(crate) fn difference(current: &Value, wanted: Map<String, Value>) -> Option<Value> {
    let differing: Map<String, Value> =
        wanted.into_iter().filter(|(field, value)| current[field] != *value).collect();
    (!differing.is_empty()).then_some(Value::Object(differing))
}

/// Seconds since the epoch as RFC 3339.
fn timestamp(now: i64) -> String {
    let days = now.div_euclid(86_400);
    let seconds = now.rem_euclid(86_400);
    // the civil calendar from days, with years that begin in March
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let mut text = String::with_capacity(20);
    let year = year_of_era + era * 400 + next;
    let (h, m, s) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    // writing to a String does not fail
    let _ = write!(text, "{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}Z");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_a_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_764_684_080, "2025-12-02T14:01:20Z"),
            (4_102_444_799, "2099-12-31T23:59:59Z"),
        ] {
            assert_eq!(timestamp(seconds), text);
        }
    }

    #[test]
    fn what_says_the_same_keeps_its_time_and_others_are_left_alone() {
        let current = json!([
            { "type": "Theirs", "status": "True" },
            { "type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "observedGeneration": 1,
              "lastTransitionTime": "2020-01-01T00:00:00Z" },
        ]);
        let wanted = |status, reason| [Condition::new("Accepted", status, reason, "")];
        assert_eq!(merged(&current, &wanted(true, "Accepted"), 1, 0, false), current);
        let bumped = merged(&current, &wanted(true, "Accepted"), 2, 0, false);
        assert_eq!(bumped[1]["observedGeneration"], 2);
        assert_eq!(bumped[1]["lastTransitionTime"], "2020-01-01T00:00:00Z");
        let turned = merged(&current, &wanted(false, "Pending"), 1, 0, false);
        assert_eq!(turned[1]["lastTransitionTime"], "1970-01-01T00:00:00Z");
        assert_eq!(turned[0]["type"], "Theirs");
        assert_eq!(merged(&current, &[], 1, 0, true), json!([]));
    }

    #[test]
    fn a_status_of_a_later_generation_is_seen() {
        let of = |n: i64| json!([{ "observedGeneration": n }]);
        assert!(is_ahead(&of(3), 2) && !is_ahead(&of(2), 2) && !is_ahead(&Value::Null, 2));
    }
}
