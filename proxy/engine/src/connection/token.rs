//! Signed tokens of requests: where they are, and what follows from them.

use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;

use sluice_core::auth::jwt::{KeySet, Supply, TokenFault, TokenHolder, Tokens};
use sluice_core::clock::now_ms;
use sluice_core::error::Reason;
use sluice_http::FieldEdits;

use super::account::Account;
use super::auth::Identity;
use super::request::cookies;
use super::{Connection, Next};
use crate::authority::{Authority, Fields};
use crate::body::Transfer;
use crate::response::Local;

/// What a request has in place of a token.
enum NoToken {
    /// Nothing.
    Absent,
    /// Something that the application might read in another way.
    Ambiguous,
}

impl Connection {
    /// Lets a request with a good token pass, or breaks with what follows after a refusal.
    pub(super) async fn ask_token(
        &mut self,
        tokens: &Tokens,
        authority: &dyn Authority,
        account: &mut Account,
        transfer: &mut Transfer,
    ) -> ControlFlow<Next> {
        let fault = match self.token(tokens.config().cookie.as_deref()) {
            Ok(token) => match self.holder_of(&token, tokens, authority, transfer).await {
                None => return Break(self.leave(account)),
                Some(Ok(holder)) => {
                    account.identity = Some(Box::new(identity(tokens, &holder)));
                    return Continue(());
                }
                Some(Err(None)) => {
                    let reason = Reason::AuthFailed;
                    let local = Local::reason(reason);
                    return Break(self.answer_locally(account, &local, Some(reason), transfer).await);
                }
                Some(Err(Some(fault))) => Some(fault),
            },
            Err(NoToken::Absent) => None,
            Err(NoToken::Ambiguous) => Some(TokenFault::Malformed),
        };
        let challenge = challenge(&tokens.config().realm, fault);
        let local = Local::reason(Reason::Unauthorized).with_fields([(&b"WWW-Authenticate"[..], challenge)]);
        Break(self.answer_locally(account, &local, Some(Reason::Unauthorized), transfer).await)
    }

    /// The holder of a token; `None` if the client has gone, and no fault if there are no keys to check it with.
    async fn holder_of(
        &mut self,
        token: &[u8],
        tokens: &Tokens,
        authority: &dyn Authority,
        transfer: &mut Transfer,
    ) -> Option<Result<Arc<TokenHolder>, Option<TokenFault>>> {
        let Some(mut keys) = self.unless_gone(keys_of(tokens, authority), transfer).await? else {
            return Some(Err(None));
        };
        if let Some(holder) = tokens.recent(token, &keys) {
            return Some(Ok(holder));
        }
        if tokens.wants_other_keys(token, &keys) && tokens.keys.may_have_changed(now_ms()) {
            let fetched = async {
                authority.fetch(tokens.config(), &tokens.keys);
                tokens.keys.ended().await;
            };
            self.unless_gone(fetched, transfer).await?;
        }
        // Others may have fetched them in between.
        if let Supply::Fresh(newer) | Supply::Old(newer) = supply(tokens) {
            keys = newer;
        }
        Some(tokens.check(token, &keys).map_err(Some))
    }

    /// The token of the request. Of several, the application might read another one.
    fn token(&self, from_cookie: Option<&str>) -> Result<Vec<u8>, NoToken> {
        let head = &self.session.head;
        let values = |name: &'static [u8]| {
            head.fields().filter(move |field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value)
        };
        let mut given = values(b"authorization");
        let (field, another) = (given.next(), given.next());
        let of_field = field.and_then(bearer);
        let looks_like_one = field
            .is_some_and(|field| field.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"bearer")));
        let name = from_cookie.unwrap_or_default().as_bytes();
        let mut given =
            values(b"cookie").flat_map(|field| cookies(field, name)).filter(|_| from_cookie.is_some());
        let (cookie, other_cookie) = (given.next(), given.next());
        match (of_field, cookie) {
            _ if another.is_some() || other_cookie.is_some() => Err(NoToken::Ambiguous),
            (Some(_), Some(_)) => Err(NoToken::Ambiguous),
            (Some(token), None) => Ok(token.to_vec()),
            (None, Some(_)) if looks_like_one => Err(NoToken::Ambiguous),
            (None, Some(token)) => Ok(token.to_vec()),
            (None, None) => Err(NoToken::Absent),
        }
    }
}

/// The token of an Authorization field (RFC 6750 section 2.1); `None` if it has another scheme.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| rest.trim_ascii())
}

/// The keys to check with: fetched, if there are none; and fetched for later, if they are old.
async fn keys_of(tokens: &Tokens, authority: &dyn Authority) -> Option<Arc<KeySet>> {
    match supply(tokens) {
        Supply::Fresh(keys) => Some(keys),
        Supply::Old(keys) => {
            authority.fetch(tokens.config(), &tokens.keys);
            Some(keys)
        }
        Supply::None => {
            authority.fetch(tokens.config(), &tokens.keys);
            tokens.keys.ended().await;
            match supply(tokens) {
                Supply::Fresh(keys) | Supply::Old(keys) => Some(keys),
                Supply::None | Supply::Unavailable => None,
            }
        }
        Supply::Unavailable => None,
    }
}

fn supply(tokens: &Tokens) -> Supply {
    tokens.keys.supply(tokens.config().refresh_ms, now_ms())
}

/// What the application gets to know, in place of what the client says.
fn identity(tokens: &Tokens, holder: &TokenHolder) -> Identity {
    let remove = tokens.config().claims_to_headers.keys().map(|name| name.clone().into_bytes()).collect();
    let edits = FieldEdits { remove, set: holder.fields.clone(), ..FieldEdits::default() };
    Identity { user: holder.user.clone(), edits, response: Fields::new() }
}

/// RFC 6750 section 3: no error for a request without a token.
fn challenge(realm: &str, fault: Option<TokenFault>) -> Vec<u8> {
    let error = match fault {
        Some(fault) => format!(", error=\"invalid_token\", error_description=\"{}\"", fault.text()),
        None => String::new(),
    };
    format!("Bearer realm=\"{realm}\"{error}").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bearer_tokens_are_found() {
        for (value, wanted) in [
            ("Bearer a.b.c", Some("a.b.c")),
            ("bEARER   a ", Some("a")),
            ("Bearer", None),
            ("Bearer ", Some("")),
            ("Basic YTpi", None),
            ("Bearera", None),
        ] {
            assert_eq!(bearer(value.as_bytes()), wanted.map(str::as_bytes), "{value}");
        }
    }

    #[test]
    fn challenges_name_the_fault() {
        let text = |fault| String::from_utf8(challenge("shop", fault)).expect("ASCII");
        assert_eq!(text(None), "Bearer realm=\"shop\"");
        let expired =
            "Bearer realm=\"shop\", error=\"invalid_token\", error_description=\"the token has expired\"";
        assert_eq!(text(Some(TokenFault::Expired)), expired);
    }
}
