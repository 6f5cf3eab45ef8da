//! PostgreSQL and its client, with TLS end to end through sluice. Skipped with a note if they are not installed.

use std::fs::{File, Permissions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use nix::unistd::{User, geteuid};
use serde_json::json;

use crate::support::{Authority, Identity, Setup, free_port, poll};

/// Where distributions install programs that are not in the path.
const FOLDERS: &str = "/usr/lib/postgresql";

/// A running database, stopped when dropped.
struct Database {
    process: Child,
    port: u16,
}

impl Drop for Database {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The program of this name, if it is installed.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let versions = std::fs::read_dir(FOLDERS).into_iter().flatten().flatten();
    let folders = std::env::split_paths(&path).chain(versions.map(|version| version.path().join("bin")));
    folders.map(|folder| folder.join(name)).find(|file| file.exists())
}

/// The database refuses to run as root.
fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    if geteuid().is_root() {
        let nobody = User::from_name("nobody").unwrap().unwrap();
        command.uid(nobody.uid.as_raw()).gid(nobody.gid.as_raw());
    }
    command
}

/// A file that only the database's account can read.
fn secret(folder: &Path, name: &str, content: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, content).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    give(&path);
    path.display().to_string()
}

fn give(path: &Path) {
    if geteuid().is_root() {
        let nobody = User::from_name("nobody").unwrap().unwrap();
        chown(path, Some(nobody.uid.as_raw()), Some(nobody.gid.as_raw())).unwrap();
    }
}

impl Database {
    fn start(initdb: &Path, postgres: &Path, folder: &Path, identity: &Identity) -> Self {
        let folder = folder.join("database");
        std::fs::create_dir(&folder).unwrap();
        give(&folder);
        let data = folder.join("data");
        let made =
            command(initdb).args(["-A", "trust", "-U", "postgres", "--no-sync", "-D"]).arg(&data).output();
        let made = made.unwrap();
        assert!(made.status.success(), "{made:?}");
        let (cert, key) =
            (secret(&folder, "cert.pem", &identity.cert_pem), secret(&folder, "key.pem", &identity.key_pem));
        // It does not accept port 0.
        let port = free_port();
        let log = folder.join("log");
        let mut server = command(postgres);
        server.arg("-D").arg(&data).args(["-p", &port.to_string(), "-h", "127.0.0.1"]);
        for setting in
            ["ssl=on", "fsync=off", &format!("ssl_cert_file={cert}"), &format!("ssl_key_file={key}")]
        {
            server.args(["-c", setting]);
        }
        server.arg("-c").arg(format!("unix_socket_directories={}", folder.display()));
        server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log).unwrap());
        let mut database = Self { process: server.spawn().unwrap(), port };
        poll("the database", || {
            let said = std::fs::read_to_string(&log).unwrap();
            assert!(database.process.try_wait().unwrap().is_none(), "it has exited: {said}");
            said.contains("ready to accept connections").then_some(())
        });
        database
    }
}

/// The plain result of a query.
fn ask(psql: &Path, connection: &str, query: &str) -> Output {
    let mut command = Command::new(psql);
    command.args(["-X", "-A", "-t", "-c", query, connection]).stdin(Stdio::null());
    command.env("PGCONNECT_TIMEOUT", "20").output().unwrap()
}

#[test]
fn psql_verifies_its_server_through_sluice() {
    let programs = [program("psql"), program("initdb"), program("postgres")];
    let [Some(psql), Some(initdb), Some(postgres)] = programs else {
        let _ = writeln!(std::io::stderr(), "skipped: psql, initdb and postgres are not all installed");
        return;
    };
    let authority = Authority::new();
    let identity = authority.identity(&["db.test"]);
    let setup = Setup::to(&[]);
    let root = setup.file("ca.pem", &authority.pem());
    std::fs::set_permissions(&setup.folder, Permissions::from_mode(0o755)).unwrap();
    let database = Database::start(&initdb, &postgres, &setup.folder, &identity);
    let setup = setup
        .with("listeners.0.protocol", "tls-passthrough")
        .with("listeners.0.sni", json!({"db.test": "default", "wrong.test": "default"}))
        .with("listeners.0.starttls", "postgres")
        .with("clusters.default.endpoints", json!([format!("127.0.0.1:{}", database.port)]));
    let Some(proxy) = setup.start() else { return };
    let connection = |host: &str| {
        format!(
            "host={host} hostaddr=127.0.0.1 port={} user=postgres dbname=postgres sslmode=verify-full sslrootcert={}",
            proxy.address().port(),
            root.display()
        )
    };
    let encrypted = "select ssl from pg_stat_ssl where pid = pg_backend_pid()";
    let answer = ask(&psql, &connection("db.test"), encrypted);
    assert_eq!(String::from_utf8_lossy(&answer.stdout), "t\n", "{answer:?}");
    let long = ask(&psql, &connection("db.test"), "select repeat('x', 3000000)");
    assert_eq!(long.stdout.len(), 3_000_001);
    let wrong = ask(&psql, &connection("wrong.test"), encrypted);
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("does not match host name"), "{wrong:?}");
    let nobody = ask(&psql, &connection("nobody.test"), encrypted);
    assert!(!nobody.status.success(), "{nobody:?}");
    let plain = ask(&psql, &connection("db.test").replace("verify-full", "disable"), encrypted);
    assert!(!plain.status.success(), "{plain:?}");
    let records = proxy.records(5, "");
    let count = |reason: &str| records.iter().filter(|record| record["reason"] == reason).count();
    assert_eq!((count("unknown_server_name"), count("not_tls")), (1, 1), "{records:?}");
}
