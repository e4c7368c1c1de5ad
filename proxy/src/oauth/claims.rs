//! From a token's claims to who somebody is, and whether they may pass.

use super::email;
use super::session::{MAX_NAME, Session};
use ingress_core::OAuthPolicy;
use serde_json::{Map, Value};

/// The claims of a token whose signature was checked, or of a provider's answer.
pub type Claims = Map<String, Value>;

/// Why somebody who is known may not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the e-mail address meets neither email_domains nor allowed_emails")]
    Email,
    #[error(
        "there is no e-mail address that may be believed: its email_verified is not true (insecure_oidc_allow_unverified_email would accept it), or it is malformed or missing"
    )]
    NoEmail,
    #[error("none of the groups is among allowed_groups")]
    Group,
}

/// A text claim, found by its whole name or else as a path of names with dots between.
fn lookup<'a>(claims: &'a Claims, name: &str) -> Option<&'a Value> {
    claims.get(name).or_else(|| {
        let mut names = name.split('.');
        let first = claims.get(names.next()?)?;
        names.try_fold(first, |value, name| value.as_object()?.get(name))
    })
}

/// A text that can stand in a header; `None` for anything else.
fn text(value: Option<&Value>) -> Option<&str> {
    value.and_then(Value::as_str).filter(|text| is_plain(text))
}

fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.len() <= MAX_NAME && !text.chars().any(char::is_control)
}

/// What a claim of groups says: a list of texts, or one text.
fn groups(value: Option<&Value>) -> Vec<String> {
    let mut found: Vec<String> = match value {
        Some(Value::Array(all)) => all.iter().filter_map(|v| text(Some(v))).map(str::to_owned).collect(),
        one => text(one).map(str::to_owned).into_iter().collect(),
    };
    let mut seen = std::collections::HashSet::new();
    found.retain(|group| seen.insert(group.clone()));
    found
}

/// Fills in who these claims are about. `None`: they have no `sub`.
pub fn identify(policy: &OAuthPolicy, claims: &Claims, session: &mut Session) -> Option<()> {
    session.user = text(claims.get("sub"))?.to_owned();
    session.preferred = text(claims.get("preferred_username")).unwrap_or_default().to_owned();
    session.email.clear();
    complete(policy, claims, session);
    Some(())
}

/// Fills in what is missing from further claims about the same user.
pub fn complete(policy: &OAuthPolicy, claims: &Claims, session: &mut Session) {
    if session.email.is_empty() {
        session.email = believed_email(policy, claims).unwrap_or_default().to_owned();
    }
    if session.groups.is_empty() {
        session.groups = groups(lookup(claims, &policy.groups_claim));
    }
    if session.preferred.is_empty() {
        session.preferred = text(claims.get("preferred_username")).unwrap_or_default().to_owned();
    }
}

/// Whether claims from elsewhere could add something that a rule or the backend wants.
pub fn incomplete(policy: &OAuthPolicy, claims: &Claims) -> bool {
    lookup(claims, &policy.email_claim).is_none() || !tell_groups(policy, claims)
}

/// Whether a rule cannot be asked without claims from elsewhere.
pub fn undecided(policy: &OAuthPolicy, claims: &Claims) -> bool {
    let without_email = lookup(claims, &policy.email_claim).is_none();
    (without_email && asks_email(policy))
        || (!tell_groups(policy, claims) && !policy.allowed_groups.is_empty())
}

/// Whether these claims say of groups anything at all.
pub fn tell_groups(policy: &OAuthPolicy, claims: &Claims) -> bool {
    lookup(claims, &policy.groups_claim).is_some()
}

fn asks_email(policy: &OAuthPolicy) -> bool {
    policy.email_domains.is_some() || !policy.allowed_emails.is_empty()
}

/// The e-mail address, if it is one and the provider vouches for it.
fn believed_email<'a>(policy: &OAuthPolicy, claims: &'a Claims) -> Option<&'a str> {
    let address = text(lookup(claims, &policy.email_claim))?;
    email::parse(address)?;
    // `email_verified` is about `email`; some providers write it as a text.
    let verified = match claims.get("email_verified") {
        Some(Value::Bool(verified)) => *verified,
        Some(Value::String(verified)) => verified.eq_ignore_ascii_case("true"),
        _ => false,
    };
    (verified || policy.allow_unverified_email).then_some(address)
}

/// The rules of the route. They are asked about each request, so a changed rule counts at once.
pub fn allowed(policy: &OAuthPolicy, email: &str, groups: &[String]) -> Result<(), Refused> {
    let by_email = asks_email(policy);
    if by_email {
        let Some((_, domain)) = email::parse(email) else { return Err(Refused::NoEmail) };
        let domain = domain.to_ascii_lowercase();
        let in_domain = policy.email_domains.iter().flatten().any(|wanted| {
            match wanted.strip_prefix("*.").or_else(|| wanted.strip_prefix('.')) {
                Some(parent) => {
                    domain.strip_suffix(parent).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
                }
                None => **wanted == *domain,
            }
        });
        if !in_domain && !policy.allowed_emails.iter().any(|wanted| wanted.eq_ignore_ascii_case(email)) {
            return Err(Refused::Email);
        }
    }
    let listed = |group: &String| policy.allowed_groups.iter().any(|wanted| **wanted == **group);
    if !policy.allowed_groups.is_empty() && !groups.iter().any(listed) {
        return Err(Refused::Group);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::policy;
    use super::*;
    use serde_json::json;

    fn claims(value: Value) -> Claims {
        value.as_object().unwrap().clone()
    }

    fn session(policy: &OAuthPolicy, value: Value) -> Session {
        let mut session = Session::default();
        identify(policy, &claims(value), &mut session).unwrap();
        session
    }

    fn list(items: &[&str]) -> Box<[Box<str>]> {
        items.iter().map(|item| (*item).into()).collect()
    }

    #[test]
    fn only_one_well_formed_verified_address_counts() {
        let mut policy = policy();
        policy.email_domains = Some(list(&["example.com"]));
        for (email, verified, counts) in [
            (json!("x@example.com"), json!(true), true),
            (json!("X@EXAMPLE.com"), json!("true"), true),
            (json!("x@example.com"), json!(false), false),
            (json!("x@example.com"), json!("false"), false),
            (json!("x@example.com"), json!(1), false),
            (json!("x@example.com"), json!(null), false),
            (json!("x@evil.example@example.com"), json!(true), false),
            (json!("x@evil.example"), json!(true), false),
            (json!("x@sub.example.com"), json!(true), false),
            (json!("x@example.com\r\nX-Admin: 1"), json!(true), false),
            (json!([]), json!(true), false),
            (json!(["x@example.com"]), json!(true), false),
            (json!(null), json!(true), false),
        ] {
            let one = session(&policy, json!({"sub": "u", "email": email, "email_verified": verified}));
            assert_eq!(allowed(&policy, &one.email, &one.groups).is_ok(), counts, "{email} {verified}");
        }
        policy.allow_unverified_email = true;
        let one = session(&policy, json!({"sub": "u", "email": "x@example.com"}));
        assert_eq!(allowed(&policy, &one.email, &one.groups), Ok(()));
        let evil = session(&policy, json!({"sub": "u", "email": "x@evil.example@example.com"}));
        assert_eq!(allowed(&policy, &evil.email, &evil.groups), Err(Refused::NoEmail));
    }

    #[test]
    fn without_a_rule_the_user_is_enough() {
        let policy = policy();
        let one = session(&policy, json!({"sub": "u", "email": "broken", "email_verified": true}));
        assert_eq!((one.user.as_str(), one.email.as_str()), ("u", ""));
        assert_eq!(allowed(&policy, &one.email, &one.groups), Ok(()));
        assert_eq!(identify(&policy, &claims(json!({"email": "a@b"})), &mut Session::default()), None);
        for sub in [json!(""), json!(7), json!("a\r\nb"), json!("x".repeat(2000))] {
            assert_eq!(identify(&policy, &claims(json!({ "sub": sub })), &mut Session::default()), None);
        }
    }

    #[test]
    fn domains_and_addresses_are_alternatives_and_groups_come_on_top() {
        let mut policy = policy();
        policy.email_domains = Some(list(&["example.com", ".corp.example", "*.dept.example"]));
        policy.allowed_emails = list(&["guest@other.example"]);
        let asks = |policy: &OAuthPolicy, email: &str, groups: &[&str]| {
            let groups: Vec<_> = groups.iter().map(|g| (*g).to_owned()).collect();
            allowed(policy, email, &groups)
        };
        assert_eq!(asks(&policy, "a@example.com", &[]), Ok(()));
        assert_eq!(asks(&policy, "a@x.corp.example", &[]), Ok(()));
        assert_eq!(asks(&policy, "a@corp.example", &[]), Err(Refused::Email));
        assert_eq!(asks(&policy, "a@evilcorp.example", &[]), Err(Refused::Email));
        assert_eq!(asks(&policy, "a@x.dept.example", &[]), Ok(()));
        assert_eq!(asks(&policy, "Guest@other.example", &[]), Ok(()));
        assert_eq!(asks(&policy, "b@other.example", &[]), Err(Refused::Email));
        policy.allowed_groups = list(&["ops", "a,b"]);
        assert_eq!(asks(&policy, "a@example.com", &["dev"]), Err(Refused::Group));
        assert_eq!(asks(&policy, "a@example.com", &["dev", "ops"]), Ok(()));
        assert_eq!(asks(&policy, "a@example.com", &["a", "b"]), Err(Refused::Group));
    }

    #[test]
    fn groups_are_found_by_name_by_path_and_as_one_text() {
        let mut policy = policy();
        let of = |policy: &OAuthPolicy, value: Value| session(policy, value).groups;
        assert_eq!(of(&policy, json!({"sub": "u", "groups": ["a", 1, "b\n", "a", "c"]})), ["a", "c"]);
        assert_eq!(of(&policy, json!({"sub": "u", "groups": "one"})), ["one"]);
        assert!(of(&policy, json!({"sub": "u", "groups": {"a": 1}})).is_empty());
        policy.groups_claim = "realm_access.roles".into();
        assert_eq!(of(&policy, json!({"sub": "u", "realm_access": {"roles": ["r"]}})), ["r"]);
        assert_eq!(of(&policy, json!({"sub": "u", "realm_access.roles": ["d"]})), ["d"]);
    }

    #[test]
    fn a_second_source_adds_and_replaces_nothing() {
        let policy = policy();
        let mut one = session(&policy, json!({"sub": "u", "groups": ["a"]}));
        let more = json!({"sub": "u", "email": "x@example.com", "email_verified": true, "groups": ["admin"]});
        complete(&policy, &claims(more), &mut one);
        assert_eq!((one.email.as_str(), one.groups.as_slice()), ("x@example.com", &["a".to_owned()][..]));
    }
}
