//! An OCI image layout (image-layout specification 1.0.0) in one tar archive: blobs by their digests, and an index that
//! names each image.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tar::{Builder, Header};

use super::containerfile::Stage;
use super::layer::{Layer, digest};

/// Bytes with their media type.
struct Blob {
    media_type: &'static str,
    bytes: Vec<u8>,
}

impl Blob {
    fn json(media_type: &'static str, value: &Value) -> Self {
        Self { media_type, bytes: value.to_string().into_bytes() }
    }

    /// Its descriptor.
    fn descriptor(&self) -> Value {
        json!({"mediaType": self.media_type, "digest": digest(&self.bytes), "size": self.bytes.len()})
    }
}

/// Writes `images`, each a tag and its settings, into the file `archive`.
///
/// # Errors
/// When it cannot be written.
pub(super) fn write(layer: &Layer, images: &[(String, &Stage)], epoch: u64, archive: &Path) -> Result<()> {
    let file = File::create(archive).with_context(|| archive.display().to_string())?;
    let mut builder = Builder::new(file);
    let mut append = |name: &str, bytes: &[u8]| -> Result<()> {
        let mut header = Header::new_ustar();
        header.set_mode(0o644);
        header.set_mtime(epoch);
        header.set_size(bytes.len() as u64);
        Ok(builder.append_data(&mut header, name, bytes)?)
    };
    let content =
        Blob { media_type: "application/vnd.oci.image.layer.v1.tar+gzip", bytes: layer.compressed.clone() };
    let mut manifests = Vec::new();
    let mut blobs = vec![];
    for (tag, stage) in images {
        let config = Blob::json("application/vnd.oci.image.config.v1+json", &image(stage, layer, epoch));
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config.descriptor(),
            "layers": [content.descriptor()],
        });
        let manifest = Blob::json("application/vnd.oci.image.manifest.v1+json", &manifest);
        let mut named = manifest.descriptor();
        named["annotations"] = json!({
            "org.opencontainers.image.ref.name": tag,
            // The name that `docker load` and `podman load` use.
            "io.containerd.image.name": format!("localhost/sluice:{tag}"),
        });
        manifests.push(named);
        blobs.extend([config, manifest]);
    }
    blobs.push(content);
    append("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": manifests,
    });
    append("index.json", index.to_string().as_bytes())?;
    for blob in &blobs {
        append(&format!("blobs/{}", digest(&blob.bytes).replace(':', "/")), &blob.bytes)?;
    }
    builder.finish()?;
    Ok(())
}

/// OCI image configuration.
fn image(stage: &Stage, layer: &Layer, epoch: u64) -> Value {
    let mut config = stage.config.clone();
    config["Labels"]["org.opencontainers.image.version"] = env!("CARGO_PKG_VERSION").into();
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    json!({
        "created": timestamp(epoch),
        "architecture": architecture,
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id]},
        "history": [{"created": timestamp(epoch), "created_by": "cargo xtask package --image"}],
    })
}

/// RFC 3339, in UTC. Days to a date as in "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
fn timestamp(epoch: u64) -> String {
    let (days, rest) = (epoch / 86_400, epoch % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_formatted_as_dates() {
        assert_eq!(timestamp(0), "1970-01-01T00:00:00Z");
        assert_eq!(timestamp(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(timestamp(1_798_761_599), "2026-12-31T23:59:59Z");
    }
}
