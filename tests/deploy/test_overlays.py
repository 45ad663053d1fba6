"""What each overlay promises: where the model comes from, what it needs, whom the engines ask."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.deploy.test_kubernetes import OVERLAYS, example, pods, rendered
from tests.dockerfile import stages
from tests.eventually import patiently


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_volume_hides_the_model_that_the_image_carries(overlay: str) -> None:
    """Where there is one all the same, it is filled from the image before the sidecar starts: seen for real below."""
    image = stages()[1]["cpu"]
    (_, pod) = next(p for p in pods(rendered(overlay)) if p[0] in {"Deployment lpc-predictor", "DaemonSet lpc-predictor"})
    (sidecar,) = pod["spec"]["containers"]
    mounted = {mount["mountPath"]: mount["name"] for mount in sidecar["volumeMounts"]}
    claim = mounted.get(image.env()["LPC_MODELS"])
    assert (claim is not None) is (overlay == "learning")
    if claim is not None:
        (seed,) = pod["spec"]["initContainers"]
        assert seed["image"] == sidecar["image"]
        assert {mount["name"]: mount["mountPath"] for mount in seed["volumeMounts"]} == {claim: "/volume"}


def test_a_models_volume_starts_with_the_images_model_and_is_never_overwritten(tmp_path: Path) -> None:
    """Runs the init container's own shell lines, with its folders below another, as two pods at once and then as a third."""
    (_, pod) = next(p for p in pods(rendered("learning")) if p[0] == "Deployment lpc-predictor")
    (seed,) = pod["spec"]["initContainers"]
    lines = re.sub(r"(?<=[\" ])/(models|volume)", rf"{tmp_path}/\1", seed["args"][0])
    (tmp_path / "volume").mkdir()

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([*seed["command"], lines], stderr=subprocess.DEVNULL)

    (tmp_path / "models").mkdir()
    assert start().wait(patiently()) == 0, "an image without a model has nothing to give"
    artefact = tmp_path / "models/default/v1"
    artefact.mkdir(parents=True)
    (artefact / "model.onnx").write_bytes(bytes(2**20))
    assert [one.wait(patiently()) for one in [start(), start()]] == [0, 0]
    published = tmp_path / "volume/default/v1/model.onnx"
    assert published.stat().st_size == 2**20
    published.with_name("note").write_text("retrained")
    (artefact / "model.onnx").write_bytes(b"another image")
    assert start().wait(patiently()) == 0
    assert published.stat().st_size == 2**20 and published.with_name("note").exists()
    assert [path.name for path in (tmp_path / "volume").iterdir()] == ["default"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_applying_a_new_release_changes_nothing_that_kubernetes_refuses_to_change(overlay: str) -> None:
    """The template of a Job is immutable: one that is still there fails the next `kubectl apply` with another image."""
    assert not [o["metadata"]["name"] for o in rendered(overlay) if o["kind"] == "Job"]


def test_the_minimal_overlay_needs_nothing_but_kubernetes() -> None:
    objects = rendered("minimal")
    kinds = {o["kind"] for o in objects}
    assert kinds == {
        *("Namespace", "ServiceAccount", "ConfigMap", "Deployment", "Service", "NetworkPolicy", "PodDisruptionBudget"),
    }
    (_, pod) = next(pods(objects))
    assert all(set(volume) == {"name", "emptyDir"} for volume in pod["spec"]["volumes"])


def test_engine_and_sidecar_of_one_pod_may_share_the_socket() -> None:
    """What the settings do between users is measured in tests/integration/test_socket_users.py."""
    (_, pod) = next(pods(example("vllm-one-pod")))
    engine, sidecar = pod["spec"]["containers"]
    environment = [{entry["name"]: entry["value"] for entry in one["env"]} for one in (engine, sidecar)]
    socket = stages()[1]["cpu"].env()["LPC_UNIX_SOCKET"]
    assert environment[0]["LPC_PREDICTOR_ADDRESS"] == f"unix://{socket}"
    assert environment[1]["LPC_UNIX_SOCKET_MODE"] == "0660"
    mounts = [{mount["mountPath"]: mount["name"] for mount in one["volumeMounts"]} for one in (engine, sidecar)]
    assert mounts[0][str(Path(socket).parent)] == mounts[1][str(Path(socket).parent)]
    assert pod["spec"]["securityContext"]["runAsUser"] != sidecar["securityContext"]["runAsUser"]
    assert "fsGroup" in pod["spec"]["securityContext"]
