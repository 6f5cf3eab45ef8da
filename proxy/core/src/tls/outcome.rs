//! Outcomes of handshakes with clients, and their names in metrics and logs.

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible, ServerConnection};
use sluice_config::TlsVersion;

/// The outcome of a handshake with a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake {
    /// It succeeded.
    Done {
        /// The negotiated version.
        version: TlsVersion,
        /// Whether an earlier session was resumed.
        resumed: bool,
    },
    /// It failed.
    Failed(HandshakeFailure),
}

macro_rules! failures {
    ($($(#[$doc:meta])* $name:ident = $word:literal,)*) => {
        /// Why a handshake with a client failed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum HandshakeFailure { $($(#[$doc])* $name,)* }

        impl HandshakeFailure {
            /// All failures, in declaration order.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The name used in metrics and logs.
            pub fn word(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }
        }
    };
}

failures! {
    /// It exceeded its timeout.
    TimedOut = "timed_out",
    /// The limit of concurrent handshakes was reached.
    TooMany = "too_many",
    /// The client closed the connection.
    Closed = "closed",
    /// The client did not send TLS.
    NotTls = "not_tls",
    /// The client supports none of the enabled versions.
    NoSharedVersion = "no_shared_version",
    /// The client has no suite, group or signature scheme in common with sluice.
    NoSharedCipher = "no_shared_cipher",
    /// The client offers only ALPN protocols that the listener does not support.
    NoSharedProtocol = "no_shared_protocol",
    /// There is no certificate to serve.
    NoCertificate = "no_certificate",
    /// The client refused sluice's certificate with an alert.
    CertificateRefused = "certificate_refused",
    /// The client ended it with another alert.
    Alert = "alert",
    /// The client sent no certificate, but one is required.
    ClientCertificateMissing = "client_certificate_missing",
    /// The client's certificate has expired, or is not valid yet.
    ClientCertificateExpired = "client_certificate_expired",
    /// The client's certificate does not chain to a trusted authority.
    ClientCertificateUnknown = "client_certificate_unknown",
    /// The client's certificate is invalid for another reason.
    ClientCertificateBad = "client_certificate_bad",
    /// The client violated the protocol.
    Protocol = "protocol",
}

impl Handshake {
    /// The outcome of a handshake that `connection` has completed.
    pub fn done(connection: &ServerConnection) -> Self {
        let version = match connection.protocol_version() {
            Some(rustls::ProtocolVersion::TLSv1_3) => TlsVersion::V13,
            _ => TlsVersion::V12,
        };
        let resumed = connection.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
        Self::Done { version, resumed }
    }
}

impl From<&Error> for HandshakeFailure {
    fn from(error: &Error) -> Self {
        match error {
            Error::InvalidMessage(InvalidMessage::InvalidContentType) => Self::NotTls,
            Error::PeerIncompatible(incompatible) => of_incompatible(incompatible),
            Error::NoApplicationProtocol => Self::NoSharedProtocol,
            Error::AlertReceived(alert) => of_alert(*alert),
            Error::NoCertificatesPresented => Self::ClientCertificateMissing,
            Error::InvalidCertificate(error) => of_certificate(error),
            // rustls has no variant for it; the resolver found no certificate.
            Error::General(text) if text.contains("certificate") => Self::NoCertificate,
            _ => Self::Protocol,
        }
    }
}

impl HandshakeFailure {
    /// Why sluice ended a handshake with this alert. QUIC says no more (RFC 9001 section 4.8).
    pub fn with_alert(alert: u8) -> Self {
        use AlertDescription as Alert;
        match AlertDescription::from(alert) {
            Alert::NoApplicationProtocol => Self::NoSharedProtocol,
            Alert::HandshakeFailure | Alert::InsufficientSecurity => Self::NoSharedCipher,
            Alert::ProtocolVersion => Self::NoSharedVersion,
            Alert::AccessDenied | Alert::UnrecognisedName => Self::NoCertificate,
            Alert::CertificateRequired => Self::ClientCertificateMissing,
            Alert::CertificateExpired => Self::ClientCertificateExpired,
            Alert::UnknownCA => Self::ClientCertificateUnknown,
            Alert::BadCertificate | Alert::UnsupportedCertificate | Alert::CertificateUnknown => {
                Self::ClientCertificateBad
            }
            _ => Self::Protocol,
        }
    }

    /// Why a client ended a handshake with this alert.
    pub fn by_alert(alert: u8) -> Self {
        of_alert(AlertDescription::from(alert))
    }
}

fn of_incompatible(incompatible: &PeerIncompatible) -> HandshakeFailure {
    use PeerIncompatible::*;
    match incompatible {
        SupportedVersionsExtensionRequired
        | Tls12NotOffered
        | Tls12NotOfferedOrEnabled
        | Tls13RequiredForQuic
        | ServerDoesNotSupportTls12Or13
        | ServerTlsVersionIsDisabledByOurConfig => HandshakeFailure::NoSharedVersion,
        _ => HandshakeFailure::NoSharedCipher,
    }
}

fn of_alert(alert: AlertDescription) -> HandshakeFailure {
    use AlertDescription as Alert;
    match alert {
        Alert::NoCertificate
        | Alert::BadCertificate
        | Alert::UnsupportedCertificate
        | Alert::CertificateRevoked
        | Alert::CertificateExpired
        | Alert::CertificateUnknown
        | Alert::UnknownCA => HandshakeFailure::CertificateRefused,
        Alert::UserCanceled | Alert::CloseNotify => HandshakeFailure::Closed,
        _ => HandshakeFailure::Alert,
    }
}

fn of_certificate(error: &CertificateError) -> HandshakeFailure {
    use CertificateError::*;
    match error {
        Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. } => {
            HandshakeFailure::ClientCertificateExpired
        }
        // An authority of the same name signed it, but with another key.
        UnknownIssuer | BadSignature => HandshakeFailure::ClientCertificateUnknown,
        _ => HandshakeFailure::ClientCertificateBad,
    }
}
