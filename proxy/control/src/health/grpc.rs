//! A check by gRPC's health service (grpc.health.v1): one call over a connection of its own.

use std::future::poll_fn;
use std::pin::pin;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::{Reason, client};
use http::{Request, Version, header};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};

use super::check::{CheckError, Success};

/// Maximum bytes of a response: it has one small number.
const ANSWER_BYTES_MAX: usize = 1024;
/// In front of each message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;
/// HealthCheckResponse.ServingStatus.SERVING.
const SERVING: i32 = 1;

/// HealthCheckRequest.
#[derive(Clone, PartialEq, Message)]
struct Question {
    #[prost(string, tag = "1")]
    service: String,
}

/// HealthCheckResponse.
#[derive(Clone, PartialEq, Message)]
struct Answer {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// Asks whether a service serves; an empty name is the whole server.
pub(super) async fn ask(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    host: &str,
    service: &str,
    is_tls: bool,
) -> Result<Success, CheckError> {
    let (sender, connection) = client::handshake(stream).await.map_err(failed)?;
    let mut call = pin!(call(sender, host, service, is_tls));
    tokio::select! {
        biased;
        answer = &mut call => answer,
        // What has arrived can still be read; the call reports every error that matters.
        _ = connection => call.await,
    }
}

async fn call(
    sender: client::SendRequest<Bytes>,
    host: &str,
    service: &str,
    is_tls: bool,
) -> Result<Success, CheckError> {
    let scheme = if is_tls { "https" } else { "http" };
    let request = Request::post(format!("{scheme}://{host}/grpc.health.v1.Health/Check"))
        .version(Version::HTTP_2)
        .header(header::CONTENT_TYPE, "application/grpc")
        .header(header::TE, "trailers")
        .header(header::USER_AGENT, concat!("sluice/", env!("CARGO_PKG_VERSION"), " health-check"))
        .body(())
        .map_err(|error| CheckError::Grpc(error.to_string()))?;
    let mut sender = sender.ready().await.map_err(failed)?;
    let (response, mut body) = sender.send_request(request, false).map_err(failed)?;
    body.send_data(framed(&Question { service: service.to_owned() }), true).map_err(failed)?;
    let response = response.await.map_err(failed)?;
    if !response.status().is_success() {
        return Err(CheckError::Status(response.status().as_u16()));
    }
    // A call that fails at once has its trailers as the head.
    status_of(response.headers())?;
    let mut stream = response.into_body();
    let mut received = BytesMut::new();
    while let Some(part) = stream.data().await {
        let part = part.map_err(failed)?;
        let _ = stream.flow_control().release_capacity(part.len());
        if received.len() + part.len() > ANSWER_BYTES_MAX {
            return Err(CheckError::Grpc(format!("the response is larger than {ANSWER_BYTES_MAX} bytes")));
        }
        received.extend_from_slice(&part);
    }
    if let Some(trailers) = poll_fn(|cx| stream.poll_trailers(cx)).await.map_err(failed)? {
        status_of(&trailers)?;
    }
    match unframed(received.freeze())?.status {
        SERVING => Ok(Success::Serving),
        0 => Err(CheckError::Grpc("the service's health is unknown".to_owned())),
        _ => Err(CheckError::Grpc("the service is not serving".to_owned())),
    }
}

fn framed(message: &impl Message) -> Bytes {
    let mut bytes = BytesMut::with_capacity(PREFIX_BYTES + message.encoded_len());
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(message.encoded_len()).unwrap_or(u32::MAX));
    // A buffer that grows has room.
    let _ = message.encode(&mut bytes);
    bytes.freeze()
}

fn unframed(mut bytes: Bytes) -> Result<Answer, CheckError> {
    let malformed = || CheckError::Grpc("the response is not a message of the health service".to_owned());
    if bytes.len() < PREFIX_BYTES || bytes.get_u8() != 0 || bytes.get_u32() as usize != bytes.len() {
        return Err(malformed());
    }
    Answer::decode(bytes).map_err(|_| malformed())
}

/// Refuses a call that failed.
fn status_of(fields: &http::HeaderMap) -> Result<(), CheckError> {
    let text = |name| fields.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    match text("grpc-status") {
        "" | "0" => Ok(()),
        // NOT_FOUND and UNIMPLEMENTED are what a wrong name, or a server without the service, come to.
        "5" => Err(CheckError::Grpc("the server has no such service (NOT_FOUND)".to_owned())),
        "12" => Err(CheckError::Grpc("the server has no health service (UNIMPLEMENTED)".to_owned())),
        status => {
            let message: String =
                text("grpc-message").chars().filter(|c| !c.is_control()).take(200).collect();
            Err(CheckError::Grpc(format!("grpc-status {status} {message}").trim_end().to_owned()))
        }
    }
}

fn failed(error: h2::Error) -> CheckError {
    match error.reason() {
        Some(Reason::HTTP_1_1_REQUIRED) => CheckError::Grpc("the endpoint speaks no HTTP/2".to_owned()),
        _ => CheckError::Grpc(error.to_string()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use http::{HeaderMap, Response};

    use super::*;

    /// What a server says: fields of its head, its message, and its trailers.
    type Said = (
        &'static [(&'static str, &'static str)],
        Option<&'static [u8]>,
        &'static [(&'static str, &'static str)],
    );

    fn ask_in_memory((head, message, trailers): Said) -> Result<Success, CheckError> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (near, far) = tokio::io::duplex(4096);
            let serving = tokio::spawn(async move {
                let mut connection = h2::server::handshake(far).await.unwrap();
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
                    let mut response = Response::builder();
                    for (name, value) in head {
                        response = response.header(*name, *value);
                    }
                    let mut body =
                        respond.send_response(response.body(()).unwrap(), message.is_none()).unwrap();
                    if let Some(message) = message {
                        body.send_data(Bytes::from_static(message), false).unwrap();
                        let mut fields = HeaderMap::new();
                        trailers.iter().for_each(|(name, value)| {
                            fields.insert(*name, value.parse().unwrap());
                        });
                        body.send_trailers(fields).unwrap();
                    }
                }
            });
            let result = ask(near, "h:1", "users", false).await;
            serving.abort();
            result
        })
    }

    #[test]
    fn only_a_service_that_serves_passes() {
        let cases: [(Said, Result<(), &str>); 9] = [
            ((&[], Some(&[0, 0, 0, 0, 2, 8, 1]), &[("grpc-status", "0")]), Ok(())),
            ((&[], Some(&[0, 0, 0, 0, 2, 8, 2]), &[("grpc-status", "0")]), Err("is not serving")),
            ((&[], Some(&[0, 0, 0, 0, 0]), &[("grpc-status", "0")]), Err("health is unknown")),
            ((&[], Some(&[0, 0, 0, 0, 2, 8, 1]), &[("grpc-status", "14")]), Err("grpc-status 14")),
            ((&[("grpc-status", "5")], None, &[]), Err("no such service")),
            ((&[("grpc-status", "12")], None, &[]), Err("no health service")),
            ((&[], Some(&[1, 0, 0, 0, 2, 8, 1]), &[]), Err("not a message")),
            ((&[], Some(&[0, 0, 0, 1, 2, 8, 1]), &[]), Err("not a message")),
            ((&[], Some(&[0; 2000]), &[]), Err("larger than")),
        ];
        for (said, wanted) in cases {
            match (ask_in_memory(said), wanted) {
                (Ok(_), Ok(())) => {}
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{said:?}: {error}"),
                (got, _) => panic!("{said:?}: {got:?}"),
            }
        }
    }

    #[test]
    fn a_server_without_http2_is_named() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let result = runtime.block_on(async {
            let (near, mut far) = tokio::io::duplex(4096);
            tokio::spawn(async move {
                let _ =
                    tokio::io::AsyncWriteExt::write_all(&mut far, b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
            });
            ask(near, "h:1", "", false).await
        });
        assert!(matches!(result, Err(CheckError::Grpc(_) | CheckError::Closed)), "{result:?}");
    }
}
