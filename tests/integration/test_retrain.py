"""`lpc train --from`: label log to head to version, with real artefacts and a running sidecar that follows."""

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lpc.model.artifact import read_manifest
from lpc.model.versions import promote, served_folder
from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from lpc_apps.training.encoders import EncoderError
from lpc_apps.training.export import ExportError
from lpc_apps.training.label_log import read_label_log
from lpc_apps.training.retrain import retrain
from lpc_cli.cli import app
from tests.eventually import eventually
from tests.integration.test_server import chat, one, sidecar
from tests.label_log import DAY_MS, END_MS, made_up_rows, write_made_up

WIDTH = 32


@pytest.fixture
def root(tiny_models: Path, tmp_path: Path) -> Path:
    """A model repository whose live version has a random head."""
    return Path(shutil.copytree(tiny_models, tmp_path / "models"))


def log_of(root: Path, folder: Path, **law: Any) -> Path:
    """Write a log of the live version; return its folder."""
    return write_made_up(folder, read_manifest(served_folder(root / "tiny")), made_up_rows(WIDTH, 1500, **law))


def learn(root: Path, log: Path, **changes: Any) -> dict[str, Any]:
    live = served_folder(root / "tiny")
    turns = read_label_log(log, read_manifest(live))
    return retrain(turns, live, **{"encoder": str(root / ".encoder-tiny"), "recipe": "lpc", **changes}).to_json()


def lpc(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(arguments))
    return done.exit_code, " ".join((done.stdout + done.stderr).split())


async def version_of(stub: rpc.ContinuationPredictorStub, until: Callable[[str], bool]) -> pb.GetModelInfoResponse:
    """Return the served model once its version is as wanted."""

    async def found() -> pb.GetModelInfoResponse | None:
        info: pb.GetModelInfoResponse = await stub.GetModelInfo(pb.GetModelInfoRequest())
        return info if until(info.model_version) else None

    info: pb.GetModelInfoResponse = await eventually(found)
    return info


async def test_a_better_head_is_published_and_a_running_sidecar_serves_it(root: Path, tmp_path: Path) -> None:
    log = log_of(root, tmp_path / "log")
    report = tmp_path / "report.json"
    asked = ["train", "--from", str(log), "--models", str(root), "--model", "tiny", "--encoder", str(root / ".encoder-tiny")]
    async with sidecar(root, reload_s=0.05) as (stub, _):
        before = (await stub.Predict(one(chat("hello")))).prediction
        code, said = await asyncio.to_thread(
            lpc, *asked, "--recipe", "lpc", "--output", str(report), "--head", str(tmp_path / "head")
        )
        assert code == 0, said
        found = json.loads(report.read_text())
        await version_of(stub, lambda version: version == found["version"])
        after = (await stub.Predict(one(chat("hello")))).prediction
    assert found["published"] and "published" in said and "not worse than v1" in said
    assert found["live_version"] == before.model_version == "v1"
    assert after.model_version == found["version"] != "v1"
    assert after.probability != before.probability
    assert found["scores"]["new"]["brier"] < found["scores"]["live"]["brier"]
    assert found["scores"]["new"]["auc"] > 0.7
    assert found["differences"]["log_loss"]["high"] < 0
    manifest = read_manifest(root / "tiny" / found["version"])
    assert manifest.precision == "fp32"
    assert manifest.head["dataset"].startswith("label log, 2026-11-1")
    assert (tmp_path / "head").exists()


def test_a_worse_head_is_not_published(root: Path, tmp_path: Path) -> None:
    live = learn(root, log_of(root, tmp_path / "good"))
    assert live["published"]
    # The older days follow the opposite law, the newest day the live head's.
    opposite = made_up_rows(WIDTH, 1500, law=-2.5, until_ms=END_MS - DAY_MS, seed=1)
    newest = made_up_rows(WIDTH, 400, days=1.0, seed=2)
    rows = {name: [*opposite[name], *newest[name]] for name in opposite}
    log = write_made_up(tmp_path / "bad", read_manifest(served_folder(root / "tiny")), rows)
    there = {path.name for path in (root / "tiny").iterdir()}
    found = learn(root, log, out=tmp_path / "head.safetensors")
    assert not found["published"]
    assert found["version"] == live["version"] == served_folder(root / "tiny").name
    assert "above the live head's" in found["reason"]
    assert found["scores"]["new"]["log_loss"] > found["scores"]["live"]["log_loss"]
    assert {path.name for path in (root / "tiny").iterdir()} == there
    assert (tmp_path / "head.safetensors").exists()


async def test_a_promoted_version_is_compared_with_and_then_left_for_the_published_one(root: Path, tmp_path: Path) -> None:
    first = learn(root, log_of(root, tmp_path / "log"))["version"]
    promote(root / "tiny", "v1")
    log = log_of(root, tmp_path / "next", seed=3)
    async with sidecar(root, reload_s=0.05) as (stub, _):
        await version_of(stub, lambda version: version == "v1")
        found = await asyncio.to_thread(learn, root, log)
        assert (found["published"], found["live_version"]) == (True, "v1")
        await version_of(stub, lambda version: version == found["version"])
        assert found["version"] not in ("v1", first)
        # Rolled back, and what was published stays out until somebody promotes it.
        where = ("--models", str(root), "--model", "tiny")
        assert lpc("models", "rollback", *where)[0] == 0
        await version_of(stub, lambda version: version == "v1")
        assert lpc("models", "promote", first, *where)[0] == 0
        await version_of(stub, lambda version: version == first)
        assert lpc("models", "unpin", *where)[0] == 0
        await version_of(stub, lambda version: version == found["version"])


def test_the_reason_against_training_is_logged_and_nothing_is_published(root: Path, tmp_path: Path) -> None:
    log = log_of(root, tmp_path / "log")
    with pytest.raises(EncoderError):
        learn(root, log, encoder=str(tmp_path))
    other = root / ".encoder-other"
    shutil.copytree(root / ".encoder-tiny", other)
    weights = next(other.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
    with pytest.raises(ExportError, match=r"the live version v1 has the encoder .*name its source with --encoder"):
        learn(root, log, encoder=str(other))
    code, said = lpc("train", "--from", str(log), "--models", str(root), "--model", "none")
    assert (code, "no model in" in said) == (1, True)
    few = write_made_up(tmp_path / "few", read_manifest(root / "tiny" / "v1"), made_up_rows(WIDTH, 30))
    code, said = lpc("train", "--from", str(few), "--models", str(root), "--model", "tiny")
    assert (code, "nothing was trained" in said, "at least 50 of each are needed" in said) == (0, True, True)
    code, said = lpc("train", "--from", str(few), "--embeddings", str(few))
    assert (code, "or --embeddings (the output of `lpc embed`), not both" in said) == (2, True)
    assert [path.name for path in (root / "tiny").iterdir() if not path.name.startswith(".")] == ["v1"]


def test_nothing_is_published_when_the_live_version_changed_meanwhile(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lpc_apps.training import retrain as retraining

    first = learn(root, log_of(root, tmp_path / "log"))["version"]
    promote(root / "tiny", "v1")
    log = log_of(root, tmp_path / "next", seed=3)
    learn_head = retraining.learn

    def promoted_meanwhile(*arguments: Any, **named: Any) -> Any:
        promote(root / "tiny", first)
        return learn_head(*arguments, **named)

    monkeypatch.setattr(retraining, "learn", promoted_meanwhile)
    with pytest.raises(ExportError, match="was live when training began and is not any more"):
        learn(root, log)
    assert served_folder(root / "tiny").name == first
