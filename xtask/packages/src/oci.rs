//! Builds a container image without a container engine.
//!
//! The image has one layer with the static binary and its licenses. The output is one tar file with
//! an OCI image layout. The file also contains a `manifest.json`, so that `docker load` accepts it.
//! An image cannot request capabilities or mounts; `docs/how-to/install.md` lists the required
//! capabilities and mounts.
//!
//! References: OCI Image Specification 1.0 (image layout, manifest, configuration); the output of
//! `docker save` for `manifest.json`.

use anyhow::Result;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::archive::{Entry, gzip, tar};
use crate::{Release, contents, sha256};

/// Returns the image as the bytes of a tar file.
pub(crate) fn image(release: &Release, entries: &[Entry]) -> Result<Vec<u8>> {
    let layer = tar(&layer(entries), "", release.epoch)?;
    let diff_id = sha256(&layer);
    let layer = Blob::new("application/vnd.oci.image.layer.v1.tar+gzip", gzip(&layer)?);
    let config = Blob::json("application/vnd.oci.image.config.v1+json", &config(release, &diff_id)?);
    let tag = format!("sluicegate:{}", release.version);
    let docker = json!([{ "Config": config.path(), "RepoTags": [tag], "Layers": [layer.path()] }]);
    let manifest = Blob::json(
        MANIFEST,
        &json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config.descriptor(),
            "layers": [layer.descriptor()],
        }),
    );
    let mut named = manifest.descriptor();
    named["annotations"] = json!({
        "io.containerd.image.name": format!("docker.io/library/{tag}"),
        "org.opencontainers.image.ref.name": release.version,
    });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [named],
    });
    let mut files: Vec<Entry> =
        [layer, config, manifest].into_iter().map(|blob| Entry::file(blob.path(), blob.bytes)).collect();
    files.push(Entry::file("oci-layout", json!({ "imageLayoutVersion": "1.0.0" }).to_string()));
    files.push(Entry::file("index.json", index.to_string()));
    files.push(Entry::file("manifest.json", docker.to_string()));
    tar(&files, "", release.epoch)
}

/// Returns the entries in the image layer: the binary, the licenses, and folders for the mounts.
fn layer(entries: &[Entry]) -> Vec<Entry> {
    let is_in = |entry: &&Entry| LAYER.contains(&entry.path.as_str());
    let mut chosen: Vec<Entry> = entries.iter().filter(is_in).cloned().collect();
    chosen.extend(MOUNTS.map(|path| Entry::folder(path, 0o755)));
    chosen
}

fn config(release: &Release, diff_id: &str) -> Result<Value> {
    let created = OffsetDateTime::from_unix_timestamp(release.epoch.into())?.format(&Rfc3339)?;
    Ok(json!({
        "architecture": "amd64",
        "os": "linux",
        "created": created,
        "config": {
            "Entrypoint": ["/usr/bin/sluicegate"],
            "Cmd": ["run"],
            "StopSignal": "SIGTERM",
            "Labels": {
                "org.opencontainers.image.title": "sluicegate",
                "org.opencontainers.image.description": contents::SUMMARY,
                "org.opencontainers.image.version": release.version,
                "org.opencontainers.image.licenses": contents::LICENCE,
                "org.opencontainers.image.created": created,
            },
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{diff_id}")] },
        "history": [{ "created": created, "created_by": "cargo xtask packages" }],
    }))
}

/// A blob of the image, which is stored under its digest as the file name.
struct Blob {
    media_type: &'static str,
    bytes: Vec<u8>,
    digest: String,
}

impl Blob {
    fn new(media_type: &'static str, bytes: Vec<u8>) -> Self {
        Self { media_type, digest: sha256(&bytes), bytes }
    }

    fn json(media_type: &'static str, value: &Value) -> Self {
        Self::new(media_type, value.to_string().into_bytes())
    }

    fn path(&self) -> String {
        format!("blobs/sha256/{}", self.digest)
    }

    fn descriptor(&self) -> Value {
        json!({
            "mediaType": self.media_type,
            "digest": format!("sha256:{}", self.digest),
            "size": self.bytes.len(),
        })
    }
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// The paths of the package entries that the image layer contains.
const LAYER: [&str; 4] = [
    "usr/bin/sluicegate",
    "usr/share/doc/sluicegate/THIRD-PARTY.md",
    "usr/share/doc/sluicegate/copyright",
    "usr/share/doc/sluicegate/licences.gz",
];
/// The folders at which the configuration and the admin socket are mounted.
const MOUNTS: [&str; 2] = ["etc/sluicegate", "run/sluicegate"];

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::scene::{Scene, entries, output, release};

    #[test]
    fn digests_lead_from_the_index_to_a_layer() {
        let scene = Scene::new();
        let file = scene.file("image.tar", &image(&release(), &entries()).unwrap());
        output("tar", &["-xf", &file, "-C", scene.path("").to_str().unwrap()]);
        let read = |name: &str| fs::read(scene.path(name)).unwrap();
        let value = |name: &str| -> Value { serde_json::from_slice(&read(name)).unwrap() };
        let follow = |descriptor: &Value| {
            let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
            let name = format!("blobs/sha256/{digest}");
            let said = output("sha256sum", &[scene.path(&name).to_str().unwrap()]);
            assert!(said.starts_with(digest), "{said}");
            assert_eq!(descriptor["size"], read(&name).len());
            name
        };
        assert_eq!(value("oci-layout")["imageLayoutVersion"], "1.0.0");
        let manifest = value(&follow(&value("index.json")["manifests"][0]));
        let (config, layer) = (follow(&manifest["config"]), follow(&manifest["layers"][0]));
        let docker = &value("manifest.json")[0];
        assert_eq!((&docker["Config"], &docker["Layers"][0]), (&json!(config), &json!(layer)));
        let config = value(&config);
        assert_eq!(config["created"], "2023-11-14T22:13:20Z");
        assert_eq!(config["config"]["Entrypoint"], json!(["/usr/bin/sluicegate"]));
        let layer = scene.path(&layer);
        let listed = output("tar", &["-tzf", layer.to_str().unwrap()]);
        let files: Vec<&str> = listed.lines().filter(|name| !name.ends_with('/')).collect();
        assert_eq!(
            files,
            ["usr/bin/sluicegate", "usr/share/doc/sluicegate/copyright"],
            "the image contains no example configuration"
        );
        assert!(listed.contains("\nrun/sluicegate/\n"), "{listed}");
        let unpacked = format!("gzip --decompress --stdout {} | sha256sum", layer.display());
        let diff_id = config["rootfs"]["diff_ids"][0].as_str().unwrap().strip_prefix("sha256:").unwrap();
        assert!(output("sh", &["-c", &unpacked]).starts_with(diff_id));
    }

    #[test]
    fn skopeo_reads_it_as_oci_layout_and_docker_archive() {
        let scene = Scene::new();
        let file = scene.file("image.tar", &image(&release(), &entries()).unwrap());
        for (source, to) in
            [(format!("oci-archive:{file}:1.2.3"), "oci"), (format!("docker-archive:{file}"), "docker")]
        {
            let copy = format!("dir:{}", scene.path(to).display());
            // skopeo verifies the digest of every blob. In the Docker archive, skopeo also compares
            // the layer with the image configuration.
            output("skopeo", &["--insecure-policy", "copy", "--quiet", &source, &copy]);
            let said: Value = serde_json::from_str(&output("skopeo", &["inspect", &source])).unwrap();
            assert_eq!((&said["Architecture"], &said["Os"]), (&json!("amd64"), &json!("linux")), "{said}");
            assert_eq!(said["Labels"]["org.opencontainers.image.version"], "1.2.3", "{said}");
            assert_eq!(said["Layers"].as_array().map(Vec::len), Some(1), "{said}");
        }
    }
}
