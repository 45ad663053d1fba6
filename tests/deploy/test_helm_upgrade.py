"""What an upgrade of the chart keeps: helm asks a cluster for the secrets that are there. No cluster is at hand, so a stand-in
answers what helm asks of an API server."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import yaml

from tests.deploy.chart import CHART, VALUES, Object, charted, helm
from tests.deploy.test_kubernetes import secret_data

MADE = ("lpc-caches-tls", "lpc-response-cache", "lpc-gateway-access", "lpc-gateway-clients")


@contextmanager
def cluster(objects: list[Object]) -> Iterator[str]:
    """Answer at the address returned as a cluster that holds the secrets among these objects, and knows all their kinds."""
    kinds = {("v1", "Secret"), *((one["apiVersion"], one["kind"]) for one in objects)}
    groups = {version for version, _ in kinds if "/" in version}
    pages: dict[str, Any] = {
        "/version": {"major": "1", "minor": "33", "gitVersion": "v1.33.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {
            "kind": "APIGroupList",
            "groups": [
                {
                    "name": version.partition("/")[0],
                    "versions": [{"groupVersion": version, "version": version.partition("/")[2]}],
                }
                for version in groups
            ],
        },
    }
    for version in {"v1", *groups}:
        resources = [
            {"name": f"{kind.lower()}s", "singularName": kind.lower(), "namespaced": True, "kind": kind, "verbs": ["get"]}
            for one, kind in kinds
            if one == version
        ]
        page = f"/apis/{version}" if "/" in version else f"/api/{version}"
        pages[page] = {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
    for one in objects:
        if one["kind"] == "Secret":
            # As helm marks what it installs.
            owner = {"meta.helm.sh/release-name": "lpc", "meta.helm.sh/release-namespace": "lpc"}
            metadata = {**one["metadata"], "annotations": {**one["metadata"].get("annotations", {}), **owner}}
            pages[f"/api/v1/namespaces/lpc/secrets/{metadata['name']}"] = {**one, "metadata": metadata}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = pages.get(self.path.partition("?")[0])
            failure = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            body = json.dumps(found or failure).encode()
            self.send_response(200 if found else 404)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def upgraded(objects: list[Object], *values: str) -> list[Object]:
    """Render the chart against a cluster that holds these objects."""
    with cluster(objects) as address:
        options = ("--dry-run=server", "--disable-openapi-validation", "--kube-apiserver", address)
        done = helm(
            "template", "lpc", CHART, "--namespace", "lpc", "--skip-tests", "--values", VALUES["gateway"], *options, *values
        )
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]


def test_an_upgrade_keeps_every_secret() -> None:
    first = charted("gateway")
    second = upgraded(first)
    assert all(secret_data(first, name) == secret_data(second, name) for name in MADE)
    # Without what the cluster holds all of them are new.
    third = upgraded([one for one in first if one["kind"] != "Secret"])
    assert not any(secret_data(first, name) == secret_data(third, name) for name in MADE)


def test_a_client_more_gets_a_token_and_the_others_keep_theirs() -> None:
    first = charted("gateway")
    second = upgraded(first, "--set", "gateway.clients={app,other}")
    before, after = (secret_data(one, "lpc-gateway-clients") for one in (first, second))
    assert after["app"] == before["app"] != after["other"]
    lines = secret_data(second, "lpc-gateway-access")["clients"].decode().splitlines()
    assert lines[0] == secret_data(first, "lpc-gateway-access")["clients"].decode().strip() and lines[1].startswith("other: ")
