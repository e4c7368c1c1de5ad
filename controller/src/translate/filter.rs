//! Filters of Gateway API rules as values.

use crate::cluster::gateway::{
    CorsFilter, HeaderFilter, HttpFilter, PathModifier, RedirectFilter, RewriteFilter,
};
use crate::finding::quoted;
use http::{HeaderName, HeaderValue, StatusCode};
use ingress_core::{Cors, Filter, HeaderEdit, HostPattern, Origin, Origins, PathEdit, Redirect, Rewrite};

/// Seconds that the Gateway API says where nothing is said.
const MAX_AGE: u32 = 5;

/// A filter, or why it cannot be honoured. `RequestMirror` and `CORS` are read elsewhere.
pub(super) fn read(wanted: &HttpFilter) -> Result<Filter, String> {
    match (&*wanted.kind, wanted) {
        ("RequestHeaderModifier", HttpFilter { request_header_modifier: Some(edit), .. }) => {
            header_edit(edit).map(Filter::RequestHeaders)
        }
        ("ResponseHeaderModifier", HttpFilter { response_header_modifier: Some(edit), .. }) => {
            header_edit(edit).map(Filter::ResponseHeaders)
        }
        ("RequestRedirect", HttpFilter { request_redirect: Some(wanted), .. }) => {
            redirect(wanted).map(Filter::Redirect)
        }
        ("URLRewrite", HttpFilter { url_rewrite: Some(wanted), .. }) => rewrite(wanted).map(Filter::Rewrite),
        (
            "RequestHeaderModifier"
            | "ResponseHeaderModifier"
            | "RequestRedirect"
            | "URLRewrite"
            | "RequestMirror"
            | "CORS",
            _,
        ) => Err(format!("a filter of type {} cannot stand here, or lacks its settings", wanted.kind)),
        (other, _) => Err(format!("filters of type {} are not supported", quoted(other))),
    }
}

/// Whether the filter replaces the prefix that a match took.
pub(super) fn needs_prefix(wanted: &HttpFilter) -> bool {
    let of =
        |path: &Option<PathModifier>| path.as_ref().is_some_and(|path| &*path.kind == "ReplacePrefixMatch");
    wanted.request_redirect.as_ref().is_some_and(|r| of(&r.path))
        || wanted.url_rewrite.as_ref().is_some_and(|r| of(&r.path))
}

fn header_edit(wanted: &HeaderFilter) -> Result<HeaderEdit, String> {
    let name = |text: &str| {
        let name: HeaderName = text.parse().map_err(|_| format!("{} is no header name", quoted(text)))?;
        // framing and routing are not the filter's
        let fixed = [
            "connection",
            "content-length",
            "host",
            "keep-alive",
            "te",
            "trailer",
            "transfer-encoding",
            "upgrade",
        ];
        if fixed.contains(&name.as_str()) {
            return Err(format!("header {name} cannot be changed"));
        }
        Ok(name)
    };
    let fields = |all: &[crate::cluster::gateway::Header]| {
        all.iter()
            .map(|header| {
                let value = HeaderValue::from_str(&header.value).map_err(|_| {
                    format!("the value of header {} cannot stand in a header", quoted(&header.name))
                })?;
                Ok((name(&header.name)?, value))
            })
            .collect::<Result<Box<[_]>, String>>()
    };
    Ok(HeaderEdit {
        set: fields(&wanted.set)?,
        add: fields(&wanted.add)?,
        remove: wanted.remove.iter().map(|text| name(text)).collect::<Result<_, _>>()?,
    })
}

fn path(wanted: &PathModifier) -> Result<PathEdit, String> {
    let good = |text: &str| {
        if text.bytes().all(|b| b.is_ascii_graphic() && b != b'#' && b != b'?') {
            Ok(text.into())
        } else {
            Err(format!("{} is no path", quoted(text)))
        }
    };
    match (&*wanted.kind, &wanted.replace_full_path, &wanted.replace_prefix_match) {
        ("ReplaceFullPath", Some(text), _) => good(text).map(PathEdit::Full),
        ("ReplacePrefixMatch", _, Some(text)) => good(text).map(PathEdit::Prefix),
        (other, ..) => Err(format!("a path of type {} is not supported, or lacks its value", quoted(other))),
    }
}

fn host(text: &str) -> Result<Box<str>, String> {
    match text.parse() {
        Ok(HostPattern::Exact(name)) => Ok((*name).into()),
        _ => Err(format!("{} is no host name", quoted(text))),
    }
}

fn redirect(wanted: &RedirectFilter) -> Result<Redirect, String> {
    let https = match wanted.scheme.as_deref() {
        None => None,
        Some("http") => Some(false),
        Some("https") => Some(true),
        Some(other) => return Err(format!("scheme {} is not supported, http and https are", quoted(other))),
    };
    let port = match wanted.port {
        None => None,
        Some(port) => {
            Some(u16::try_from(port).ok().filter(|p| *p > 0).ok_or_else(|| format!("{port} is no port"))?)
        }
    };
    let status = wanted.status_code.unwrap_or(302);
    let status = StatusCode::from_u16(status)
        .ok()
        .filter(|s| matches!(s.as_u16(), 301 | 302 | 303 | 307 | 308))
        .ok_or_else(|| format!("status {status} is no redirect; 301, 302, 303, 307 and 308 are"))?;
    Ok(Redirect {
        https,
        hostname: wanted.hostname.as_deref().map(host).transpose()?,
        port,
        path: wanted.path.as_ref().map(path).transpose()?,
        status,
    })
}

fn rewrite(wanted: &RewriteFilter) -> Result<Rewrite, String> {
    let hostname = match wanted.hostname.as_deref() {
        None => None,
        Some(name) => Some(
            HeaderValue::from_str(&host(name)?).map_err(|_| format!("{} is no host name", quoted(name)))?,
        ),
    };
    Ok(Rewrite { hostname, path: wanted.path.as_ref().map(path).transpose()? })
}

/// What scripts of other origins may do.
pub(super) fn cors(wanted: &CorsFilter) -> Result<Cors, String> {
    let credentials = wanted.allow_credentials.unwrap_or_default();
    let any = wanted.allow_origins.iter().any(|o| &**o == "*");
    let origins = if any && credentials {
        Origins::AnyWithCredentials
    } else if any {
        Origins::Any
    } else {
        let origins = wanted
            .allow_origins
            .iter()
            .map(|text| Origin::gateway(text).map_err(|_| format!("{} is no origin", quoted(text))));
        Origins::Listed { origins: origins.collect::<Result<_, _>>()?, credentials }
    };
    let list = |all: &[Box<str>]| {
        let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        if let Some(bad) = all.iter().find(|t| t.is_empty() || !t.bytes().all(token)) {
            return Err(format!("{} is no name of a method or header", quoted(bad)));
        }
        HeaderValue::from_str(&all.join(", ")).map_err(|_| "too long".to_owned())
    };
    Ok(Cors {
        origins,
        methods: list(&wanted.allow_methods)?,
        headers: list(&wanted.allow_headers)?,
        expose: if wanted.expose_headers.is_empty() { None } else { Some(list(&wanted.expose_headers)?) },
        expose_on_preflight: true,
        max_age: HeaderValue::from(wanted.max_age.unwrap_or(MAX_AGE)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Filter, String> {
        read(&serde_json::from_str(text).unwrap())
    }

    #[test]
    fn what_cannot_be_honoured_is_an_error() {
        for text in [
            r#"{"type":"ExtensionRef","extensionRef":{}}"#,
            r#"{"type":"ExternalAuth"}"#,
            r#"{"type":"Later"}"#,
            r#"{"type":"URLRewrite"}"#,
            r#"{"type":"RequestHeaderModifier","requestHeaderModifier":{"set":[{"name":"a b","value":""}]}}"#,
            r#"{"type":"RequestHeaderModifier","requestHeaderModifier":{"add":[{"name":"a","value":"\n"}]}}"#,
            r#"{"type":"RequestHeaderModifier","requestHeaderModifier":{"remove":["Transfer-Encoding"]}}"#,
            r#"{"type":"RequestRedirect","requestRedirect":{"scheme":"ftp"}}"#,
            r#"{"type":"RequestRedirect","requestRedirect":{"statusCode":200}}"#,
            r#"{"type":"RequestRedirect","requestRedirect":{"hostname":"*.example.com"}}"#,
            r#"{"type":"URLRewrite","urlRewrite":{"path":{"type":"ReplaceFullPath"}}}"#,
            r#"{"type":"URLRewrite","urlRewrite":{"path":{"type":"ReplaceFullPath","replaceFullPath":"/a b"}}}"#,
        ] {
            assert!(of(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_not_said_of_a_redirect_is_left_to_the_request() {
        let Ok(Filter::Redirect(redirect)) = of(r#"{"type":"RequestRedirect","requestRedirect":{}}"#) else {
            panic!("a redirect")
        };
        let Redirect { https, hostname, port, path, status } = redirect;
        assert_eq!((https, hostname, port, path, status.as_u16()), (None, None, None, None, 302));
    }

    #[test]
    fn everybodys_scripts_get_credentials_only_where_both_are_written() {
        let of = |text: &str| cors(&serde_json::from_str(text).unwrap()).map(|c| c.origins);
        assert_eq!(of(r#"{"allowOrigins":["*"]}"#), Ok(Origins::Any));
        assert_eq!(of(r#"{"allowOrigins":["*"],"allowCredentials":true}"#), Ok(Origins::AnyWithCredentials));
        assert!(matches!(of("{}"), Ok(Origins::Listed { origins, .. }) if origins.is_empty()));
        assert!(of(r#"{"allowOrigins":["a b"]}"#).is_err());
        assert!(of(r#"{"allowMethods":["A,B"]}"#).is_err());
    }
}
