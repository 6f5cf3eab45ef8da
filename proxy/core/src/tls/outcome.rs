//! How handshakes with clients end, in the words of metrics and log.

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible, ServerConnection};
use sluice_config::TlsVersion;

/// How a handshake with a client ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake {
    /// Well.
    Done {
        /// The version agreed on.
        version: TlsVersion,
        /// Whether a session from before goes on.
        resumed: bool,
    },
    /// Not well.
    Failed(HandshakeFailure),
}

macro_rules! failures {
    ($($(#[$doc:meta])* $name:ident = $word:literal,)*) => {
        /// Why a handshake with a client failed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum HandshakeFailure { $($(#[$doc])* $name,)* }

        impl HandshakeFailure {
            /// All of them, in declaration order.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The one word that metrics and log show.
            pub fn word(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }
        }
    };
}

failures! {
    /// It took longer than it may.
    TimedOut = "timed_out",
    /// As many were under way as may be.
    TooMany = "too_many",
    /// The client went away.
    Closed = "closed",
    /// What came was no TLS.
    NotTls = "not_tls",
    /// The client speaks no version that is spoken here.
    NoSharedVersion = "no_shared_version",
    /// The client has no suite, group or signature in common with us.
    NoSharedCipher = "no_shared_cipher",
    /// None of the protocols that it offers by ALPN is spoken here.
    NoSharedProtocol = "no_shared_protocol",
    /// There is no certificate to show.
    NoCertificate = "no_certificate",
    /// The client refused our certificate, by an alert.
    CertificateRefused = "certificate_refused",
    /// The client ended it with another alert.
    Alert = "alert",
    /// The client showed no certificate, and must.
    ClientCertificateMissing = "client_certificate_missing",
    /// The client's certificate has expired, or is not valid yet.
    ClientCertificateExpired = "client_certificate_expired",
    /// Nobody that is trusted here vouches for the client's certificate.
    ClientCertificateUnknown = "client_certificate_unknown",
    /// The client's certificate is bad in another way.
    ClientCertificateBad = "client_certificate_bad",
    /// The client does not keep to the protocol.
    Protocol = "protocol",
}

impl Handshake {
    /// How one ended that `connection` has completed.
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
            // rustls has no variant for it; the resolver had nothing.
            Error::General(text) if text.contains("certificate") => Self::NoCertificate,
            _ => Self::Protocol,
        }
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
        // One of the same name signed it, but not with this key.
        UnknownIssuer | BadSignature => HandshakeFailure::ClientCertificateUnknown,
        _ => HandshakeFailure::ClientCertificateBad,
    }
}
