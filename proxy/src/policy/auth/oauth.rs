//! Built-in OAuth2/OIDC in the way of a request: the types of `oauth` on one side, ours on the other.

use super::{Asked, Identity, Outcome};
use crate::Shared;
use crate::fetch::{Client, Limits, Outgoing, PrivateCa};
use crate::oauth::provider::{Answer as ProviderAnswer, Ask, Call};
use crate::oauth::request::{Incoming, parameter};
use crate::oauth::{Answer, Decision, Endpoint, RelyingParty};
use crate::policy::Verdict;
use crate::respond::{Rejection, Reply};
use async_trait::async_trait;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, SET_COOKIE};
use http::{HeaderValue, Method};
use ingress_core::{Auth, OAuthPolicy, Route};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What one answer of a provider may take: documents of keys are the largest.
const LIMITS: Limits = Limits { total: Some(Duration::from_secs(10)), body: 1 << 20 };

/// Asks one provider over the shared client.
struct Asking {
    client: Arc<Client>,
    ca: Option<PrivateCa>,
}

#[async_trait]
impl Ask for Asking {
    async fn ask(&self, call: Call) -> Result<ProviderAnswer, String> {
        let mut outgoing = Outgoing { ca: self.ca.as_ref(), ..Outgoing::get(&call.url) };
        outgoing.headers.extend(call.headers);
        if let Some(form) = call.form {
            outgoing.method = Method::POST;
            outgoing.body = Bytes::from(form);
            let kind = HeaderValue::from_static("application/x-www-form-urlencoded");
            outgoing.headers.insert(CONTENT_TYPE, kind);
        }
        match self.client.fetch(outgoing, LIMITS).await {
            Ok(answer) => Ok(ProviderAnswer { status: answer.status, body: answer.body }),
            Err(problem) => Err(problem.to_string()),
        }
    }
}

/// What works for a route's settings, made when it is first needed.
fn relying_party<'a>(shared: &Shared, policy: &'a OAuthPolicy) -> Option<&'a Arc<RelyingParty>> {
    policy.state.get_or_init(|| {
        let provider = shared.providers.shared(policy, || {
            let ca = policy.provider_ca.as_deref().and_then(PrivateCa::from_pem);
            Box::new(Asking { client: shared.client.clone(), ca })
        });
        Arc::new(RelyingParty::new(policy, provider))
    })
}

/// The host's clients, in the order of its routes.
fn clients<'a>(shared: &'a Shared, routes: &'a [Arc<Route>]) -> impl Iterator<Item = &'a Arc<RelyingParty>> {
    routes.iter().filter_map(|route| match &route.policy.auth {
        Auth::OAuth(policy) => relying_party(shared, policy),
        _ => None,
    })
}

pub(super) async fn authenticate(
    shared: &Shared,
    policy: &OAuthPolicy,
    asked: &Asked<'_>,
    identity: &mut Identity,
) -> (Verdict, Outcome) {
    let Ok(authority) = asked.authority.to_str() else {
        return (Verdict::Reject(Rejection::Malformed), Outcome::Error);
    };
    let incoming = Incoming {
        method: &asked.parts.method,
        path: asked.parts.uri.path(),
        query: asked.parts.uri.query(),
        headers: &asked.parts.headers,
        authority,
        tls: asked.https,
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    if let Some(endpoint) = asked.endpoint {
        return serve(shared, endpoint, asked, &incoming, now_ms).await;
    }
    let Some(client) = relying_party(shared, policy) else {
        return (Verdict::Reject(Rejection::Internal), Outcome::Error);
    };
    match client.authenticate(&incoming, now_ms).await {
        Decision::Pass(pass) => {
            identity.user = Some(pass.who.user().into());
            identity.headers = pass.who.headers().to_vec();
            identity.response.extend(pass.cookies.into_iter().map(|cookie| (SET_COOKIE, cookie)));
            identity.soon = pass.claim;
            (Verdict::Continue, Outcome::Allowed)
        }
        Decision::Answer(answer) => {
            let outcome = outcome(&answer);
            (Verdict::Respond(Box::new(reply(answer))), outcome)
        }
    }
}

/// Serves one of the host's endpoints, by the client that it is about.
async fn serve(
    shared: &Shared,
    endpoint: Endpoint,
    asked: &Asked<'_>,
    incoming: &Incoming<'_>,
    now_ms: u64,
) -> (Verdict, Outcome) {
    let all = || clients(shared, asked.oauth);
    let chosen = match endpoint {
        Endpoint::Callback => all().find(|client| client.expects(incoming)),
        Endpoint::Logout | Endpoint::UserInfo => all().find(|client| client.knows(incoming)),
        Endpoint::Start => started_for(shared, asked, incoming),
    };
    let Some(client) = chosen.or_else(|| all().next()) else {
        return (Verdict::Reject(Rejection::Internal), Outcome::Error);
    };
    let mut answer = client.endpoint(endpoint, incoming, now_ms).await;
    if endpoint == Endpoint::Logout {
        // who logs out of a host logs out of all of it
        for other in all().filter(|other| !Arc::ptr_eq(other, client)) {
            answer.headers.extend(other.forget(incoming).into_iter().map(|cookie| (SET_COOKIE, cookie)));
        }
    }
    let outcome = match (outcome(&answer), endpoint) {
        // back from the provider with a session
        (Outcome::Redirected, Endpoint::Callback | Endpoint::Logout) => Outcome::Allowed,
        (outcome, _) => outcome,
    };
    (Verdict::Respond(Box::new(reply(answer))), outcome)
}

fn outcome(answer: &Answer) -> Outcome {
    match answer.status.as_u16() {
        200 => Outcome::Allowed,
        302 => Outcome::Redirected,
        401 if answer.label == "no_session" => Outcome::Missing,
        500.. => Outcome::Error,
        _ => Outcome::Denied,
    }
}

/// The client of the route that the login shall lead to.
fn started_for<'a>(
    shared: &'a Shared,
    asked: &Asked<'a>,
    incoming: &Incoming<'_>,
) -> Option<&'a Arc<RelyingParty>> {
    let named = parameter(incoming.query, "rd").ok().flatten()?;
    let back = incoming.named_return(&named)?;
    let path = back.split('?').next().unwrap_or("/");
    let longest = asked
        .oauth
        .iter()
        .filter(|route| route.path.matches(path))
        .map(std::slice::from_ref)
        .find_map(|route| clients(shared, route).next());
    longest.or_else(|| clients(shared, asked.oauth).next())
}

fn reply(answer: Answer) -> Reply {
    let mut reply = Reply {
        status: answer.status,
        headers: answer.headers,
        body: answer.body.into(),
        label: answer.label,
    };
    if !reply.body.is_empty() && !reply.headers.iter().any(|(name, _)| name == CONTENT_TYPE) {
        reply = reply.header(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    }
    // an answer about one browser's login is nobody else's
    reply.header(CACHE_CONTROL, HeaderValue::from_static("no-store"))
}
