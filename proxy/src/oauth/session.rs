//! A session: who logged in, and what is needed to keep it. It lives in the browser alone, sealed.

use std::fmt;

/// The groups of a session take no more than this, written with a comma between them.
pub const MAX_GROUPS: usize = 8 << 10;
/// Longest user, preferred name or e-mail address.
pub const MAX_NAME: usize = 1024;

/// What is known of a logged-in user.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Session {
    /// When the login, or the last refresh, was: seconds since the epoch.
    pub issued: u64,
    /// When its tokens end; 0: the provider did not say.
    pub expires: u64,
    /// `sub`
    pub user: String,
    /// An e-mail address that may be believed; empty: none.
    pub email: String,
    /// `preferred_username`; may be empty.
    pub preferred: String,
    /// Groups.
    pub groups: Vec<String>,
    /// The access token, if it is passed on.
    pub access_token: String,
    /// The ID token, if it is passed on or sent along at logout.
    pub id_token: String,
    /// The refresh token, if the session is refreshed.
    pub refresh_token: String,
}

/// Never with tokens.
impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("user", &self.user)
            .field("issued", &self.issued)
            .finish_non_exhaustive()
    }
}

impl Session {
    /// Bytes for sealing: two numbers and length-prefixed texts, in a fixed order.
    pub fn encode(&self) -> Vec<u8> {
        let texts = [
            &self.user,
            &self.email,
            &self.preferred,
            &self.access_token,
            &self.id_token,
            &self.refresh_token,
        ];
        let groups: usize = self.groups.iter().map(|g| g.len() + 4).sum();
        let mut out =
            Vec::with_capacity(16 + groups + texts.iter().map(|text| text.len() + 4).sum::<usize>());
        out.extend_from_slice(&self.issued.to_be_bytes());
        out.extend_from_slice(&self.expires.to_be_bytes());
        for text in texts.into_iter().chain(&self.groups) {
            put(&mut out, text);
        }
        out
    }

    /// The session in these bytes; `None` for anything else.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let mut session = Self { issued: number(&mut rest)?, expires: number(&mut rest)?, ..Self::default() };
        let texts: [&mut String; 6] = [
            &mut session.user,
            &mut session.email,
            &mut session.preferred,
            &mut session.access_token,
            &mut session.id_token,
            &mut session.refresh_token,
        ];
        for text in texts {
            *text = take(&mut rest)?;
        }
        while !rest.is_empty() {
            session.groups.push(take(&mut rest)?);
        }
        Some(session)
    }

    /// Keeps as many groups as there is room for, those of `first` before all others. Tells whether
    /// some were left out.
    pub fn trim_groups(&mut self, first: &[Box<str>]) -> bool {
        let size = |groups: &[String]| groups.iter().map(|g| g.len() + 1).sum::<usize>();
        if size(&self.groups) <= MAX_GROUPS {
            return false;
        }
        let (mut kept, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.groups)
            .into_iter()
            .partition(|group| first.iter().any(|wanted| **wanted == **group));
        kept.extend(others);
        let mut room = MAX_GROUPS;
        kept.retain(|group| match room.checked_sub(group.len() + 1) {
            Some(left) => {
                room = left;
                true
            }
            None => false,
        });
        self.groups = kept;
        true
    }
}

/// Appends a text with its length before it.
pub fn put(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// Takes a number off the front.
pub fn number(rest: &mut &[u8]) -> Option<u64> {
    let (number, tail) = rest.split_first_chunk::<8>()?;
    *rest = tail;
    Some(u64::from_be_bytes(*number))
}

/// Takes a text off the front.
pub fn take(rest: &mut &[u8]) -> Option<String> {
    let (len, tail) = rest.split_first_chunk::<4>()?;
    let (text, tail) = tail.split_at_checked(u32::from_be_bytes(*len) as usize)?;
    *rest = tail;
    std::str::from_utf8(text).ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alice() -> Session {
        Session {
            issued: 1_700_000_000,
            expires: 1_700_000_300,
            user: "5f0c-alice".into(),
            email: "alice@example.com".into(),
            preferred: "älice".into(),
            groups: vec!["team-a".into(), "ops, dev".into()],
            access_token: "eyJ.access".into(),
            id_token: "eyJ.id".into(),
            refresh_token: "r1".into(),
        }
    }

    #[test]
    fn a_session_survives_its_encoding() {
        for session in [alice(), Session::default()] {
            assert_eq!(Session::decode(&session.encode()), Some(session));
        }
    }

    #[test]
    fn cut_encodings_are_refused_and_none_panics() {
        let bytes = alice().encode();
        let whole: Vec<usize> =
            (0..=bytes.len()).filter(|end| Session::decode(&bytes[..*end]).is_some()).collect();
        // without the last groups it is a session of fewer groups: the seal is what tells
        assert_eq!(whole.len(), 3);
        assert_eq!(Session::decode(&[0xff; 64]), None);
    }

    #[test]
    fn debug_output_holds_no_tokens() {
        let text = format!("{:?}", alice());
        assert!(!text.contains("eyJ") && !text.contains("r1"), "{text}");
    }

    #[test]
    fn too_many_groups_are_cut_after_those_that_decide() {
        let mut session = alice();
        assert!(!session.trim_groups(&[]));
        session.groups = (0..2000).map(|i| format!("group-{i:04}")).collect();
        assert!(session.trim_groups(&["group-1999".into()]));
        assert_eq!(session.groups[0], "group-1999");
        assert_eq!(session.groups[1], "group-0000");
        assert!(session.groups.join(",").len() <= MAX_GROUPS);
        assert!(session.groups.len() > 700);
    }
}
