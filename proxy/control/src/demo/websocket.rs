//! The demo origin's WebSocket: sends every message back (RFC 6455).

use futures_util::{SinkExt, StreamExt};
use hyper::header::{CONNECTION, HeaderMap, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE};
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use super::body::DemoBody;
use super::{plain, text};

/// Maximum bytes of an echoed message; a larger one closes the connection.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Accepts a handshake (RFC 6455 section 4.2) and echoes on the connection from then on.
pub(super) fn upgrade<B>(request: &mut Request<B>) -> Response<DemoBody> {
    let key = request.headers().get(SEC_WEBSOCKET_KEY).map(|key| derive_accept_key(key.as_bytes()));
    let Some(accept) = key.filter(|_| is_handshake(request)) else {
        let mut response =
            text(StatusCode::UPGRADE_REQUIRED, "this is a WebSocket; request it with Upgrade: websocket\n");
        response.headers_mut().insert(UPGRADE, HeaderValue::from_static("websocket"));
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
        return response;
    };
    tokio::spawn(echo(hyper::upgrade::on(request)));
    let mut response = plain(StatusCode::SWITCHING_PROTOCOLS, DemoBody::Whole(Default::default()));
    let headers = response.headers_mut();
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers
        .insert(SEC_WEBSOCKET_ACCEPT, HeaderValue::try_from(accept).expect("base64 is a valid field value"));
    response
}

fn is_handshake<B>(request: &Request<B>) -> bool {
    let headers = request.headers();
    request.method() == Method::GET
        && has_token(headers, "upgrade", "websocket")
        && has_token(headers, "connection", "upgrade")
        && headers.get("sec-websocket-version").is_some_and(|version| version == "13")
}

/// Whether a list-valued field contains a member, ignoring case.
fn has_token(headers: &HeaderMap, name: &str, token: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|member| member.trim().eq_ignore_ascii_case(token))
}

async fn echo(upgraded: OnUpgrade) {
    let Ok(upgraded) = upgraded.await else { return };
    let config = WebSocketConfig::default()
        .max_message_size(Some(MESSAGE_BYTES_MAX))
        .max_frame_size(Some(MESSAGE_BYTES_MAX))
        .max_write_buffer_size(4 * MESSAGE_BYTES_MAX);
    let mut socket =
        WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, Some(config)).await;
    // The library responds to pings and the closing handshake while messages are read.
    while let Some(Ok(message)) = socket.next().await {
        if (message.is_text() || message.is_binary()) && socket.send(message).await.is_err() {
            return;
        }
    }
}
