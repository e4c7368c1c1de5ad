//! How a route treats its requests, and where they go: one small function for each part.
//!
//! Policies and routes are taken apart field by field without a rest, so that a new one does not
//! compile before it is told of here.

use super::{Fact, Question, Section, Surroundings, text, why_rejected};
use crate::Config;
use crate::respond::Rejection;
use ingress_core::{
    Access, Actions, Auth, Backend, BackendAddress, BackendProtocol, Cors, Filter, HeaderEdit, Mirror,
    Origins, PathEdit, Policy, RateLimit, Redirect, Retry, Rewrite, Route, Timeouts, WeightedBackend,
};
use std::net::SocketAddr;
use std::time::Duration;

/// How the route's requests are treated, in the order of work.
pub(super) fn treatment(route: &Route, question: &Question, config: &Config) -> Vec<Section> {
    // no rest patterns: whatever is added must be told
    let Route {
        path: _,
        conditions: _,
        policy,
        https_redirect,
        backend: _,
        actions,
        source: _,
        host: _,
        rule: _,
        created: _,
        state: _,
    } = route;
    let Policy { access, auth, cors: origins, rate_limit, timeouts } = &**policy;
    vec![
        address_lists(access),
        redirect(*https_redirect, question.tls),
        filters(actions.as_deref()),
        cors(origins.as_deref()),
        authentication(auth),
        limits(config),
        rate_limits(rate_limit),
        backend_timeouts(timeouts, actions.as_deref()),
    ]
}

/// What a Gateway API rule does with a request.
fn filters(actions: Option<&Actions>) -> Section {
    // what is no filter has a section of its own
    let own = actions.map_or(&[][..], |actions| {
        let Actions { filters, backends: _, request_timeout: _, backend_request_timeout: _, retry: _ } =
            actions;
        filters
    });
    let all: Vec<_> = own.iter().map(filter_word).collect();
    let summary = if all.is_empty() { "none".to_owned() } else { all.join(", ") };
    Section::new("filters", summary, vec![("filters", Fact::List(all))])
}

fn filter_word(filter: &Filter) -> String {
    let names = |edit: &HeaderEdit| {
        let HeaderEdit { set, add, remove } = edit;
        let set = set.iter().map(|(name, _)| format!("set {name}"));
        let add = add.iter().map(|(name, _)| format!("add {name}"));
        let remove = remove.iter().map(|name| format!("remove {name}"));
        set.chain(add).chain(remove).collect::<Vec<_>>().join(" ")
    };
    match filter {
        Filter::RequestHeaders(edit) => format!("request headers ({})", names(edit)),
        Filter::ResponseHeaders(edit) => format!("response headers ({})", names(edit)),
        Filter::Redirect(Redirect { status, .. }) => format!("redirect {}", status.as_u16()),
        Filter::Rewrite(Rewrite { hostname, path }) => {
            let host = hostname.as_ref().and_then(|host| host.to_str().ok());
            let host = host.map(|host| format!(" host to {host}")).unwrap_or_default();
            let path = match path {
                Some(PathEdit::Full(full)) => format!(" path to {full}"),
                Some(PathEdit::Prefix(with)) => format!(" prefix to {with}"),
                None => String::new(),
            };
            format!("rewrite{host}{path}")
        }
        Filter::Mirror(Mirror { backend, numerator, denominator }) => {
            format!("mirror {numerator} of {denominator} to {}", backend.service)
        }
        Filter::Fail => "one that cannot be honoured: 500".to_owned(),
    }
}

/// Where requests go.
pub(super) fn backends(route: &Route, around: &Surroundings<'_>) -> Section {
    let Some(several) = route.actions.as_ref().and_then(|actions| actions.backends.as_ref()) else {
        return backend(&route.backend, around);
    };
    let one = |entry: &WeightedBackend| {
        let WeightedBackend { backend: to, weight, filters } = entry;
        let filters: Vec<_> = filters.iter().map(filter_word).collect();
        let filters = if filters.is_empty() { String::new() } else { format!(", {}", filters.join(", ")) };
        format!("weight {weight}: {}{filters}", backend(to, around).summary)
    };
    let all: Vec<_> = several.entries().iter().map(one).collect();
    let services = several.entries().iter().map(|entry| entry.backend.service.to_string()).collect();
    Section::new(
        "backend",
        all.join("; "),
        vec![("by", text("weight")), ("services", Fact::List(services)), ("backends", Fact::List(all))],
    )
}

fn address_lists(access: &Access) -> Section {
    let (summary, kind) = match access {
        Access::Open => ("every address is let in".to_owned(), "open"),
        Access::Denied => {
            ("nobody is let in: a list is asked for that cannot be honoured (403)".to_owned(), "denied")
        }
        Access::Listed { allow, deny } => {
            let allowed = allow.as_ref().map_or("every address".to_owned(), |allow| allow.to_string());
            let denied = if deny.is_empty() { String::new() } else { format!(", but not {deny}") };
            (format!("let in: {allowed}{denied}; others get 403"), "listed")
        }
    };
    Section::new("address_lists", summary, vec![("kind", text(kind))])
}

fn redirect(to_https: bool, tls: bool) -> Section {
    let summary = match (to_https, tls) {
        (true, false) => "plain HTTP is answered 308 to https",
        (true, true) => "plain HTTP would be answered 308 to https",
        (false, _) => "none",
    };
    Section::new("redirect", summary, vec![("https", Fact::Flag(to_https))])
}

fn cors(cors: Option<&Cors>) -> Section {
    let Some(Cors { origins, .. }) = cors else {
        return Section::new("cors", "no CORS headers are added", vec![("enabled", Fact::Flag(false))]);
    };
    let who = match origins {
        Origins::Any => "any origin, without credentials".to_owned(),
        Origins::AnyWithCredentials => "any origin, with credentials".to_owned(),
        Origins::Listed { origins, credentials } => {
            let credentials = if *credentials { "with" } else { "without" };
            format!("{} listed origins, {credentials} credentials", origins.len())
        }
    };
    Section::new("cors", format!("preflights are answered here; {who}"), vec![("enabled", Fact::Flag(true))])
}

fn rate_limits(limit: &RateLimit) -> Section {
    let summary = if *limit == RateLimit::default() {
        "none by client".to_owned()
    } else {
        format!("by client: {limit:?}")
    };
    let set = *limit != RateLimit::default();
    Section::new("rate_limits", summary, vec![("limited", Fact::Flag(set))])
}

fn authentication(auth: &Auth) -> Section {
    let (summary, kind) = match auth {
        Auth::Open => ("none asked for", "open"),
        Auth::Basic(_) => ("user name and password, from an htpasswd Secret", "basic"),
        Auth::External(_) => ("a service is asked about each request", "external"),
        Auth::OAuth(_) => ("login at an OpenID provider, or a bearer token", "oauth"),
        Auth::Misconfigured => ("asked for and not usable: 501 to everybody", "misconfigured"),
    };
    Section::new("authentication", summary, vec![("kind", text(kind))])
}

fn limits(config: &Config) -> Section {
    let body = config.max_request_body_size;
    let summary = match body {
        Some(max) => format!("request head {} bytes, body {max} bytes", config.max_header_size),
        None => format!("request head {} bytes, body without limit", config.max_header_size),
    };
    let facts = vec![
        ("max_header_size", number(config.max_header_size as u64)),
        ("max_request_body_size", body.map_or(Fact::Nothing, number)),
    ];
    Section::new("limits", summary, facts)
}

fn backend_timeouts(timeouts: &Timeouts, actions: Option<&Actions>) -> Section {
    let Timeouts { connect, read, send } = *timeouts;
    let word =
        |t: Option<Duration>| t.map_or("without limit".to_owned(), |t| format!("{} s", t.as_secs_f64()));
    let fact = |t: Option<Duration>| t.map_or(Fact::Nothing, |t| Fact::Number(t.as_secs_f64()));
    let mut section = Section::new(
        "timeouts",
        format!("connect {}, read {}, send {}", word(connect), word(read), word(send)),
        vec![("connect_seconds", fact(connect)), ("read_seconds", fact(read)), ("send_seconds", fact(send))],
    );
    if let Some(Actions { filters: _, backends: _, request_timeout, backend_request_timeout, retry }) =
        actions
    {
        section.summary +=
            &format!(", request {}, attempt {}", word(*request_timeout), word(*backend_request_timeout));
        if let Some(Retry { attempts, codes, backoff: _ }) = retry {
            let codes: Vec<_> = codes.iter().map(|code| code.as_str().to_owned()).collect();
            section.summary += &format!(", {attempts} retries on {}", codes.join(" "));
        }
        section.facts.push(("request_seconds", fact(*request_timeout)));
        section.facts.push(("attempt_seconds", fact(*backend_request_timeout)));
        section.facts.push(("retries", retry.as_ref().map_or(Fact::Nothing, |r| number(r.attempts.into()))));
    }
    section
}

fn number(n: u64) -> Fact {
    Fact::Number(n as f64)
}

fn backend(backend: &Backend, around: &Surroundings<'_>) -> Section {
    let Backend { service, address, protocol, tls_name, verify, keepalive, tls: _, client } = backend;
    let protocol = match protocol {
        BackendProtocol::Http => "http",
        BackendProtocol::Https => "https",
        BackendProtocol::H2c => "h2c",
        BackendProtocol::H2 => "h2",
        BackendProtocol::Grpc => "grpc",
        BackendProtocol::Grpcs => "grpcs",
    };
    let (how, kind, addresses) = match address {
        BackendAddress::Name(name, port) => {
            let known = (around.addresses)(name);
            let all =
                known.map(|ips| ips.into_iter().map(|ip| SocketAddr::new(ip, *port)).collect::<Vec<_>>());
            (format!("DNS name {name} port {port}"), "name", all)
        }
        BackendAddress::Endpoints(all) => ("its endpoints".to_owned(), "endpoints", Some(all.to_vec())),
        BackendAddress::Unavailable(why) => {
            let why = why_rejected(Rejection::Unavailable(*why));
            (format!("nothing to dial: {why}"), "unavailable", Some(vec![]))
        }
    };
    let shown = |at: &SocketAddr| match around.guard.check(at.ip()) {
        Ok(()) => at.to_string(),
        Err(_) => format!("{at} (never dialled)"),
    };
    let list: Option<Vec<String>> = addresses.map(|all| all.iter().map(shown).collect());
    let names = match &list {
        Some(all) if all.is_empty() => String::new(),
        Some(all) => format!(": {}", all.join(", ")),
        None => ", looked up when it is needed".to_owned(),
    };
    Section::new(
        "backend",
        format!("Service {service} over {protocol} by {how}{names}"),
        vec![
            ("service", text(service)),
            ("protocol", text(protocol)),
            ("by", text(kind)),
            ("name", if let BackendAddress::Name(name, _) = address { text(name) } else { Fact::Nothing }),
            ("addresses", list.map_or(Fact::Nothing, Fact::List)),
            ("tls_name", if backend.protocol.tls() { text(tls_name) } else { Fact::Nothing }),
            ("verify", Fact::Flag(*verify)),
            ("keepalive", Fact::Flag(*keepalive)),
            ("client_certificate", client.as_ref().map_or(Fact::Nothing, |client| text(&client.source))),
        ],
    )
}
