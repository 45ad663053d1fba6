"""docs/how-to/deploy.md: its arithmetic, its commands and its links are right."""

import json
import math
import re
import shlex

from google.protobuf import json_format

from eviction_client.settings import ClientSettings
from eviction_client.stores.claims import REMEMBERED_S
from lpc.v1 import predictor_pb2 as pb
from lpc_apps.lmcache.settings import LMCacheSettings
from response_cache.gateway.settings import GatewaySettings
from response_cache.service.settings import CacheSettings
from tests.dockerfile import ROOT, stages

PAGE = (ROOT / "docs/how-to/deploy.md").read_text()


def test_the_sizing_table_follows_from_the_formulas() -> None:
    rows = re.findall(
        r"(?m)^\| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| ([\d,.]+) GB \| ([\d,]+) \| ([\d,.]+) MB/s \| ([\d,.]+) MB/s \|$", PAGE
    )
    assert [row[0] for row in rows] == ["1", "10", "100", "1,000", "10,000"]
    for row in rows:
        engines, cpu, gpu, memory, primaries, to_redis, to_sidecars = (float(cell.replace(",", "")) for cell in row)
        stored = engines * 64 * REMEMBERED_S * 110
        assert cpu == math.ceil(engines / (400 * 0.5))
        assert gpu == math.ceil(engines / (5000 * 0.5))
        assert memory == round(stored / 1e9, 2)
        assert primaries == max(math.ceil(engines * 850e-6 / 0.5), math.ceil(stored / 16e9))
        assert to_redis == round(engines * 9000 / 1e6, 2)
        assert to_sidecars == round(engines * 32_000 / 1e6, 2)


def test_its_requests_are_valid() -> None:
    sent = [
        word for line in PAGE.splitlines() if "grpcurl" in line and " -d " in line for word in shlex.split(line) if "{" in word
    ]
    assert sent
    for text in sent:
        json_format.Parse(text, pb.PredictRequest())
        assert json.loads(text)
    methods = {method.name for method in pb.DESCRIPTOR.services_by_name["ContinuationPredictor"].methods}
    assert set(re.findall(r"ContinuationPredictor/(\w+)", PAGE)) <= methods


def test_the_go_example_names_what_the_contract_has() -> None:
    (code,) = re.findall(r"```go\n(.*?)```", PAGE, re.DOTALL)
    messages = pb.DESCRIPTOR.message_types_by_name
    fields = {
        "".join(part.capitalize() for part in field.name.split("_")): message.name
        for message in messages.values()
        for field in message.fields
    }
    for kind, body in re.findall(r"&lpcv1\.(\w+)\{(.*?)(?=&lpcv1|\Z)", code, re.DOTALL):
        message, _, member = kind.partition("_")
        assert message in messages
        # A member of a oneof is a type of its own, and its only field is that member.
        own = {"".join(part.capitalize() for part in field.name.split("_")) for field in messages[message].fields}
        own |= {"".join(part.capitalize() for part in oneof.name.split("_")) for oneof in messages[message].oneofs}
        names = set(re.findall(r"(\w+):", body.split("}", 1)[0]))
        assert names <= ({member} if member else own), kind
    assert {"ReuseGroup"} <= set(re.findall(r"(?:answer|p)\.(\w+)", code)) <= {*fields, "GetPrediction"}
    assert "NewContinuationPredictorClient(conn)" in code and ".Predict(ctx" in code


def test_its_links_overlays_targets_and_settings_exist() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (ROOT / "docs/how-to" / link).exists(), link
    overlays = {path.name for path in (ROOT / "deploy/overlays").iterdir()}
    compose, kubernetes = (
        PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0] for title in ("docker compose", "Kubernetes")
    )
    assert set(re.findall(r"(?m)^\| `([\w-]+)` \|", kubernetes)) == overlays
    profiles = set(re.findall(r"(?m)profiles: \[(.*)\]", (ROOT / "docker-compose.yml").read_text()))
    assert set(re.findall(r"(?m)^\| `([\w-]+)` \|", compose)) == {name for some in profiles for name in some.split(", ")}
    assert set(re.findall(r"--target (\S+)", PAGE)) <= set(stages()[1])
    known = {
        f"{settings.model_config['env_prefix']}{name}".upper()
        for settings in (CacheSettings, ClientSettings, GatewaySettings, LMCacheSettings)
        for name in settings.model_fields
    }
    for page in (PAGE, (ROOT / "docs/how-to/runbook.md").read_text()):
        assert set(re.findall(r"\bLPC_[A-Z_]+\b", page)) <= known
