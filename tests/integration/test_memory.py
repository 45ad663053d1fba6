"""Batches that memory does not hold."""

import os
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from lpc.model.features import ModelInput
from lpc.model.inference import Model
from lpc.model.session import InferenceSettings
from lpc.v1 import predictor_pb2 as pb
from predictor_service.server import Parts
from tests.integration.test_server import sidecar

ROOT = Path(__file__).parents[2]


def test_a_failed_allocation_of_the_runtime_is_a_memory_error(tiny_models: Path) -> None:
    program = """
        import resource, sys
        from pathlib import Path
        from lpc.model.features import ModelInput
        from lpc.model.inference import Model
        from lpc.model.session import InferenceSettings
        model = Model(Path(sys.argv[1]), InferenceSettings("cpu", 1))
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + 2**28,) * 2)
        longest = ModelInput([0] * 512, (1.0,) * len(model.manifest.features.scalars))
        try:
            model.run([longest] * 1024)
        except MemoryError as error:
            print(error)
        model.run([longest] * 2)
    """
    code = "\n".join(line.removeprefix(" " * 8) for line in program.splitlines())
    command = [sys.executable, "-c", code, str(tiny_models / "tiny" / "v1")]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "a batch of 524288 tokens" in done.stdout


class Narrow(Model):
    """Has memory for 40 tokens at a time."""

    def __init__(self, folder: Path, settings: InferenceSettings) -> None:
        super().__init__(folder, settings)
        self.ran: list[int] = []

    def run(self, batch: list[ModelInput]) -> list[float]:  # type: ignore[override]
        """Run a batch of at most 40 tokens."""
        if len(batch) * max(len(features.input_ids) for features in batch) > 40:
            raise MemoryError("Failed to allocate memory")
        return super().run(batch)


async def test_batches_that_do_not_fit_are_run_in_smaller_ones(tiny_models: Path) -> None:
    def asked(text: str) -> pb.Conversation:
        return pb.Conversation(prompt=text)

    async with sidecar(tiny_models, Parts(load=Narrow)) as (stub, _):
        before = (await stub.GetModelInfo(pb.GetModelInfoRequest())).limits.max_batch_tokens
        answer = await stub.PredictBatch(pb.PredictBatchRequest(conversations=[asked("hello")] * 100))
        assert all(result.HasField("prediction") for result in answer.results)
        after = (await stub.GetModelInfo(pb.GetModelInfoRequest())).limits.max_batch_tokens
        assert after <= 40 < before
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Predict(pb.PredictRequest(conversation=asked("hello world " * 100)))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await stub.Predict(pb.PredictRequest(conversation=asked("hello")))).prediction.probability > 0
