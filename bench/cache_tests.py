#!/usr/bin/env python3
"""The suite of cache-tests.fyi (npm: http-cache-tests) against sluice, nginx, Varnish and Apache, one after the other.

    npm install http-cache-tests
    bench/cache_tests.py --suite node_modules/http-cache-tests --sluice BINARY [--out DIR]

A test is required, optional, or a question. What another test is a condition for counts only if that passes (`dependent`), and one
whose beginning does not work is neither passed nor failed (`setup`). Needs node; peers that are not installed are skipped.
"""
import argparse, collections, contextlib, json, os, shutil, subprocess, tempfile, time, urllib.request

from measuring import free_port
from running import end_on_signal, program, sluice

TEMP = ("client_body_temp_path {0}/a; proxy_temp_path {0}/b; fastcgi_temp_path {0}/c; uwsgi_temp_path {0}/d; "
        "scgi_temp_path {0}/e;")


def nginx(folder, port, app):
    with open(folder + "/nginx.conf", "w") as file:
        file.write(f"""user root; daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{ worker_connections 2000; }} http {{ access_log off; {TEMP.format(folder)}
proxy_cache_path {folder}/nginx-cache levels=1:2 keys_zone=a:8m max_size=1000m inactive=600m;
server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://127.0.0.1:{app}; proxy_cache a;
proxy_cache_revalidate on; }} }} }}""")
    return program(["nginx", "-p", folder, "-c", folder + "/nginx.conf", "-e", folder + "/nginx.log"])


def varnish(folder, port, app):
    with open(folder + "/app.vcl", "w") as file:
        file.write(f'vcl 4.1; backend app {{ .host = "127.0.0.1"; .port = "{app}"; }}\n')
    return program(["varnishd", "-F", "-n", folder + "/varnish", "-a", f"127.0.0.1:{port}", "-f", folder + "/app.vcl",
                    "-s", "malloc,64m", "-j", "none"])


def apache(folder, port, app):
    modules = ["mpm_event", "authz_core", "proxy", "proxy_http", "cache", "cache_disk"]
    loads = "\n".join(f"LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so" for name in modules)
    os.makedirs(folder + "/apache", mode=0o777)
    os.chmod(folder + "/apache", 0o777)
    with open(folder + "/apache.conf", "w") as file:
        file.write(f"""ServerName localhost
PidFile {folder}/apache.pid
Mutex file:{folder}/apache
ErrorLog {folder}/apache.log
{loads}
Listen 127.0.0.1:{port}
User www-data
Group www-data
ProxyPass / http://127.0.0.1:{app}/
CacheQuickHandler off
CacheEnable disk /
CacheRoot {folder}/apache
CacheDefaultExpire 0
CacheIgnoreNoLastMod On
CacheStoreExpired On
CacheHeader On
""")
    return program(["apache2", "-D", "FOREGROUND", "-f", folder + "/apache.conf"])


def described(suite):
    """The tests: their kinds, and what they depend on."""
    script = (f"import('{suite}/tests/index.mjs').then(module => {{ const all = {{}}; for (const suite of module.default) "
              "for (const test of suite.tests) all[test.id] = [test.kind || 'required', test.depends_on || []]; "
              "console.log(JSON.stringify(all)) })")
    said = subprocess.run(["node", "--no-warnings", "--input-type=module", "-e", script], check=True, capture_output=True, text=True)
    return json.loads(said.stdout)


def verdict(kind, needs, of, results):
    if of is None:
        return "not run"
    if any(results.get(need) is not True for need in needs):
        return "dependent"
    if of is True:
        return "yes" if kind == "check" else "passed"
    if of[0] == "Setup":
        return "setup"
    return "no" if kind == "check" else "failed"


def run(suite, port):
    command = ["npm", "run", "--silent", "cli", f"--base=http://127.0.0.1:{port}"]
    said = subprocess.run(command, cwd=suite, check=True, capture_output=True, text=True, timeout=600)
    return json.loads(said.stdout)


def wait_for(port):
    for _ in range(100):
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"http://127.0.0.1:{port}/").read()
        time.sleep(0.1)
    raise SystemExit(f"nobody responds on {port}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suite", required=True)
    parser.add_argument("--sluice", required=True)
    parser.add_argument("--out")
    arguments = parser.parse_args()
    end_on_signal()
    suite, tables = os.path.abspath(arguments.suite), {}
    tests = described(suite)
    with contextlib.ExitStack() as started:
        folder = started.enter_context(tempfile.TemporaryDirectory())
        os.chmod(folder, 0o755)
        app = free_port()
        environment = {**os.environ, "npm_config_protocol": "http", "npm_config_port": str(app),
                       "npm_config_pidfile": folder + "/origin.pid"}
        started.enter_context(program(["node", "server/server.mjs"], cwd=suite, env=environment, stdout=subprocess.DEVNULL))
        config = {"caches": {"default": {}}, "clusters": {"app": {"endpoints": [f"127.0.0.1:{app}"]}},
                  "routes": [{"cluster": "app", "cache": "default"}]}
        wait_for(app)
        _, port = started.enter_context(sluice(arguments.sluice, config, folder, "sluice"))
        ports = {"sluice": port}
        with_cookies = {**config, "caches": {"default": {"store_set_cookie": True}}}
        _, ports["sluice, store_set_cookie"] = started.enter_context(sluice(arguments.sluice, with_cookies, folder, "cookies"))
        for name, start, command in [("nginx", nginx, "nginx"), ("varnish", varnish, "varnishd"), ("apache", apache, "apache2")]:
            if shutil.which(command):
                ports[name] = free_port()
                started.enter_context(start(folder, ports[name], app))
            else:
                print(f"{command} is not installed; skipped")
        for name, port in ports.items():
            wait_for(port)
            results = run(suite, port)
            counts, failed = collections.Counter(), {}
            for test, (kind, needs) in tests.items():
                word = verdict(kind, needs, results.get(test), results)
                counts[f"{kind}: {word}"] += 1
                if word == "failed":
                    failed[test] = results[test][1]
            tables[name] = {"counts": dict(sorted(counts.items())), "failed": failed if name.startswith("sluice") else len(failed)}
    print(json.dumps(tables, indent=1))
    if arguments.out:
        os.makedirs(arguments.out, exist_ok=True)
        version = json.load(open(suite + "/package.json"))["version"]
        text = {"command": "bench/cache_tests.py --suite node_modules/http-cache-tests --sluice target/release/sluice",
                "http-cache-tests": version, "result": tables}
        with open(os.path.join(arguments.out, "cache-tests.json"), "w") as file:
            file.write(json.dumps(text, indent=1) + "\n")


main()
