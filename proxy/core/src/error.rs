//! What can go wrong on the wire: the side at fault, the reason code, and the status.

/// The side an error came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The client.
    Downstream,
    /// The origin.
    Upstream,
    /// sluice or its configuration.
    Internal,
}

impl Side {
    /// The label that metrics and the status page show.
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
        /// Why an exchange did not end with the origin's own response; `reason` in the access log.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason { $($(#[$doc])* $name,)* }

        impl Reason {
            /// Every reason, in declaration order; the index of a metric series.
            pub const ALL: &[Reason] = &[$(Reason::$name,)*];

            /// The reason code in logs and metrics.
            pub fn word(self) -> &'static str {
                match self { $(Reason::$name => $word,)* }
            }

            /// The side at fault.
            pub fn side(self) -> Side {
                match self { $(Reason::$name => Side::$side,)* }
            }

            /// The status sent to the client; 499 is only logged.
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
    /// The client closed its connection before the body was complete.
    BodyIncomplete = "body_incomplete", Downstream, 400;
    /// The PROXY protocol header is missing or malformed; the connection is closed without a response.
    BadProxyProtocol = "bad_proxy_protocol", Downstream, 400;
    /// A connection to a TLS listener did not start with TLS; closed without a response.
    NotTls = "not_tls", Downstream, 400;
    /// A malformed ClientHello, or an ambiguous one.
    BadClientHello = "bad_client_hello", Downstream, 400;
    /// The ClientHello is over the limit.
    ClientHelloTooLarge = "client_hello_too_large", Downstream, 400;
    /// The ClientHello did not arrive in time.
    ClientHelloTimeout = "client_hello_timeout", Downstream, 408;
    /// The client names no server, or a server that the listener does not know.
    UnknownServerName = "unknown_server_name", Downstream, 421;
    /// The request's host differs from the host of the TLS handshake, on a listener with client certificates (RFC 9110
    /// 15.5.20).
    MisdirectedRequest = "misdirected_request", Downstream, 421;
    /// The route needs a password or a token, and the request has none or a wrong one.
    Unauthorized = "unauthorized", Downstream, 401;
    /// The authority of the route (`auth.forward`) refused the request; the client got its response.
    AuthRefused = "auth_refused", Downstream, 401;
    /// The route needs a certificate of the client (`auth.certificate`), and it has none or another one.
    CertificateRefused = "certificate_refused", Downstream, 403;
    /// `access` refuses the client; in a tunnel, the connection is closed without a response.
    AccessDenied = "access_denied", Downstream, 403;
    /// The client is banned; in a tunnel, the connection is closed without a response.
    Banned = "banned", Downstream, 403;
    /// The client has sent more requests than a rate limit allows.
    RateLimited = "rate_limited", Downstream, 429;
    /// No route matches.
    NoRoute = "no_route", Downstream, 404;
    /// The route has no such file.
    NoFile = "no_file", Downstream, 404;
    /// A route matches except for the method.
    MethodNotAllowed = "method_not_allowed", Downstream, 405;
    /// The head did not arrive in time.
    HeaderTimeout = "header_timeout", Downstream, 408;
    /// The request body stalled.
    BodyTimeout = "body_timeout", Downstream, 408;
    /// The request body arrives more slowly than `receive_rate_min`.
    BodyTooSlow = "body_too_slow", Downstream, 408;
    /// The body is over the limit.
    BodyTooLarge = "body_too_large", Downstream, 413;
    /// The target is over the limit.
    TargetTooLong = "target_too_long", Downstream, 414;
    /// An expectation that cannot be met.
    ExpectationFailed = "expectation_failed", Downstream, 417;
    /// The head is over a limit.
    HeadTooLarge = "head_too_large", Downstream, 431;
    /// The client closed its connection; logged, never sent.
    ClientGone = "client_gone", Downstream, 499;
    /// A panic in sluice's code.
    Panic = "panic", Internal, 500;
    /// File descriptors or another local resource ran out.
    LocalResource = "local_resource", Internal, 500;
    /// A file of the route could not be opened or read, or became shorter while it was sent; the log says why.
    FileFailed = "file_failed", Internal, 500;
    /// A method that sluice does not implement (CONNECT).
    NotImplemented = "not_implemented", Downstream, 501;
    /// The endpoint refused the connection.
    ConnectRefused = "connect_refused", Upstream, 502;
    /// Connecting failed for another reason.
    ConnectFailed = "connect_failed", Upstream, 502;
    /// The authority of the route (`auth.forward`) or the keys of its tokens (`auth.jwt`) cannot be reached, or the
    /// response cannot be used; the log says why.
    AuthFailed = "auth_failed", Upstream, 502;
    /// The authority of the route did not answer in time.
    AuthTimeout = "auth_timeout", Upstream, 504;
    /// Too many requests wait for the authority of the route, or for passwords to be compared.
    AuthBusy = "auth_busy", Internal, 503;
    /// What `auth` needs was not loaded.
    AuthUnavailable = "auth_unavailable", Internal, 503;
    /// Connecting took too long.
    ConnectTimeout = "connect_timeout", Upstream, 504;
    /// The endpoint's certificate has expired.
    TlsCertificateExpired = "tls_certificate_expired", Upstream, 502;
    /// The endpoint's certificate does not chain to a trusted authority.
    TlsUnknownIssuer = "tls_unknown_issuer", Upstream, 502;
    /// The endpoint's certificate is for another name.
    TlsNameMismatch = "tls_name_mismatch", Upstream, 502;
    /// The endpoint's certificate matches no pin.
    TlsPinMismatch = "tls_pin_mismatch", Upstream, 502;
    /// The endpoint's certificate was rejected for another reason; the log names it.
    TlsVerifyFailed = "tls_verify_failed", Upstream, 502;
    /// The TLS handshake with the endpoint failed for another reason.
    TlsHandshakeFailed = "tls_handshake_failed", Upstream, 502;
    /// The endpoint declined to start TLS (`starttls`).
    StartTlsRefused = "starttls_refused", Upstream, 502;
    /// The upstream connection ended before a response head.
    UpstreamClosed = "upstream_closed", Upstream, 502;
    /// The endpoint cancelled its HTTP/2 stream, as gRPC servers do at a call's deadline; a gRPC client's stream is
    /// cancelled as well. Not counted as the endpoint's fault.
    UpstreamCancelled = "upstream_cancelled", Upstream, 502;
    /// The response head is malformed or over a limit.
    BadResponse = "bad_response", Upstream, 502;
    /// The application named a file (X-Sendfile, X-Accel-Redirect) that is not in the folders of the route, or that cannot
    /// be read; the log says which.
    SendfileRefused = "sendfile_refused", Upstream, 502;
    /// A 101 response to a request without Upgrade.
    UnaskedUpgrade = "unasked_upgrade", Upstream, 502;
    /// More interim responses than allowed.
    TooManyInterim = "too_many_interim", Upstream, 502;
    /// The response body was cut off or is malformed; the client's connection was closed.
    ResponseTruncated = "response_truncated", Upstream, 502;
    /// The response body stalled.
    ResponseStalled = "response_stalled", Upstream, 504;
    /// The client did not read its response in time.
    ClientStalled = "client_stalled", Downstream, 499;
    /// No endpoint is available.
    NoEndpoint = "no_endpoint", Upstream, 503;
    /// The listener is at its connection limit.
    TooManyConnections = "too_many_connections", Internal, 503;
    /// The queue of requests that wait for an endpoint is full.
    QueueFull = "queue_full", Internal, 503;
    /// No endpoint had room for the request in time.
    QueueTimeout = "queue_timeout", Internal, 503;
    /// The endpoint is at its tunnel limit.
    TooManyTunnels = "too_many_tunnels", Internal, 503;
    /// The service is stopped.
    ServiceStopped = "service_stopped", Internal, 503;
    /// The service was paused for longer than requests are kept.
    PauseTimeout = "pause_timeout", Internal, 504;
    /// The target was drained, and the request did not finish in time.
    TargetDrained = "target_drained", Internal, 504;
    /// The response head did not arrive in time.
    ResponseTimeout = "response_timeout", Upstream, 504;
    /// A tunnel was idle too long.
    TunnelIdle = "tunnel_idle", Downstream, 499;
    /// The kernel's and sluice's byte counts of a spliced tunnel differ.
    SpliceMismatch = "splice_mismatch", Internal, 500;
    /// The response is larger than the route allows.
    ResponseTooLarge = "response_too_large", Internal, 500;
    /// No memory or file space left to buffer the request.
    RequestBufferFull = "request_buffer_full", Internal, 503;
    /// No memory or file space left to buffer the response.
    ResponseBufferFull = "response_buffer_full", Internal, 500;
    /// The file for a buffered request could not be created, written or read; the log says why.
    RequestSpoolFailed = "request_spool_failed", Internal, 503;
    /// The file for a buffered response could not be created, written or read; the log says why.
    ResponseSpoolFailed = "response_spool_failed", Internal, 500;
    /// An HTTP version that sluice does not support.
    VersionNotSupported = "version_not_supported", Downstream, 505;
}
