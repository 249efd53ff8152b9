#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The dashboard's queries and the rules in a real Prometheus, which scrapes a running server (server.c).

    prometheus.py PATH/TO/ops_server OPS_DIR

Every query of the dashboard gives series with the labels that its legend names; every rule is evaluated without an error; the
new revision of the model that is one call of 250 makes its alerts fire. Without Prometheus: "not run here", exit 77.
"""
import contextlib
import http.server
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

LIMIT = 150  # seconds until what must come has come; it takes some 20
HERE = os.path.dirname(os.path.abspath(__file__))
TOOLS = os.path.join(HERE, "../../build/tools")  # where scripts/setup.sh puts it
CANARY = """# HELP tileproof_canary_last_success_timestamp_seconds When the canary last passed, in Unix time.
# TYPE tileproof_canary_last_success_timestamp_seconds gauge
tileproof_canary_last_success_timestamp_seconds {}
"""


class Canary(http.server.BaseHTTPRequestHandler):
    """Stands for the node exporter, which exposes the file of `tileproof canary --metrics`."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(CANARY.format(int(time.time()) - 3600).encode())

    def log_message(self, *_):
        pass


def free_port():
    with contextlib.closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def ask(base, path, **query):
    url = f"{base}/api/v1/{path}" + ("?" + urllib.parse.urlencode(query) if query else "")
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        if error.code == 503:  # it has only begun
            raise ConnectionError(str(error)) from None
        raise AssertionError(f"{query or path}: {error.read().decode()}") from None


def until(what, probe, *, process):
    """Asks again until it answers with something; that it takes long is no failure before LIMIT."""
    end = time.monotonic() + LIMIT
    while True:
        try:
            found = probe()
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            found = None
        if found:
            return found
        assert process.poll() is None, f"prometheus ended with {process.returncode}"
        assert time.monotonic() < end, f"after {LIMIT} seconds: {what}"
        time.sleep(0.5)


def dashboard_queries(ops):
    with open(os.path.join(ops, "dashboard.json"), encoding="utf-8") as f:
        panels = json.load(f)["panels"]
    return [(panel["title"], target["expr"], re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            for panel in panels for target in panel["targets"]]


def check_queries(base, queries, prometheus):
    for title, expr, labels in queries:
        found = until(f"{title}: a series for {expr}", lambda: ask(base, "query", query=expr)["result"], process=prometheus)
        for one in found:
            value = float(one["value"][1])
            assert value == value and abs(value) != float("inf"), f"{title}: {one}"
        missing = [label for label in labels if not any(label in one["metric"] for one in found)]
        assert not missing, f"{title}: no series has {missing}: {found[0]['metric']}"
        print(f"{title}: {len(found)} series")


def alerts(base):
    return {(a["labels"]["alertname"], a["labels"].get("model", ""), a["state"]) for a in ask(base, "alerts")["alerts"]}


def story(base, server, queries, prometheus):
    def scraped(least):
        found = ask(base, "query", query="tileproof_call_seconds_count")["result"]
        return found and min(float(one["value"][1]) for one in found) >= least

    until("the server's metrics", lambda: scraped(8), process=prometheus)

    def evaluated():
        rules = [r for g in ask(base, "rules")["groups"] for r in g["rules"]]
        return rules if rules and all(r["health"] != "unknown" for r in rules) else None

    rules = until("rules that were evaluated", evaluated, process=prometheus)
    wrong = [(r["name"], r.get("lastError")) for r in rules if r["health"] != "ok"]
    assert not wrong, wrong
    print(f"{len(rules)} rules are evaluated")
    assert not alerts(base), f"before the change: {alerts(base)}"

    server.stdin.write("new\n")
    server.stdin.flush()
    until("an alert for the fallback of small", lambda: ("TileproofNewFallback", "small", "firing") in alerts(base), process=prometheus)
    until("an alert for the lock of small", lambda: any(a[0] == "TileproofLockDrift" and "small" in a[1] for a in alerts(base)),
          process=prometheus)
    assert not any(name == "TileproofRefused" or model == "big" for name, model, _ in alerts(base)), alerts(base)
    # of the queries only refusals have nothing to show, as nothing is refused under this policy
    check_queries(base, [q for q in queries if "refusals" not in q[1]], prometheus)
    assert not ask(base, "query", query=next(q[1] for q in queries if "refusals" in q[1]))["result"]
    p99 = next(q[1] for q in queries if "0.99" in q[1])
    times = {one["metric"]["model"]: float(one["value"][1]) for one in ask(base, "query", query=p99)["result"]}
    assert times["small"] > times["big"] > 0, times


def main():
    server_path, ops = sys.argv[1], os.path.abspath(sys.argv[2])
    prometheus_path = shutil.which("prometheus", path=os.environ["PATH"] + os.pathsep + TOOLS)
    if not prometheus_path:
        print("not run here: prometheus is not installed (Debian: prometheus)")
        sys.exit(77)
    queries = dashboard_queries(ops)
    canary = http.server.HTTPServer(("127.0.0.1", 0), Canary)
    threading.Thread(target=canary.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ends:
        server = subprocess.Popen([server_path, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        ends.callback(server.wait)
        ends.callback(server.stdin.close)
        port, own = int(server.stdout.readline()), free_port()
        config = {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "rule_files": [os.path.join(ops, "alerts.yml")],
                  "scrape_configs": [{"job_name": "server", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]},
                                     {"job_name": "node", "static_configs": [{"targets": [f"127.0.0.1:{canary.server_port}"]}]}]}
        path = os.path.join(folder, "prometheus.yml")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(config, f)  # JSON is YAML
        log = open(os.path.join(folder, "log"), "w+", encoding="utf-8")
        prometheus = subprocess.Popen([prometheus_path, f"--config.file={path}", f"--storage.tsdb.path={folder}/data",
                                       f"--web.listen-address=127.0.0.1:{own}"], stdout=log, stderr=log)
        ends.callback(prometheus.wait)
        ends.callback(prometheus.terminate)
        try:
            story(f"http://127.0.0.1:{own}", server, queries, prometheus)
        except AssertionError:
            log.seek(0)
            print(log.read()[-3000:])
            raise
    print("passed")


main()
