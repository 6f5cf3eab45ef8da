//! The crates below `proxy/`, lowest first. Each may depend only on those before it. The compiler refuses cycles; this
//! check refuses upward dependencies.

use super::Document;

/// A crate, by its folder and its package, and packages that it must not use.
struct Layer {
    folder: &'static str,
    package: &'static str,
    without: &'static [&'static str],
}

/// Crates that only read bytes and files run anywhere, so they must not use these.
const PORTABLE: &[&str] = &["tokio", "nix", "rustix", "io-uring"];

const LAYERS: &[Layer] = &[
    Layer { folder: "proxy/http", package: "sluice-http", without: PORTABLE },
    Layer { folder: "proxy/config", package: "sluice-config", without: PORTABLE },
    Layer { folder: "proxy/cache", package: "sluice-cache", without: &["io-uring"] },
    Layer { folder: "proxy/ring", package: "sluice-ring", without: &[] },
    Layer { folder: "proxy/kernel", package: "sluice-kernel", without: &[] },
    Layer {
        folder: "proxy/core",
        package: "sluice-core",
        without: &["io-uring", "sluice-ring", "sluice-kernel"],
    },
    Layer { folder: "proxy/net", package: "sluice-net", without: &[] },
    Layer { folder: "proxy/engine", package: "sluice-engine", without: &["hyper"] },
    Layer { folder: "proxy/control", package: "sluice-control", without: &[] },
    Layer { folder: "proxy/trace", package: "sluice-trace", without: &["tokio"] },
    Layer {
        folder: "proxy/sluice",
        package: "sluice",
        without: &["sluice-engine", "sluice-ring", "sluice-net"],
    },
];

/// Adds a problem for each upward dependency, and for each forbidden package.
pub(super) fn check(documents: &[Document], problems: &mut Vec<String>) {
    for (height, layer) in LAYERS.iter().enumerate() {
        let path = format!("{}/Cargo.toml", layer.folder);
        match documents.iter().find(|document| document.path == path) {
            Some(manifest) => check_manifest(height, layer, manifest, problems),
            None => problems.push(format!("{path}: is missing, but {} is a layer", layer.package)),
        }
    }
}

fn check_manifest(height: usize, layer: &Layer, manifest: &Document, problems: &mut Vec<String>) {
    for (line, package) in dependencies(&manifest.text) {
        let above = LAYERS[height..].iter().any(|other| other.package == package);
        if above || layer.without.contains(&package) {
            problems
                .push(format!("{}:{line}: {} must not depend on {package}", manifest.path, layer.package));
        }
    }
}

/// The packages on which a manifest depends, with their lines, without those of its tests.
fn dependencies(manifest: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut within = false;
    manifest.lines().enumerate().filter_map(move |(index, line)| {
        if line.starts_with('[') {
            within = line == "[dependencies]";
        }
        let package =
            line.split([' ', '=']).next().filter(|name| !name.is_empty() && !line.starts_with(['#', '[']));
        package.filter(|_| within).map(|package| (index + 1, package))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(package: &str, manifest: &str) -> Vec<String> {
        let height = LAYERS.iter().position(|layer| layer.package == package).expect("a layer");
        let document = Document { path: "Cargo.toml".to_owned(), text: manifest.to_owned() };
        let mut problems = Vec::new();
        check_manifest(height, &LAYERS[height], &document, &mut problems);
        problems
    }

    #[test]
    fn upward_dependency_is_reported_with_its_line() {
        let text =
            "[dependencies]\nsluice-http = { path = \"../http\" }\nsluice-net = { path = \"../net\" }\n";
        assert_eq!(
            problems("sluice-core", text),
            ["Cargo.toml:3: sluice-core must not depend on sluice-net"]
        );
        assert_eq!(problems("sluice-engine", text), [""; 0]);
    }

    #[test]
    fn tests_may_depend_on_anything() {
        let text = "[dependencies]\n# tokio = 1\n\n[dev-dependencies]\ntokio = \"1\"\n";
        assert_eq!(problems("sluice-http", text), [""; 0]);
        assert_eq!(problems("sluice-http", "[dependencies]\ntokio = \"1\"\n").len(), 1);
    }
}
