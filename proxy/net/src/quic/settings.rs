//! The parameters of connections.

use std::sync::Arc;
use std::time::Duration;

use quinn_proto::crypto::rustls::QuicServerConfig;
use quinn_proto::{IdleTimeout, QlogStream, ServerConfig, TransportConfig, VarInt};
use rustls::quic::Suite;
use sluice_config::Limits;
use sluice_core::tls::crypto;

use super::path::WitnessConfig;
use super::process::QuicProcess;

/// The most unidirectional streams of a client at a time: one for control, two of QPACK, and some to be ignored.
const UNI_STREAMS_MAX: u32 = 8;
/// What may arrive of a handshake before it is read.
const CRYPTO_BYTES_MAX: usize = 16 * 1024;

/// What may arrive before the handshake is complete, of clients that may send early data: anybody may be one.
const EARLY_WINDOW_BYTES: u32 = 64 * 1024;

/// The parameters that these limits describe.
fn transport(limits: &Limits, has_early_data: bool) -> TransportConfig {
    let http3 = &limits.http3;
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(http3.streams_max.into())
        .max_concurrent_uni_streams(UNI_STREAMS_MAX.into())
        .stream_receive_window(http3.stream_window_bytes.into())
        .receive_window(first_window(limits, has_early_data).into())
        .send_window(http3.send_window_bytes)
        .crypto_buffer_size(CRYPTO_BYTES_MAX)
        .max_idle_timeout(Some(idle_timeout(limits)))
        .congestion_controller_factory(Arc::new(WitnessConfig))
        .datagram_receive_buffer_size(None);
    transport
}

/// What all streams of a connection may have in transit at first. With early data, it grows when the handshake is complete.
pub fn first_window(limits: &Limits, has_early_data: bool) -> u32 {
    let bytes = limits.http3.connection_window_bytes;
    if has_early_data { bytes.min(EARLY_WINDOW_BYTES) } else { bytes }
}

/// How long nothing may arrive. A connection without requests ends before by itself, and says so.
fn idle_timeout(limits: &Limits) -> IdleTimeout {
    let patience = Duration::from_millis(limits.keep_alive_timeout_ms).max(Duration::from_secs(10));
    let longest = IdleTimeout::from(VarInt::from_u32(u32::MAX));
    IdleTimeout::try_from(patience + Duration::from_secs(5)).unwrap_or(longest)
}

/// The configuration for connections of a listener with these limits. `None` if the crypto library has not what the first
/// packets are protected with, which both have.
pub fn server_config(tls: &Arc<rustls::ServerConfig>, limits: &Limits) -> Option<ServerConfig> {
    let has_early_data = tls.max_early_data_size > 0;
    let crypto = QuicServerConfig::with_initial(Arc::clone(tls), initial_suite()?).ok()?;
    let tokens = QuicProcess::this().tokens();
    let mut config = ServerConfig::new(Arc::new(crypto), tokens.key()?);
    config.validation_token_config(tokens.config());
    config.transport_config(Arc::new(transport(limits, has_early_data)));
    // Each is accepted or refused at once.
    config.max_incoming(1024).incoming_buffer_size(16 << 10).incoming_buffer_size_total(1 << 20);
    Some(config)
}

/// The same configuration for one connection that is recorded.
pub fn recorded(
    config: &ServerConfig,
    (limits, has_early_data): (&Limits, bool),
    stream: QlogStream,
) -> ServerConfig {
    let (mut config, mut transport) = (config.clone(), transport(limits, has_early_data));
    transport.qlog_stream(Some(stream));
    config.transport_config(Arc::new(transport));
    config
}

/// The suite of Initial packets (RFC 9001 section 5), whatever the listener allows after them.
fn initial_suite() -> Option<Suite> {
    let suite = crypto::cipher_suite::TLS13_AES_128_GCM_SHA256;
    suite.tls13()?.quic_suite()
}
