//! Loads an HTTP/3 server: requests for one URL on many streams of some connections, with the `h3` crate over quinn.
//!
//! h2load and wrk of the distributions speak no HTTP/3, and oha waits half a minute for servers that do not close the
//! connection of a client that leaves. The result is JSON: requests, bytes, and percentiles of the time for a response.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::{Buf, Bytes};
use clap::Parser;
use h3::client::SendRequest;
use h3_quinn::OpenStreams;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Endpoint};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};

type Sender = SendRequest<OpenStreams, Bytes>;

/// Load an HTTP/3 server.
#[derive(Parser)]
struct Options {
    /// The server.
    address: SocketAddr,
    /// Path of the request.
    path: String,
    /// Connections.
    #[arg(long, default_value_t = 10)]
    connections: usize,
    /// Requests under way on each; without any, the connections are only held.
    #[arg(long, default_value_t = 5)]
    streams: usize,
    /// How long.
    #[arg(long, default_value_t = 2)]
    seconds: u64,
}

/// What one stream after the other brought.
#[derive(Default)]
struct Tally {
    times: Vec<Duration>,
    bytes: u64,
}

fn main() -> Result<()> {
    let options = Options::parse();
    // One thread: the server has the other core.
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(run(options))
}

async fn run(options: Options) -> Result<()> {
    let endpoint = Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    let mut senders = Vec::new();
    for _ in 0..options.connections {
        let connection = endpoint.connect_with(client()?, options.address, "localhost")?.await?;
        let connection = h3_quinn::Connection::new(connection);
        let (mut driver, sender) = h3::client::builder().send_grease(false).build(connection).await?;
        tokio::spawn(async move { std::future::poll_fn(|cx| driver.poll_close(cx)).await });
        senders.push(sender);
    }
    let (begun, patience) = (Instant::now(), Duration::from_secs(options.seconds));
    let uri = format!("https://localhost:{}{}", options.address.port(), options.path);
    if options.streams == 0 {
        tokio::time::sleep(patience).await;
        return Ok(());
    }
    let slots = senders.iter().flat_map(|sender| std::iter::repeat_n(sender, options.streams));
    let slots: Vec<_> =
        slots.map(|sender| tokio::spawn(ask_again(sender.clone(), uri.clone(), begun + patience))).collect();
    let mut all = Tally::default();
    for slot in slots {
        let tally = slot.await??;
        all.times.extend(tally.times);
        all.bytes += tally.bytes;
    }
    let elapsed = begun.elapsed().as_secs_f64();
    all.times.sort_unstable();
    ensure!(!all.times.is_empty(), "no response");
    let percentile = |share: f64| {
        let index = ((all.times.len() - 1) as f64 * share) as usize;
        all.times[index].as_secs_f64() * 1e6
    };
    let said = serde_json::json!({
        "requests": all.times.len(),
        "requests_per_s": all.times.len() as f64 / elapsed,
        "bytes": all.bytes,
        "p50_us": percentile(0.5),
        "p99_us": percentile(0.99),
        "p999_us": percentile(0.999),
    });
    println!("{said}");
    Ok(())
}

async fn ask_again(mut sender: Sender, uri: String, until: Instant) -> Result<Tally> {
    let mut tally = Tally::default();
    while Instant::now() < until {
        let begun = Instant::now();
        let request = http::Request::builder().uri(&uri).body(())?;
        let mut stream = sender.send_request(request).await?;
        stream.finish().await?;
        let response = stream.recv_response().await?;
        ensure!(response.status() == 200, "status {}", response.status());
        while let Some(mut data) = stream.recv_data().await? {
            tally.bytes += data.remaining() as u64;
            data.advance(data.remaining());
        }
        tally.times.push(begun.elapsed());
    }
    Ok(tally)
}

fn client() -> Result<ClientConfig> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer(provider)))
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    Ok(ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).context("no suite for QUIC")?)))
}

/// Takes any certificate: the servers are the benchmark's own.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
