//! `explain`: why a request gets the answer that it gets. A face over `ingress_proxy::explain`.

use crate::args::{Deny, Mode, Settings};
use crate::check::{self, finding};
use ingress_controller::load;
use ingress_core::BackendAddress;
use ingress_proxy::dial::DialGuard;
use ingress_proxy::explain::{Fact, Question, Report, Section, Surroundings};
use serde_json::{Map, Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Explain {
    /// The request.
    pub question: Question,
    /// For programs and not for people.
    pub json: bool,
}

/// The text to print. An error is one line; `true` with it: the command line is at fault.
pub fn run(ask: &Explain, settings: &Settings) -> Result<String, (bool, String)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| (false, e.to_string()))?;
    let namespaces = &settings.watch_namespaces;
    let mut client = None;
    let files;
    let loaded = match &settings.mode {
        Mode::Manifests(dir) => {
            files = ingress_controller::check::read(dir)
                .map_err(|e| (true, format!("--manifests={}: {e}", dir.display())))?;
            load::from_files(&files, &settings.translate, namespaces)
        }
        Mode::Cluster { kubeconfig, context } => runtime.block_on(async {
            let made = ingress_controller::client(kubeconfig.as_deref(), context.as_deref());
            let made = made.await.map_err(|e| (true, e.to_string()))?;
            let loaded = load::from_cluster(&made, &settings.translate, namespaces);
            let loaded = loaded.await.map_err(|e| (false, e.to_string()))?;
            client = Some(made);
            Ok(loaded)
        })?,
        Mode::Demo => return Err((true, "explain has no demo: it needs --manifests or a cluster".into())),
    };
    let guard = match (&settings.deny_backends, &settings.mode) {
        (Deny::List(list), _) => DialGuard::from_cidrs(list.clone()),
        (Deny::Default, Mode::Cluster { .. }) => DialGuard::default_deny(Vec::new()),
        (Deny::Nothing | Deny::Default, _) => DialGuard::none(),
    };
    let around = Surroundings { config: &settings.proxy, guard: &guard, addresses: &|_| None, now: now() };
    let mut report = ingress_proxy::explain::explain(&loaded.snapshot, &ask.question, &around);
    let mut gaps = loaded.gaps;
    if let (Some(client), Some(route)) = (&client, &report.taken_by)
        && let BackendAddress::Name(..) = route.backend.address
    {
        match runtime.block_on(load::endpoints(client, &route.backend.service)) {
            Ok(pods) => {
                let pods: Vec<_> = pods.iter().map(ToString::to_string).collect();
                let summary = if pods.is_empty() { "none are ready".to_owned() } else { pods.join(", ") };
                report.sections.push(Section {
                    name: "pods",
                    summary,
                    facts: vec![("addresses", Fact::List(pods))],
                });
            }
            Err(error) => gaps.push(error.to_string()),
        }
    }
    let mistakes = match (loaded.mistakes, &report.taken_by) {
        (Some(mistakes), Some(route)) => mistakes.of(&route.source),
        _ => Vec::new(),
    };
    if ask.json {
        let mut value = to_json(&report);
        value["findings"] = mistakes.iter().map(finding).collect();
        value["gaps"] = json!(gaps);
        return Ok(check::pretty(&value));
    }
    let mut out = text(&report);
    for m in mistakes {
        line(&mut out, "finding", &format!("{} {}: {}: {}", m.reason.id(), m.reason, m.field, m.message));
    }
    for gap in &gaps {
        line(&mut out, "not read", gap);
    }
    Ok(out)
}

/// Seconds since the epoch.
pub fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

fn line(out: &mut String, name: &str, summary: &str) {
    *out += &format!("{:<15} {summary}\n", name.replace('_', " "));
}

fn text(report: &Report) -> String {
    // no rest pattern: whatever is added must be shown
    let Report { request, answer, route, lost, lost_more, sections, taken_by: _ } = report;
    let mut out = String::new();
    for section in [Some(request), Some(answer), route.as_ref()].into_iter().flatten().chain(lost) {
        line(&mut out, section.name, &section.summary);
    }
    if *lost_more > 0 {
        line(&mut out, "lost", &format!("and {lost_more} more"));
    }
    for section in sections {
        line(&mut out, section.name, &section.summary);
    }
    out
}

/// The report for programs.
pub fn to_json(report: &Report) -> Value {
    let Report { request, answer, route, lost, lost_more, sections, taken_by: _ } = report;
    let mut all = Map::new();
    all.insert("request".into(), section(request));
    all.insert("answer".into(), section(answer));
    all.insert("route".into(), route.as_ref().map_or(Value::Null, section));
    all.insert("lost".into(), lost.iter().map(section).collect());
    all.insert("lost_more".into(), json!(lost_more));
    for part in sections {
        all.insert(part.name.into(), section(part));
    }
    Value::Object(all)
}

fn section(section: &Section) -> Value {
    let mut value = Map::new();
    value.insert("summary".into(), json!(section.summary));
    for (name, fact) in &section.facts {
        let fact = match fact {
            Fact::Text(text) => json!(text),
            Fact::Number(n) if n.fract() == 0.0 && n.abs() < 9e15 => json!(*n as i64),
            Fact::Number(n) => json!(n),
            Fact::Flag(flag) => json!(flag),
            Fact::List(list) => json!(list),
            Fact::Nothing => Value::Null,
        };
        value.insert((*name).into(), fact);
    }
    Value::Object(value)
}
