//! Which kernel assists may be used. Whether this host can give them is for `kernel::probe` and `doctor`.

use super::names::words;
use super::reader::Fields;

/// What each kernel assist may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelAssists {
    /// Upstream connections on this host, joined past loopback TCP.
    pub bypass: AssistMode,
    /// Tunnels, whose two connections are joined in the kernel.
    pub splice: AssistMode,
}

/// Whether one assist is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AssistMode {
    /// Used where this host can and it helps: bytes are copied otherwise, which is slower but never wrong.
    #[default]
    Auto,
    /// Not used.
    Off,
    /// Sluice does not start without it.
    Required,
}

words!(AssistMode {
    Auto = "auto",
    Off = "off",
    Required = "required",
});

/// `kernel`: a map of the assists.
pub(super) fn kernel(root: &mut Fields<'_>) -> KernelAssists {
    let mut kernel = KernelAssists::default();
    if let Some(mut fields) = root.get("kernel").map(|item| item.fields()) {
        kernel.bypass = fields.one_of("bypass", kernel.bypass);
        kernel.splice = fields.one_of("splice", kernel.splice);
        fields.finish();
    }
    kernel
}
