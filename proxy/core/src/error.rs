//! What can go wrong on the wire: whose fault it is, its one-word name, and whether trying again is safe.

/// The side an error came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The client.
    Downstream,
    /// The origin.
    Upstream,
    /// Sluice or its configuration.
    Internal,
}

impl Side {
    /// The word that metrics and the status page show.
    pub fn word(self) -> &'static str {
        match self {
            Side::Downstream => "downstream",
            Side::Upstream => "upstream",
            Side::Internal => "internal",
        }
    }
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $word:literal, $side:ident, $status:literal;)*) => {
        /// Why an exchange did not end with the origin's own answer; the access log's `reason`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason { $($(#[$doc])* $name,)* }

        impl Reason {
            /// Every reason, in declaration order; the index of a metric series.
            pub const ALL: &[Reason] = &[$(Reason::$name,)*];

            /// The one word that logs and metrics show.
            pub fn word(self) -> &'static str {
                match self { $(Reason::$name => $word,)* }
            }

            /// Whose fault it is.
            pub fn side(self) -> Side {
                match self { $(Reason::$name => Side::$side,)* }
            }

            /// The status the client is answered with; 499 is logged only.
            pub fn status(self) -> u16 {
                match self { $(Reason::$name => $status,)* }
            }
        }
    };
}

reasons! {
    /// Malformed request head.
    BadRequest = "bad_request", Downstream, 400;
    /// Missing, repeated or invalid Host.
    BadHost = "bad_host", Downstream, 400;
    /// Contradictory or invalid framing fields.
    BadFraming = "bad_framing", Downstream, 400;
    /// Malformed request body (chunk framing, trailers).
    BadBody = "bad_body", Downstream, 400;
    /// The client ended before its body did.
    BodyIncomplete = "body_incomplete", Downstream, 400;
    /// No or a malformed PROXY protocol header; the connection is closed without an answer.
    BadProxyProtocol = "bad_proxy_protocol", Downstream, 400;
    /// What came on a listener for TLS is none; closed without an answer.
    NotTls = "not_tls", Downstream, 400;
    /// A malformed ClientHello, or one that could be read in two ways.
    BadClientHello = "bad_client_hello", Downstream, 400;
    /// The ClientHello is over the limit.
    ClientHelloTooLarge = "client_hello_too_large", Downstream, 400;
    /// The ClientHello did not arrive in time.
    ClientHelloTimeout = "client_hello_timeout", Downstream, 408;
    /// The client names no server, or one that the listener does not know.
    UnknownServerName = "unknown_server_name", Downstream, 421;
    /// The request is for another host than the TLS handshake was, where clients show certificates (RFC 9110 15.5.20).
    MisdirectedRequest = "misdirected_request", Downstream, 421;
    /// No route matches.
    NoRoute = "no_route", Downstream, 404;
    /// A route matches but for the method.
    MethodNotAllowed = "method_not_allowed", Downstream, 405;
    /// The head did not arrive in time.
    HeaderTimeout = "header_timeout", Downstream, 408;
    /// The request body stalled.
    BodyTimeout = "body_timeout", Downstream, 408;
    /// The body is over the limit.
    BodyTooLarge = "body_too_large", Downstream, 413;
    /// The target is over the limit.
    TargetTooLong = "target_too_long", Downstream, 414;
    /// An expectation that cannot be met.
    ExpectationFailed = "expectation_failed", Downstream, 417;
    /// The head is over a limit.
    HeadTooLarge = "head_too_large", Downstream, 431;
    /// The client went away; logged, never sent.
    ClientGone = "client_gone", Downstream, 499;
    /// A panic in our own code.
    Panic = "panic", Internal, 500;
    /// Descriptors or another local resource ran out.
    LocalResource = "local_resource", Internal, 500;
    /// A method we do not serve (CONNECT).
    NotImplemented = "not_implemented", Downstream, 501;
    /// The endpoint refused the connection.
    ConnectRefused = "connect_refused", Upstream, 502;
    /// Connecting failed in another way.
    ConnectFailed = "connect_failed", Upstream, 502;
    /// Connecting took too long.
    ConnectTimeout = "connect_timeout", Upstream, 504;
    /// The endpoint's certificate has expired.
    TlsCertificateExpired = "tls_certificate_expired", Upstream, 502;
    /// The endpoint's certificate leads to no authority that is believed.
    TlsUnknownIssuer = "tls_unknown_issuer", Upstream, 502;
    /// The endpoint's certificate is for another name.
    TlsNameMismatch = "tls_name_mismatch", Upstream, 502;
    /// The endpoint's certificate is none of those that are pinned.
    TlsPinMismatch = "tls_pin_mismatch", Upstream, 502;
    /// The endpoint's certificate is not acceptable in another way; the log says in which.
    TlsVerifyFailed = "tls_verify_failed", Upstream, 502;
    /// The TLS handshake with the endpoint failed otherwise.
    TlsHandshakeFailed = "tls_handshake_failed", Upstream, 502;
    /// The endpoint declined to begin TLS (`starttls`).
    StartTlsRefused = "starttls_refused", Upstream, 502;
    /// The upstream connection ended before a response head.
    UpstreamClosed = "upstream_closed", Upstream, 502;
    /// The endpoint cancelled its HTTP/2 stream, as gRPC servers do at a call's deadline; a gRPC client's stream is
    /// cancelled as well. No fault of the endpoint's.
    UpstreamCancelled = "upstream_cancelled", Upstream, 502;
    /// The response head is malformed or over a limit.
    BadResponse = "bad_response", Upstream, 502;
    /// A 101 nobody asked for.
    UnaskedUpgrade = "unasked_upgrade", Upstream, 502;
    /// More interim responses than allowed.
    TooManyInterim = "too_many_interim", Upstream, 502;
    /// The response body broke off or is malformed; the client's connection was closed.
    ResponseTruncated = "response_truncated", Upstream, 502;
    /// The response body stalled.
    ResponseStalled = "response_stalled", Upstream, 504;
    /// The client did not read its response in time.
    ClientStalled = "client_stalled", Downstream, 499;
    /// No endpoint is available.
    NoEndpoint = "no_endpoint", Upstream, 503;
    /// The listener has all the connections it may have.
    TooManyConnections = "too_many_connections", Internal, 503;
    /// The line of requests that wait for an endpoint is full.
    QueueFull = "queue_full", Internal, 503;
    /// No endpoint had room for the request in time.
    QueueTimeout = "queue_timeout", Internal, 503;
    /// The endpoint has all the tunnels it may have.
    TooManyTunnels = "too_many_tunnels", Internal, 503;
    /// The service has been stopped.
    ServiceStopped = "service_stopped", Internal, 503;
    /// The service was paused for longer than the request was to be held.
    PauseTimeout = "pause_timeout", Internal, 504;
    /// The targets were drained, and the request took too long for that.
    TargetDrained = "target_drained", Internal, 504;
    /// The response head did not come in time.
    ResponseTimeout = "response_timeout", Upstream, 504;
    /// A tunnel was silent too long.
    TunnelIdle = "tunnel_idle", Downstream, 499;
    /// The kernel's and our count of a spliced tunnel's bytes do not agree.
    SpliceMismatch = "splice_mismatch", Internal, 500;
    /// The response is larger than the route allows.
    ResponseTooLarge = "response_too_large", Internal, 500;
    /// No more memory or file space for a request that is to be held until it is whole.
    RequestBufferFull = "request_buffer_full", Internal, 503;
    /// The same for a response.
    ResponseBufferFull = "response_buffer_full", Internal, 500;
    /// The file that a request was held in could not be made, written or read; the log says why.
    RequestSpoolFailed = "request_spool_failed", Internal, 503;
    /// The same for a response.
    ResponseSpoolFailed = "response_spool_failed", Internal, 500;
    /// An HTTP version we do not speak.
    VersionNotSupported = "version_not_supported", Downstream, 505;
}
