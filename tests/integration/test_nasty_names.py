"""What commands print of a sidecar and of metrics whose names control terminals, forge lines, or are very long. Real gRPC."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from typer.testing import CliRunner

from lpc.cache.v1 import response_cache_pb2 as cache_pb
from lpc.cache.v1 import response_cache_pb2_grpc as cache_rpc
from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from lpc_cli.cli import app
from tests.unit.test_terminal import harmless

NAME = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e\nlpc: forged [/bold] :smile: \x7f" + 100_000 * "x"
HEALTHY = b"\x08\x01"


class Predictor(rpc.ContinuationPredictorServicer):
    def GetModelInfo(self, request, context):  # noqa: N802
        status = pb.TokenizerStatus(state=pb.TOKENIZER_STATE_FAILED, message=NAME)
        return pb.GetModelInfoResponse(
            model_name=NAME,
            model_version=NAME,
            precision=NAME,
            execution_provider=NAME,
            tokenizers=[pb.KnownTokenizer(served_model=NAME, digest=NAME, status=status)],
        )

    def Predict(self, request, context):  # noqa: N802
        if request.conversation.WhichOneof("input") == "tokens" and not request.accept_unread:
            context.abort(grpc.StatusCode.INTERNAL, "\x1b[2J refused")
        unread = request.conversation.WhichOneof("input") == "tokens"
        return pb.PredictResponse(prediction=pb.Prediction(probability=0.5, model_version=NAME, turn_count=1, unread=unread))


class Caches(cache_rpc.ResponseCacheServicer):
    def Stats(self, request, context):  # noqa: N802
        tiers = [cache_pb.TierStats(source=source, mode=NAME) for source in (cache_pb.SOURCE_SEMANTIC, 99)]
        return cache_pb.StatsResponse(scopes=[cache_pb.ScopeStats(scope=NAME, kind=NAME, mode=NAME, known=True, tiers=tiers)])

    def Report(self, request, context):  # noqa: N802
        days = [cache_pb.DayOfScope(scope=NAME, day=NAME, lookups={NAME: 1})]
        return cache_pb.ReportResponse(days=days, known=True)


@pytest.fixture
def address() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(2))
    rpc.add_ContinuationPredictorServicer_to_server(Predictor(), server)
    cache_rpc.add_ResponseCacheServicer_to_server(Caches(), server)
    health = grpc.unary_unary_rpc_method_handler(lambda _request, _context: HEALTHY)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": health}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: server.stop(None).wait())
        yield f"127.0.0.1:{port}"


@pytest.mark.parametrize("command", [["doctor"], ["predict"], ["cache", "report"]])
def test_names_of_a_sidecar_do_not_control_the_terminal(address: str, command: list[str]) -> None:
    done = CliRunner().invoke(app, [*command, "--address", address], input="hello")
    assert "owned" in done.output, done.output
    assert harmless(done.output)
    assert not any(line.startswith("lpc: forged") for line in done.output.splitlines())
    assert len(done.output) < 50_000


def test_labels_of_metrics_do_not_control_the_terminal(tmp_path: Path) -> None:
    engine = '{engine="0",model_name="m"'
    label = "\x1b[2J\u202e[/bold]"
    metrics = tmp_path / "metrics"
    metrics.write_text(
        "# TYPE lpc_prompt_tokens_total counter\n"
        f'lpc_prompt_tokens_total{engine},source="cached"}} 10\n'
        f'lpc_prompt_tokens_total{engine},source="{label}"}} 10\n'
    )
    done = CliRunner().invoke(app, ["report", str(metrics)])
    assert harmless(done.output), done.output


@pytest.mark.parametrize("name", ["[/x]", "\x1b[2Jv9", "a\nlpc: forged"])
def test_names_of_folders_do_not_control_the_terminal(tmp_path: Path, name: str) -> None:
    (tmp_path / "m" / name.replace("/", "")).mkdir(parents=True)
    done = CliRunner().invoke(app, ["models", "list", "--models", str(tmp_path), "--model", "m"])
    assert done.exit_code == 0 and harmless(done.stdout), done.stdout
    done = CliRunner().invoke(app, ["models", "promote", name, "--models", str(tmp_path), "--model", "m"])
    assert done.exit_code == 1 and harmless(done.output), done.output
    assert len(done.output.splitlines()) == 1
