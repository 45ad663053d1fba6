"""The client's stream against real gRPC servers that answer, err, stay silent, and die."""

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import get_args

import grpc
import pytest

from benchmarks.processes import free_port
from eviction_client import Prediction, PredictorClient
from eviction_client.book import Fate
from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc

Answer = Callable[[pb.PredictStreamRequest], list[pb.PredictStreamResponse]]


def prediction(request: pb.PredictStreamRequest) -> pb.PredictStreamResponse:
    """Answer with a probability that tells the prompt: its first id, in thousandths."""
    tokens = request.conversation.tokens
    return pb.PredictStreamResponse(
        request_id=request.request_id,
        prediction=pb.Prediction(probability=tokens.ids[0] / 1000, model_version="v1", turn_count=len(tokens.ids)),
    )


class Sidecar(predictor_pb2_grpc.ContinuationPredictorServicer):
    """Answers each request of a stream with what ``answer`` makes of it, and remembers what it got."""

    def __init__(self, answer: Answer | None = None, most_bytes: int = 0) -> None:
        self.most_bytes = most_bytes
        self.answer = answer or (lambda request: [prediction(request)])
        self.requests: list[pb.PredictStreamRequest] = []
        self.cancelled: list[str] = []
        self.streams = 0

    def GetModelInfo(self, request, context):  # noqa: N802 - gRPC's name
        limits = pb.Limits(max_request_bytes=self.most_bytes)
        return pb.GetModelInfoResponse(model_version="v1", limits=limits)

    def PredictStream(self, request_iterator, context):  # noqa: N802 - gRPC's name
        self.streams += 1
        for request in request_iterator:
            if request.WhichOneof("action") == "cancel":
                self.cancelled.append(request.request_id)
                continue
            self.requests.append(request)
            yield from self.answer(request)


@contextlib.contextmanager
def serving(sidecar: Sidecar, address: str | None = None) -> Iterator[str]:
    limits = (("grpc.max_receive_message_length", sidecar.most_bytes or 4 << 20),)
    server = grpc.server(futures.ThreadPoolExecutor(8), options=limits)
    predictor_pb2_grpc.add_ContinuationPredictorServicer_to_server(sidecar, server)
    address = address or f"127.0.0.1:{free_port()}"
    assert server.add_insecure_port(address)
    server.start()
    try:
        yield address
    finally:
        server.stop(0).wait()


@contextlib.contextmanager
def asking(address: str, **options) -> Iterator[PredictorClient]:
    client = PredictorClient(address, served_model="a-model", **options)
    try:
        yield client
    finally:
        client.close()


def until(condition: Callable[[], object], timeout: float = 15.0) -> bool:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.005)
    return bool(condition())


def answer_of(client: PredictorClient, request_id: str, timeout: float = 15.0) -> Prediction | None:
    found: list[Prediction] = []

    def taken() -> bool:
        answer = client.take(request_id)
        if answer is not None:
            found.append(answer)
        return bool(found)

    return found[0] if until(taken, timeout) else None


def fates(client: PredictorClient) -> int:
    counters = client.counters
    return sum(getattr(counters, fate) for fate in ("answered", *get_args(Fate)))


def test_an_answer_belongs_to_the_request_that_asked() -> None:
    with serving(Sidecar()) as address, asking(address) as client:
        for n in range(1, 200):
            client.ask(f"r{n}", token_ids=[n, 7, 150_000], turn_count=3)
        for n in range(1, 200):
            answer = answer_of(client, f"r{n}")
            assert answer is not None and answer.probability == n / 1000 and answer.turn_count == 3
        assert client.counters.answered == client.counters.asked == 199
        assert client.waiting == 0


def test_answers_may_come_in_any_order() -> None:
    held: list[pb.PredictStreamRequest] = []

    def backwards(request: pb.PredictStreamRequest) -> list[pb.PredictStreamResponse]:
        held.append(request)
        return [prediction(each) for each in reversed(held)] if len(held) == 3 else []

    with serving(Sidecar(backwards)) as address, asking(address) as client:
        for n in (1, 2, 3):
            client.ask(n, token_ids=[n])
        for n in (1, 2, 3):
            answer = answer_of(client, n)  # type: ignore[arg-type]
            assert answer is not None and answer.probability == n / 1000


def test_the_request_carries_what_the_engine_knows_and_not_its_request_id() -> None:
    sidecar = Sidecar()
    with serving(sidecar) as address, asking(address) as client:
        client.ask("secret-id", token_ids=[1, 2**32 - 1], turn_count=4, category="agent", conversation_id="c", timeout_s=3)
        assert answer_of(client, "secret-id")
    (request,) = sidecar.requests
    assert list(request.conversation.tokens.ids) == [1, 2**32 - 1]
    assert request.conversation.tokens.served_model == "a-model"
    assert (request.conversation.turn_count, request.conversation.category) == (4, "agent")
    assert 0 < request.timeout_ms <= 3000
    assert "secret-id" not in str(request)


def test_think_time_is_passed_on_when_the_model_knows_it() -> None:
    def answer(request: pb.PredictStreamRequest) -> list[pb.PredictStreamResponse]:
        response = prediction(request)
        response.prediction.think_time.log_mean = 4.5
        response.prediction.think_time.log_sigma = 1.25
        return [response]

    with serving(Sidecar(answer)) as address, asking(address) as client:
        client.ask("r", token_ids=[1])
        taken = answer_of(client, "r")
        assert taken is not None and (taken.think_log_mean, taken.think_log_sigma) == (4.5, 1.25)


def test_an_answer_is_taken_once() -> None:
    with serving(Sidecar()) as address, asking(address) as client:
        client.ask("r", token_ids=[1])
        assert answer_of(client, "r")
        assert client.take("r") is None


def test_an_error_item_is_no_answer_and_leaves_the_stream_up() -> None:
    def sometimes(request: pb.PredictStreamRequest) -> list[pb.PredictStreamResponse]:
        if request.conversation.tokens.ids[0] == 13:
            return [pb.PredictStreamResponse(request_id=request.request_id, error=pb.PredictionError(code=3))]
        return [prediction(request)]

    sidecar = Sidecar(sometimes)
    with serving(sidecar) as address, asking(address) as client:
        client.ask("bad", token_ids=[13])
        client.ask("good", token_ids=[1])
        assert answer_of(client, "good")
        assert client.take("bad") is None
        assert client.counters.failed == 1
        assert sidecar.streams == 1


@pytest.mark.parametrize("probability", [float("nan"), -1.0, 2.0])
def test_a_probability_that_is_none_is_no_answer(probability: float) -> None:
    def broken(request: pb.PredictStreamRequest) -> list[pb.PredictStreamResponse]:
        return [pb.PredictStreamResponse(request_id=request.request_id, prediction=pb.Prediction(probability=probability))]

    with serving(Sidecar(broken)) as address, asking(address) as client:
        client.ask("r", token_ids=[1])
        assert until(lambda: client.counters.failed == 1)
        assert client.take("r") is None


def test_answers_to_nobody_are_ignored() -> None:
    def babble(request: pb.PredictStreamRequest) -> list[pb.PredictStreamResponse]:
        strangers = [pb.PredictStreamResponse(request_id=name) for name in ("", "x", "99999", "²")]
        return [*strangers, prediction(request), prediction(request)]

    with serving(Sidecar(babble)) as address, asking(address) as client:
        client.ask("r", token_ids=[1])
        assert answer_of(client, "r")
        client.ask("s", token_ids=[2])
        assert answer_of(client, "s")
        assert client.counters.answered == 2


@pytest.mark.parametrize(
    "nonsense",
    [
        {"token_ids": None},
        {"token_ids": []},
        {"token_ids": ["text"]},
        {"token_ids": [-1]},
        {"token_ids": [2**32]},
        {"token_ids": [1.5]},
        {"token_ids": [1], "turn_count": "many"},
        {"token_ids": [1], "turn_count": 2**40},
        {"token_ids": [1], "category": 7},
        {"token_ids": [1], "category": "\ud800"},
        {"token_ids": [1], "timeout_s": "soon"},
        {"token_ids": [1], "timeout_s": float("nan")},
    ],
)
def test_nonsense_is_counted_and_the_next_request_is_answered(nonsense: dict) -> None:
    sidecar = Sidecar()
    with serving(sidecar) as address, asking(address) as client:
        client.ask("bad", **nonsense)
        client.ask("good", token_ids=[1])
        assert answer_of(client, "good")
        assert client.take("bad") is None
        assert client.counters.rejected == 1
        assert sidecar.streams == 1


@pytest.mark.parametrize(
    ("nonsense", "bugs"), [({"token_ids": ["a user's text"]}, 1), ({"token_ids": [1], "conversation_id": "\ud800"}, 0)]
)
def test_only_a_request_that_cannot_be_encoded_by_a_bug_is_logged_with_its_frames_and_without_its_text(
    nonsense: dict, bugs: int, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(Sidecar()) as address, asking(address) as client:
        client.ask("bad", **nonsense)
        assert until(lambda: client.counters.rejected == 1)
        assert until(lambda: ("encoding a request" in caplog.text) == bool(bugs))
        assert client.counters.bugs == bugs
        assert ("messages.py" in caplog.text) == bool(bugs) and "a user's text" not in caplog.text


def test_a_request_id_of_any_kind_raises_nothing() -> None:
    with serving(Sidecar()) as address, asking(address) as client:
        for odd in ([], {}, None, 3.5):
            client.ask(odd, token_ids=[1])  # type: ignore[arg-type]
            client.take(odd)  # type: ignore[arg-type]
            client.forget(odd)  # type: ignore[arg-type]


def test_forgetting_a_request_in_flight_cancels_it_at_the_sidecar() -> None:
    sidecar = Sidecar(lambda request: [])
    with serving(sidecar) as address, asking(address) as client:
        client.ask("r", token_ids=[1])
        assert until(lambda: sidecar.requests)
        client.forget("r")
        assert until(lambda: sidecar.cancelled == [sidecar.requests[0].request_id])
        assert client.counters.forgotten == 1
        assert client.waiting == 0


def test_a_request_without_answer_is_late_at_its_deadline() -> None:
    with serving(Sidecar(lambda request: [])) as address, asking(address) as client:
        client.ask("r", token_ids=[1], timeout_s=0.2)
        assert until(lambda: client.counters.late == 1)
        assert client.take("r") is None
        assert client.waiting == 0


def test_requests_over_the_capacity_push_out_the_oldest() -> None:
    with asking(f"127.0.0.1:{free_port()}", capacity=10) as client:
        for n in range(25):
            client.ask(n, token_ids=[1], timeout_s=600)
        assert client.waiting == 10
        assert client.counters.dropped == 15


def test_answers_nobody_takes_are_pushed_out_too() -> None:
    with serving(Sidecar()) as address, asking(address, capacity=10) as client:
        for n in range(25):
            client.ask(n, token_ids=[n + 1])
            assert until(lambda n=n: client.counters.answered == n + 1)
        assert client.take(0) is None
        assert client.take(24) is not None
        assert client.counters.untaken == 15


def test_asking_costs_microseconds_when_nobody_listens() -> None:
    prompt = list(range(8000))
    with asking(f"127.0.0.1:{free_port()}") as client:
        client.ask("first", token_ids=prompt)
        started = time.thread_time()
        for n in range(1000):
            client.ask(n, token_ids=prompt)
            client.take(n)
        # The thread's own processor time: generous tenfold, but a copy of the prompt each would not fit.
        assert (time.thread_time() - started) / 1000 < 100e-6


def test_requests_wait_for_a_sidecar_that_starts_later() -> None:
    address = f"127.0.0.1:{free_port()}"
    with asking(address) as client:
        client.ask("r", token_ids=[5], timeout_s=60)
        assert until(lambda: client.counters.connection_failures)
        assert not client.healthy
        with serving(Sidecar(), address):
            answer = answer_of(client, "r")
            assert answer is not None and answer.probability == 0.005
            assert client.healthy


def test_a_request_in_flight_when_the_stream_breaks_is_sent_again_once() -> None:
    address = f"127.0.0.1:{free_port()}"
    silent, answering = Sidecar(lambda request: []), Sidecar()
    with asking(address) as client:
        with serving(silent, address):
            client.ask("r", token_ids=[5], timeout_s=60)
            assert until(lambda: silent.requests)
        with serving(answering, address):
            assert answer_of(client, "r")
        assert client.counters.reconnects >= 1


def test_a_request_that_breaks_every_stream_is_given_up() -> None:
    def crash(request: pb.PredictStreamRequest) -> list[pb.PredictStreamResponse]:
        if request.conversation.tokens.ids[0] == 13:
            raise RuntimeError("poison")
        return [prediction(request)]

    sidecar = Sidecar(crash)
    with serving(sidecar) as address, asking(address) as client:
        client.ask("poison", token_ids=[13], timeout_s=60)
        assert until(lambda: client.counters.failed == 1)
        client.ask("good", token_ids=[1], timeout_s=60)
        assert answer_of(client, "good")
        assert sum(request.conversation.tokens.ids[0] == 13 for request in sidecar.requests) == 2


def test_what_is_too_long_for_the_sidecar_is_not_sent_and_costs_the_others_nothing() -> None:
    sidecar = Sidecar(most_bytes=4096)
    with serving(sidecar) as address, asking(address) as client:
        client.ask("first", token_ids=[1], timeout_s=60)
        assert answer_of(client, "first")
        client.ask("long", token_ids=[7] * 4096, timeout_s=60)
        client.ask("named", token_ids=[7], conversation_id="x" * 5000, timeout_s=60)
        client.ask("good", token_ids=[1], timeout_s=60)
        assert answer_of(client, "good")
        assert (client.counters.rejected, client.counters.failed, sidecar.streams) == (2, 0, 1)


def test_a_peer_that_accepts_and_never_speaks_is_left_and_deadlines_hold() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as hole,
        asking(f"127.0.0.1:{hole.getsockname()[1]}", connect_timeout_s=0.3) as client,
    ):
        client.ask("r", token_ids=[1], timeout_s=0.5)
        assert until(lambda: client.counters.late == 1)
        assert until(lambda: client.counters.connection_failures >= 2)
        assert client.take("r") is None


def test_a_stream_that_falls_silent_is_left_for_a_new_one() -> None:
    awake = threading.Event()
    sidecar = Sidecar(lambda request: [prediction(request)] if awake.is_set() else [])
    with serving(sidecar) as address, asking(address, silence_s=0.3) as client:
        client.ask("r", token_ids=[1], timeout_s=60)
        assert until(lambda: sidecar.requests)
        awake.set()
        assert answer_of(client, "r")
        assert sidecar.streams == 2


def test_a_quiet_engine_keeps_its_stream() -> None:
    sidecar = Sidecar()
    with serving(sidecar) as address, asking(address, silence_s=0.3) as client:
        client.ask("r", token_ids=[1])
        assert answer_of(client, "r")
        time.sleep(1.0)
        client.ask("s", token_ids=[1])
        assert answer_of(client, "s")
        assert sidecar.streams == 1


def test_a_unix_socket_is_an_address(tmp_path: Path) -> None:
    address = f"unix://{tmp_path}/sidecar.sock"
    with serving(Sidecar(), address), asking(address) as client:
        client.ask("r", token_ids=[1])
        assert answer_of(client, "r")


@pytest.mark.parametrize("address", ["", "no such host:1", "unix:///no/such/socket", "127.0.0.1:99999", "\0"])
def test_an_address_that_leads_nowhere_costs_answers_only(address: str) -> None:
    with asking(address, connect_timeout_s=0.5) as client:
        client.ask("r", token_ids=[1], timeout_s=0.3)
        assert until(lambda: client.counters.late == 1)
        assert not client.healthy


def test_losing_and_finding_the_sidecar_is_one_line_each(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "eviction_client")
    address = f"127.0.0.1:{free_port()}"
    with asking(address) as client:
        assert until(lambda: client.counters.connection_failures >= 3)
        with serving(Sidecar(), address):
            assert until(lambda: client.healthy)
        failures = client.counters.connection_failures
        assert until(lambda: client.counters.connection_failures >= failures + 3)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "WARNING"]


def test_every_request_has_one_fate_through_kills_and_restarts(tmp_path: Path) -> None:
    """A sidecar process killed with kill -9 and restarted, five times, while an engine keeps asking."""
    address = f"127.0.0.1:{free_port()}"
    program = (
        "import sys, grpc; from concurrent import futures; from lpc.v1 import predictor_pb2_grpc as g\n"
        "from tests.integration.test_predictor_client import Sidecar\n"
        "server = grpc.server(futures.ThreadPoolExecutor(4))\n"
        "g.add_ContinuationPredictorServicer_to_server(Sidecar(), server)\n"
        f"server.add_insecure_port('{address}'); server.start(); print('up', flush=True); server.wait_for_termination()\n"
    )

    def start() -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        return process

    asked = 0
    with asking(address, timeout_s=5) as client:
        for _ in range(5):
            process = start()
            try:
                for _ in range(50):
                    client.ask(f"r{asked}", token_ids=[1] * 1000)
                    asked += 1
                before = client.counters.answered
                client.ask(f"r{asked}", token_ids=[1])
                asked += 1
                assert until(lambda before=before: client.counters.answered > before)
            finally:
                process.kill()
                process.communicate()
        assert until(lambda: client.waiting == 0)
        assert fates(client) == client.counters.asked == asked


def test_the_interpreter_ends_without_close() -> None:
    with serving(Sidecar()) as address:
        program = (
            "from eviction_client.predictor_client import PredictorClient\n"
            f"client = PredictorClient('{address}'); client.ask('r', token_ids=[1])\n"
            "import time\n"
            "while client.take('r') is None: time.sleep(0.01)\n"
            "print('answered')\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "answered\n"
    assert "Traceback" not in done.stderr


def test_closing_ends_the_threads_and_later_calls_do_nothing() -> None:
    with serving(Sidecar()) as address:
        client = PredictorClient(address)
        client.ask("r", token_ids=[1])
        assert answer_of(client, "r")
        client.close()
        client.close()
        client.ask("s", token_ids=[1])
        client.forget("s")
        assert client.take("s") is None
        assert until(lambda: not any(thread.name.startswith("lpc-predictor") for thread in threading.enumerate()))
