//! Why a stream or a connection ended (RFC 9114 section 8.1, RFC 9204 section 6).

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $word:literal;)*) => {
        /// An error code of HTTP/3.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Http3Code { $($(#[$doc])* $name,)* }

        impl Http3Code {
            /// All codes, in the order of declaration.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Its number on the wire.
            pub fn number(self) -> u64 {
                match self { $(Self::$name => $number,)* }
            }

            /// Its name in metrics and logs.
            pub fn word(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }
        }
    };
}

codes! {
    /// Nothing went wrong.
    NoError = 0x100, "no_error";
    /// A violation without a code of its own.
    GeneralProtocolError = 0x101, "general_protocol_error";
    /// An error of sluice.
    InternalError = 0x102, "internal_error";
    /// A stream of a type that its sender may not open.
    StreamCreationError = 0x103, "stream_creation_error";
    /// A stream was closed that lasts as long as the connection.
    ClosedCriticalStream = 0x104, "closed_critical_stream";
    /// A frame where it may not be.
    FrameUnexpected = 0x105, "frame_unexpected";
    /// A frame with the wrong size or contents.
    FrameError = 0x106, "frame_error";
    /// The peer causes too much work.
    ExcessiveLoad = 0x107, "excessive_load";
    /// An identifier out of its range.
    IdError = 0x108, "id_error";
    /// Settings that contradict themselves.
    SettingsError = 0x109, "settings_error";
    /// No settings at the start of the control stream.
    MissingSettings = 0x10a, "missing_settings";
    /// A request that was not processed, and may be sent again.
    RequestRejected = 0x10b, "request_rejected";
    /// A request or its response is no longer needed.
    RequestCancelled = 0x10c, "request_cancelled";
    /// The stream ended before its request.
    RequestIncomplete = 0x10d, "request_incomplete";
    /// A message that breaks the rules of HTTP.
    MessageError = 0x10e, "message_error";
    /// The connection of a CONNECT request failed.
    ConnectError = 0x10f, "connect_error";
    /// A field section that cannot be decoded.
    QpackDecompressionFailed = 0x200, "qpack_decompression_failed";
    /// An instruction on the encoder stream that is not allowed.
    QpackEncoderStreamError = 0x201, "qpack_encoder_stream_error";
    /// An instruction on the decoder stream that is not allowed.
    QpackDecoderStreamError = 0x202, "qpack_decoder_stream_error";
}
