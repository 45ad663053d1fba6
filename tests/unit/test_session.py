"""Where a session runs: what is said is what is so, on a build with CUDA and on one without."""

from pathlib import Path

import pytest

from lpc.model.inference import Model
from lpc.model.session import InferenceSettings, ProviderError, open_session, why_no_cuda


@pytest.fixture
def no_cuda() -> str:
    why = why_no_cuda()
    if why is None:
        pytest.skip("CUDA's libraries are here")
    return why


def test_auto_uses_the_cpu_without_cuda_and_logs_one_line(
    tiny_models: Path, no_cuda: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    session, provider = open_session(tiny_models / "tiny" / "v1" / "model.onnx", InferenceSettings("auto", 1))
    assert provider == "cpu"
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert [record.getMessage() for record in caplog.records] == [f"inference runs on the CPU: {no_cuda}"]


def test_configured_cuda_that_is_not_usable_is_an_error(tiny_models: Path, no_cuda: str) -> None:
    with pytest.raises(ProviderError) as caught:
        Model(tiny_models / "tiny" / "v1", InferenceSettings("cuda", 1))
    assert f"provider is cuda, but {no_cuda}" in str(caught.value)
    assert "\n" not in str(caught.value)
