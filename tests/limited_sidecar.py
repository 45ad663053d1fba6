"""A sidecar within a memory limit, and its busiest hour: `python -m tests.limited_sidecar MODELS MIB [CGROUP]`.

Joins the cgroup before anything is loaded, or is told the limit as a setting. It may have batches of 64 of the longest inputs,
as on CUDA, as far as memory goes. Prints one JSON object: the budget in force by metric and by `GetModelInfo`, how many
conversations were answered, the most memory that was held, MiB.
"""

import asyncio
import json
import os
import re
import sys
from pathlib import Path

ASKED = 400
CALLS = 4


def peak_mib() -> float:
    """Return the most memory that this process has held."""
    return int(re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]) / 1024


async def main(models: Path, mib: int, cgroup: Path | None) -> None:
    """Serve and ask."""
    import grpc.aio
    from prometheus_client import generate_latest

    from lpc.v1 import predictor_pb2 as pb
    from lpc.v1 import predictor_pb2_grpc as rpc
    from predictor_service import server
    from predictor_service.batching import budget
    from predictor_service.metrics import Metrics
    from predictor_service.settings import ServiceSettings

    budget.BATCH_TOKENS["cpu"] = budget.BATCH_TOKENS["cuda"]
    made: list[Metrics] = []
    server.Metrics = lambda: made.append(Metrics()) or made[0]  # type: ignore[assignment, misc, func-returns-value]
    settings = ServiceSettings(
        models=models,
        model="tiny",
        provider="cpu",
        port=0,
        metrics_port=None,
        unix_socket=None,
        memory_mib=0 if cgroup else mib,
        label_memory_turns=0,
        returns_refit_s=0,
    )
    async with server.running(settings) as addresses, grpc.aio.insecure_channel(f"127.0.0.1:{addresses.port}") as channel:
        stub = rpc.ContinuationPredictorStub(channel)
        limits = (await stub.GetModelInfo(pb.GetModelInfoRequest())).limits
        longest = pb.Conversation(prompt="hello world " * 3000)
        batch = pb.PredictBatchRequest(conversations=[longest] * (ASKED // CALLS))
        answers = await asyncio.gather(*(stub.PredictBatch(batch) for _ in range(CALLS)))
        scraped = generate_latest(made[0].registry).decode()
    print(
        json.dumps(
            {
                "metric": float(re.findall(r"^lpc_batch_token_budget (\S+)$", scraped, re.MULTILINE)[0]),
                "published": limits.max_batch_tokens,
                "answered": sum(result.HasField("prediction") for answer in answers for result in answer.results),
                "peak_mib": peak_mib(),
            }
        )
    )


if __name__ == "__main__":
    place = Path(sys.argv[3]) if len(sys.argv) > 3 else None
    if place is not None:
        (place / "cgroup.procs").write_text(str(os.getpid()))
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), place))
