"""Programs that a benchmark starts, and ends however it ends itself."""
import contextlib, json, os, signal, subprocess, sys


def end_on_signal():
    """Makes a request to stop an ordinary end, at which everything that was started is stopped."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


@contextlib.contextmanager
def program(command, **options):
    """A program, until the block ends."""
    process = subprocess.Popen(command, **options)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def started_nginx(folder):
    """nginx, one process, with a file of 1 KB at /1k and the unix socket app.sock."""
    os.makedirs(folder + "/www")
    with open(folder + "/www/1k", "w") as file:
        file.write("x" * 1024)
    config = f"""daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 8192; }} http {{ access_log off; keepalive_requests 1000000000; keepalive_timeout 600s;
server {{ listen unix:{folder}/app.sock backlog=4096; root {folder}/www; }} client_body_temp_path {folder}/a;
proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e; }}"""
    with open(folder + "/nginx.conf", "w") as file:
        file.write(config)
    return program(["nginx", "-p", folder, "-c", folder + "/nginx.conf", "-e", folder + "/error.log"])


@contextlib.contextmanager
def sluice(binary, config, folder, name, under=()):
    """A sluice with one worker, which logs no requests; its process and the port of its listener. `under` is the command
    that runs it."""
    config = {
        "listeners": [{"name": "main", "address": "127.0.0.1:0"}], "access_log": "off", "admin": "off",
        "control": f"unix:{folder}/{name}.sock", "workers": 1, **config,
    }
    path = os.path.join(folder, name + ".json")
    with open(path, "w") as file:
        json.dump(config, file)
    with program([*under, binary, "run", "--config", path], stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if '"message":"listening"' in line:
                yield process, int(json.loads(line)["address"].rsplit(":", 1)[1])
                return
        raise SystemExit(f"{binary} does not start")


def started_caddy(folder, workers, site):
    """Caddy with this site, on as many threads as others have workers."""
    path = os.path.join(folder, "Caddyfile")
    with open(path, "w") as file:
        file.write("{\nadmin off\nauto_https off\n}\n" + site)
    environment = {**os.environ, "GOMAXPROCS": str(workers), "XDG_DATA_HOME": folder, "XDG_CONFIG_HOME": folder}
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return program(["caddy", "run", "--config", path], env=environment, **silent)
