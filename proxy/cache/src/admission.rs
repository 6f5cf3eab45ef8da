//! What may be stored (RFC 9111 section 3), and what a 304 changes (section 3.2).

use std::sync::Arc;

use bytes::Bytes;
use sluice_config::Cache;
use sluice_http::{Method, RequestHead, ResponseHead, end_to_end, http_date};

use super::asked::RequestFacts;
use super::directives::{Directives, Wishes};
use super::freshness::{ExchangeTimes, Times, is_by_default};
use super::room::Room;
use super::stored::{Rules, StoredResponse, is_for_all};
use super::vary::Vary;

/// Statuses that are about one request, which another client could have sent to have them stored; RFC 6585 forbids it for
/// 428, 429, 431 and 511.
const NEVER: [u16; 9] = [400, 408, 413, 417, 421, 428, 429, 431, 511];
/// Fields that are about one answer, not about the content.
const OF_ONE_ANSWER: [&[u8]; 4] = [b"age", b"content-length", b"proxy-authentication-info", b"trailer"];
/// Fields that give a client a cookie.
const COOKIES: [&[u8]; 2] = [b"set-cookie", b"set-cookie2"];
/// Fields that name the request whose response it is.
const OF_REQUEST: [&[u8]; 3] = [b"server-timing", b"traceresponse", b"x-request-id"];
/// Fields of the stored body, which a 304 does not change.
const OF_BODY: [&[u8]; 8] = [
    b"content-encoding",
    b"content-length",
    b"content-md5",
    b"content-digest",
    b"repr-digest",
    b"digest",
    b"content-range",
    b"etag",
];

type OwnFields = Vec<(Vec<u8>, Vec<u8>)>;

/// A response whose body is stored once it has arrived.
#[derive(Debug)]
pub struct Admission {
    status: u16,
    fields: OwnFields,
    /// Fields for the client whose request it is, and for nobody else.
    withheld: OwnFields,
    vary: Vary,
    times: Times,
    rules: Rules,
}

impl Admission {
    /// What of a response is stored.
    ///
    /// # Errors
    /// Why the response to this request must not be stored, or is of no use to others.
    pub fn of(
        asked: &RequestFacts<'_>,
        head: &ResponseHead,
        when: ExchangeTimes,
        config: &Cache,
    ) -> Result<Self, Refusal> {
        let directives = Directives::of_response(head);
        let request = asked.caller.request;
        let is_wanted = !config.obey_requests || !Wishes::of_request(request).no_store;
        let status = head.status();
        let is_final = status >= 200 && !matches!(status, 206 | 304 | 416) && !NEVER.contains(&status);
        let is_forbidden = is_forbidden(&directives, status);
        let times = Times::of(head, &directives, when, config.heuristic_max_ms);
        let is_allowed = times.is_explicit || directives.public || is_by_default(status);
        // Events are sent as they happen, and trailers are not kept.
        let is_stream = head.is_event_stream() || head.get(b"trailer").is_some();
        let is_for_one = sets_cookie(head, &directives) && !config.store_set_cookie;
        let rules = Rules::of(&directives, times.is_explicit);
        let is_useful = times.stale_ms(when.received_ms).is_none()
            || has_validator(head)
            || rules.while_revalidate_ms.is_some()
            || rules.if_error_ms.is_some();
        // First what holds for everybody: then nobody waits for it.
        if !is_final || is_forbidden || !is_allowed || is_stream || is_for_one || !is_useful {
            return Err(Refusal::OfResponse);
        }
        let vary = Vary::of(asked, head).ok_or(Refusal::OfResponse)?;
        let is_known = asked.caller.has_credentials && !is_for_all(&directives);
        // It may be a page of one user, of an application that knows nothing of caches.
        let is_of_user = request.get(b"cookie").is_some() && !rules.is_for_cookies;
        let is_get = request.method() == Method::Get;
        if !is_get || !is_wanted || is_known || is_of_user || echoes_origin(request, head) {
            return Err(Refusal::OfCaller);
        }
        let (mut fields, withheld) = split(head, &directives, config);
        add_date(&mut fields, when);
        Ok(Self { status, fields, withheld, vary, times, rules })
    }

    /// The stored response, with its whole body.
    pub fn complete(self, body: Bytes, mut room: Room) -> Option<NewResponse> {
        room.fit(body.len() as u64);
        let fields = self.fields.iter().map(|(name, value)| (&name[..], &value[..]));
        let stored =
            StoredResponse::new(self.status, fields, body.into(), (self.vary, self.times, self.rules))?;
        Some(NewResponse { stored: Arc::new(stored.within(Some(Arc::new(room)))), withheld: self.withheld })
    }
}

/// Why a response is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Because of the request: the response to another one may be.
    OfCaller,
    /// Because of the response.
    OfResponse,
}

/// A response that is stored, and what only its client gets.
#[derive(Debug)]
pub struct NewResponse {
    /// For everybody.
    pub stored: Arc<StoredResponse>,
    withheld: OwnFields,
}

impl NewResponse {
    /// The response for the client whose request it is.
    pub fn for_client(&self) -> Arc<StoredResponse> {
        if self.withheld.is_empty() {
            return Arc::clone(&self.stored);
        }
        let stored = &self.stored;
        let of_all =
            stored.head().fields().filter(|field| !field.name.eq_ignore_ascii_case(b"content-length"));
        let own = self.withheld.iter().map(|(name, value)| (&name[..], &value[..]));
        let fields = of_all.map(|field| (field.name, field.value)).chain(own);
        let facts = (stored.vary.clone(), stored.times, stored.rules);
        let own = StoredResponse::new(stored.head().status(), fields, stored.body().clone(), facts);
        own.map_or_else(|| Arc::clone(stored), |own| Arc::new(own.within(stored.room())))
    }
}

impl StoredResponse {
    /// The same response after a 304 with these fields, and whether it may be kept.
    pub fn refreshed(
        &self,
        asked: &RequestFacts<'_>,
        head: &ResponseHead,
        when: ExchangeTimes,
        config: &Cache,
    ) -> Option<(NewResponse, bool)> {
        let is_new = |name: &[u8]| (!is_of_body(name) && head.get(name).is_some()) || is_same(name, b"date");
        let old = self
            .head()
            .fields()
            .filter(|field| !is_new(field.name) && !is_same(field.name, b"content-length"));
        let new = end_to_end(head).filter(|field| !is_of_body(field.name) && !is_of_one_answer(field.name));
        let mut fields: Vec<_> =
            old.chain(new).map(|field| (field.name.to_vec(), field.value.to_vec())).collect();
        add_date(&mut fields, when);
        // What is said follows from all fields together.
        let whole = self.with_fields(&fields, (self.vary.clone(), self.times, self.rules))?;
        let directives = Directives::of_response(whole.head());
        let vary = Vary::of(asked, whole.head());
        let is_kept = vary.is_some()
            && !is_forbidden(&directives, self.head().status())
            && (!asked.caller.has_credentials || is_for_all(&directives));
        // The Age of the old answer is not stored; that of the 304 counts.
        let of_answer = Times::of(head, &directives, when, config.heuristic_max_ms);
        let times = Times::of(whole.head(), &directives, when, config.heuristic_max_ms);
        let times = Times { initial_ms: of_answer.initial_ms, ..times };
        let (fields, withheld) = fields
            .into_iter()
            .partition(|(name, _): &(Vec<u8>, Vec<u8>)| is_stored(name, &directives, config));
        let facts =
            (vary.unwrap_or_else(|| self.vary.clone()), times, Rules::of(&directives, times.is_explicit));
        let stored = self.with_fields(&fields, facts)?;
        Some((NewResponse { stored: Arc::new(stored), withheld }, is_kept))
    }

    fn with_fields(&self, fields: &OwnFields, facts: (Vary, Times, Rules)) -> Option<Self> {
        let fields = fields.iter().map(|(name, value)| (&name[..], &value[..]));
        let new = Self::new(self.head().status(), fields, self.body().clone(), facts)?;
        Some(new.within(self.room()))
    }
}

/// Whether nobody may store it. RFC 9111 section 5.2.2.3: a cache that knows the status need not heed a no-store beside
/// must-understand.
fn is_forbidden(directives: &Directives, status: u16) -> bool {
    directives.private
        || (directives.no_store && !directives.must_understand)
        || (directives.must_understand && !is_known(status))
}

/// RFC 9110 section 6.6.1: a response without a Date gets the time at which it arrived.
fn add_date(fields: &mut OwnFields, when: ExchangeTimes) {
    if !fields.iter().any(|(name, _)| is_same(name, b"date")) {
        fields.push((b"Date".to_vec(), http_date(when.received_ms / 1000).into_bytes()));
    }
}

fn is_same(name: &[u8], other: &[u8]) -> bool {
    name.eq_ignore_ascii_case(other)
}

/// The fields that are stored, and those for the client alone.
fn split(head: &ResponseHead, directives: &Directives, config: &Cache) -> (OwnFields, OwnFields) {
    let fields = end_to_end(head).filter(|field| !is_of_one_answer(field.name));
    let fields = fields.map(|field| (field.name.to_vec(), field.value.to_vec()));
    fields.partition(|(name, _)| is_stored(name, directives, config))
}

fn is_of_one_answer(name: &[u8]) -> bool {
    OF_ONE_ANSWER.iter().any(|other| name.eq_ignore_ascii_case(other))
}

fn is_stored(name: &[u8], directives: &Directives, config: &Cache) -> bool {
    let name = name.to_ascii_lowercase();
    // The 304 that one client's request has brought may give that client a cookie.
    let is_cookie = COOKIES.contains(&&name[..]) && !config.store_set_cookie;
    !is_cookie && !OF_REQUEST.contains(&&name[..]) && !directives.without.contains(&name)
}

fn is_of_body(name: &[u8]) -> bool {
    OF_BODY.iter().any(|other| name.eq_ignore_ascii_case(other))
}

/// Whether the rules of a status are known: those of RFC 9110, and none beyond.
fn is_known(status: u16) -> bool {
    matches!(status, 200..=206 | 300..=305 | 307 | 308 | 400..=417 | 421 | 422 | 426 | 500..=505)
}

/// Whether it gives its client a cookie, which others would get from the cache.
fn sets_cookie(head: &ResponseHead, directives: &Directives) -> bool {
    let is_taken_out = |name: &[u8]| directives.without.iter().any(|other| other == name);
    COOKIES.iter().any(|name| head.get(name).is_some() && !is_taken_out(name))
}

/// Whether it lets the scripts of one site read it, although it does not say that others get another response.
fn echoes_origin(request: &RequestHead, head: &ResponseHead) -> bool {
    let allowed = head.get(b"access-control-allow-origin");
    allowed.is_some() && allowed == request.get(b"origin") && !names_in_vary(head, b"origin")
}

fn names_in_vary(head: &ResponseHead, name: &[u8]) -> bool {
    let lines = head.fields().filter(|field| field.name.eq_ignore_ascii_case(b"vary"));
    let mut names = lines.flat_map(|field| field.value.split(|byte| *byte == b','));
    names.any(|other| other.trim_ascii().eq_ignore_ascii_case(name))
}

fn has_validator(head: &ResponseHead) -> bool {
    head.get(b"etag").is_some() || head.get(b"last-modified").is_some()
}
