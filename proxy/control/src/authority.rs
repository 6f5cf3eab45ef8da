//! Asks the servers that decide about requests (`auth.forward`) or publish keys (`auth.jwt`), on a thread of its own: a
//! slow one delays nothing else.

use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::RootCertStore;
use sluice_config::{ForwardAuth, HttpUrl, JwtAuth};
use sluice_core::auth::jwt::{KeySet, KeyStore};
use sluice_core::clock::now_ms;
use sluice_core::tls::system_roots;
use sluice_engine::authority::{AskError, Authority, Fields, Opinion};
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;
use tokio::time::timeout;

use crate::outbound::{client_config, with_causes};

/// How long an unused connection stays open: less than the servers that are asked most allow.
const IDLE: Duration = Duration::from_secs(4);
/// Unused connections to one server.
const IDLE_MAX: usize = 256;
/// How many failures are logged in a row before only their end is.
const LOGGED_MAX: usize = 5;
/// Fields of a response that concern only its connection, or that frame it (RFC 9110 7.6.1).
const OWN: [HeaderName; 10] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::DATE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

type HttpClient = Client<HttpsConnector<HttpConnector>, Empty<Bytes>>;

/// Maximum size of a set of keys, in bytes.
const KEYS_BYTES_MAX: usize = 1 << 20;

/// What to ask.
enum Question {
    Opinion(OpinionQuestion),
    Keys(KeyQuestion),
}

/// A question about a request, and where its answer goes.
struct OpinionQuestion {
    whom: Arc<ForwardAuth>,
    fields: Fields,
    answer: oneshot::Sender<Result<Opinion, AskError>>,
}

/// Keys to fetch. The attempt ends when this is dropped.
struct KeyQuestion {
    url: HttpUrl,
    limit: Duration,
    store: Arc<KeyStore>,
    keys: Option<KeySet>,
}

impl Drop for KeyQuestion {
    fn drop(&mut self) {
        self.store.end(self.keys.take(), now_ms());
    }
}

/// The thread that asks. It ends when this is dropped. Routes bound how many questions wait.
struct Asker(mpsc::UnboundedSender<Question>);

/// Starts the thread.
///
/// # Errors
/// When it cannot be started.
pub(crate) fn start() -> io::Result<Arc<dyn Authority>> {
    // Without CAs, as in the smallest images, servers by http can be asked, and no other.
    let roots = system_roots().unwrap_or_else(|error| {
        tracing::info!(%error, "auth: no server can be asked by https");
        Arc::new(RootCertStore::empty())
    });
    let tls = client_config(roots).map_err(io::Error::other)?;
    let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().build();
    let client = Client::builder(TokioExecutor::new())
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(IDLE_MAX)
        .pool_timer(TokioTimer::new())
        .build(connector);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (questions, receiver) = mpsc::unbounded_channel();
    let run = move || LocalSet::new().block_on(&runtime, answer_all(receiver, client));
    thread::Builder::new().name("authority".to_owned()).spawn(run)?;
    Ok(Arc::new(Asker(questions)))
}

impl Authority for Asker {
    fn ask(&self, whom: &Arc<ForwardAuth>, fields: Fields) -> oneshot::Receiver<Result<Opinion, AskError>> {
        let (answer, opinion) = oneshot::channel();
        // If the thread is gone, the sender is dropped with the question, which its receiver notices.
        let _ = self.0.send(Question::Opinion(OpinionQuestion { whom: Arc::clone(whom), fields, answer }));
        opinion
    }

    fn fetch(&self, whom: &JwtAuth, store: &Arc<KeyStore>) {
        if let Some(url) = whom.jwks_url.clone().filter(|_| store.begin(now_ms())) {
            let limit = Duration::from_millis(whom.timeout_ms);
            // As above: if nobody receives it, it is dropped.
            let _ =
                self.0.send(Question::Keys(KeyQuestion { url, limit, store: Arc::clone(store), keys: None }));
        }
    }
}

async fn answer_all(mut questions: mpsc::UnboundedReceiver<Question>, client: HttpClient) {
    let failures = Rc::new(Failures::default());
    while let Some(question) = questions.recv().await {
        let (client, failures) = (client.clone(), Rc::clone(&failures));
        tokio::task::spawn_local(async move {
            match question {
                Question::Opinion(asked) => answer(asked, &client, &failures).await,
                Question::Keys(mut asked) => {
                    let keys = keys(&client, &asked).await;
                    failures.note(&asked.url, keys.as_ref().err());
                    asked.keys = keys.ok();
                }
            }
        });
    }
}

async fn answer(mut asked: OpinionQuestion, client: &HttpClient, failures: &Failures) {
    let opinion = tokio::select! {
        biased;
        () = asked.answer.closed() => return,
        opinion = opinion(client, &asked.whom, std::mem::take(&mut asked.fields)) => opinion,
    };
    failures.note(&asked.whom.url, opinion.as_ref().err());
    let _ = asked.answer.send(opinion.map_err(|failure| failure.0));
}

async fn keys(client: &HttpClient, asked: &KeyQuestion) -> Result<KeySet, Failure> {
    let fetching = async {
        let response = send(client, &asked.url, Fields::new()).await?;
        if response.status() != StatusCode::OK {
            return Err(failed(format!("its response has the status {}", response.status().as_u16())));
        }
        let text = whole(response.into_body(), KEYS_BYTES_MAX, "").await?;
        let keys = KeySet::parse(&text, false).map_err(failed)?;
        if keys.is_empty() {
            tracing::warn!(url = %asked.url, "none of the issuer's keys can be used; nobody passes");
        }
        Ok(keys)
    };
    timeout(asked.limit, fetching).await.unwrap_or_else(|_| Err(late(asked.limit)))
}

/// The response to a GET with these fields.
async fn send(client: &HttpClient, url: &HttpUrl, fields: Fields) -> Result<Response<Incoming>, Failure> {
    let scheme = if url.tls { "https" } else { "http" };
    let uri = format!("{scheme}://{}{}", url.address, url.path).parse::<Uri>().map_err(failed)?;
    let mut request = Request::get(uri).body(Empty::new()).map_err(failed)?;
    let host = HeaderValue::from_str(&url.authority()).map_err(failed)?;
    request.headers_mut().insert(header::HOST, host);
    for (name, value) in fields {
        let (name, value) = (HeaderName::from_bytes(&name).map_err(failed)?, HeaderValue::from_bytes(&value));
        request.headers_mut().append(name, value.map_err(failed)?);
    }
    client.request(request).await.map_err(|error| failed(with_causes(&error)))
}

fn late(limit: Duration) -> Failure {
    Failure(AskError::Timeout, format!("no answer within {} ms", limit.as_millis()))
}

/// Why there is no opinion, and what the log says of it.
struct Failure(AskError, String);

fn failed(why: impl ToString) -> Failure {
    Failure(AskError::Failed, why.to_string())
}

async fn opinion(client: &HttpClient, whom: &ForwardAuth, fields: Fields) -> Result<Opinion, Failure> {
    let limit = Duration::from_millis(whom.timeout_ms);
    match timeout(limit, exchange(client, whom, fields)).await {
        Ok(opinion) => opinion,
        Err(_) => Err(late(limit)),
    }
}

async fn exchange(client: &HttpClient, whom: &ForwardAuth, fields: Fields) -> Result<Opinion, Failure> {
    let response = send(client, &whom.url, fields).await?;
    let (head, body) = response.into_parts();
    if head.status.is_success() {
        let request = copied(&head.headers, &whom.copy)?;
        return Ok(Opinion::Allowed { request, response: passed_back(&head.headers, &whom.copy_to_client) });
    }
    if head.status.is_informational() {
        return Err(failed(format!("its response has the status {}", head.status.as_u16())));
    }
    let named = named_by_connection(&head.headers);
    let passes = |name: &HeaderName| !OWN.contains(name) && !named.contains(&name.as_str().to_owned());
    let passed = head.headers.iter().filter(|(name, _)| passes(name));
    let fields =
        passed.map(|(name, value)| (name.as_str().as_bytes().to_vec(), value.as_bytes().to_vec())).collect();
    let body = whole(body, whom.body_bytes_max, " (body_max)").await?;
    Ok(Opinion::Refused { status: head.status.as_u16(), fields, body })
}

/// The fields to copy. One that comes several times is ambiguous, so nobody passes with it.
fn copied(headers: &HeaderMap, names: &[String]) -> Result<Fields, Failure> {
    let mut fields = Fields::new();
    for name in names {
        let mut values = headers.get_all(name).iter();
        match (values.next(), values.next()) {
            (Some(value), None) => fields.push((name.clone().into_bytes(), value.as_bytes().to_vec())),
            (None, _) => {}
            (Some(_), Some(_)) => return Err(failed(format!("its response has the field {name} twice"))),
        }
    }
    Ok(fields)
}

/// The fields for the client, with all their values.
fn passed_back(headers: &HeaderMap, names: &[String]) -> Fields {
    let values = |name: &String| {
        headers.get_all(name).iter().map(|value| value.as_bytes().to_vec()).collect::<Vec<_>>()
    };
    let fields = names
        .iter()
        .flat_map(|name| values(name).into_iter().map(|value| (name.clone().into_bytes(), value)));
    fields.collect()
}

fn named_by_connection(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(|name| name.trim().to_ascii_lowercase()).collect()
}

async fn whole(body: Incoming, most: usize, key: &str) -> Result<Vec<u8>, Failure> {
    match Limited::new(body, most).collect().await {
        Ok(body) => Ok(body.to_bytes().to_vec()),
        Err(error) if error.is::<LengthLimitError>() => {
            Err(failed(format!("its response has more than {most} bytes{key}")))
        }
        Err(error) => Err(failed(error)),
    }
}

/// Failures in a row, by URL, so that an outage does not fill the log.
#[derive(Default)]
struct Failures(std::cell::RefCell<HashMap<String, usize>>);

impl Failures {
    fn note(&self, url: &HttpUrl, failure: Option<&Failure>) {
        let url = url.to_string();
        let mut rows = self.0.borrow_mut();
        match failure {
            None => {
                if rows.remove(&url).is_some() {
                    tracing::info!(url, "the authority answers again");
                }
            }
            Some(Failure(_, why)) => {
                let row = rows.entry(url.clone()).or_default();
                *row += 1;
                if *row <= LOGGED_MAX {
                    tracing::warn!(url, "the authority gave no answer that can be used: {why}");
                }
            }
        }
    }
}
