"""The client against real gRPC servers that answer, err, stay silent, and die."""

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import ClassVar

import grpc
import pytest

from eviction_client import PredictorClient, SidecarPrediction
from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc
from testing.processes import free_port
from tests.eventually import patiently, until

Answer = Callable[[pb.PredictRequest, grpc.ServicerContext], pb.PredictResponse]
IMPATIENT = (
    ("grpc.keepalive_time_ms", 200),
    ("grpc.keepalive_timeout_ms", 200),
    ("grpc.http2.ping_timeout_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 500),
)
"""Options of a channel that gives a silent sidecar up at once."""


def prediction(request: pb.PredictRequest, context: object = None) -> pb.PredictResponse:
    """Answer with a probability that identifies the prompt: its first id, in thousandths."""
    ids = request.conversation.tokens.ids
    return pb.PredictResponse(prediction=pb.Prediction(probability=ids[0] / 1000, model_version="v1", turn_count=len(ids)))


class Sidecar(predictor_pb2_grpc.ContinuationPredictorServicer):
    """Answers each request with what ``answer`` makes of it, and remembers what it got."""

    def __init__(self, answer: Answer = prediction) -> None:
        self.answer = answer
        self.requests: list[pb.PredictRequest] = []
        self.cancelled = 0
        self.awake = threading.Event()

    def GetModelInfo(self, request, context):  # noqa: N802 - gRPC's name
        return pb.GetModelInfoResponse(model_version="v1")

    def Predict(self, request, context):  # noqa: N802 - gRPC's name
        self.requests.append(request)
        return self.answer(request, context)

    def stay_silent(self, request: pb.PredictRequest, context: grpc.ServicerContext) -> pb.PredictResponse:
        """Answer when ``awake`` is set, or never."""

        def ended() -> None:
            self.cancelled += 1
            self.awake.set()

        context.add_callback(ended)
        self.awake.wait(patiently())
        return prediction(request)


def silent() -> Sidecar:
    """A sidecar that does not answer until it is awake."""
    sidecar = Sidecar()
    sidecar.answer = sidecar.stay_silent
    return sidecar


def refusing(code: grpc.StatusCode) -> Answer:
    """An answer that is an error."""

    def answer(request: pb.PredictRequest, context: grpc.ServicerContext) -> pb.PredictResponse:
        context.abort(code, "no")
        raise AssertionError

    return answer


@contextlib.contextmanager
def serving(sidecar: Sidecar, address: str | None = None, grace_s: float = 0.0) -> Iterator[str]:
    server = grpc.server(
        futures.ThreadPoolExecutor(8),
        options=(
            ("grpc.so_reuseport", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", 100),
            ("grpc.max_receive_message_length", 64 * 2**10),
        ),
    )
    predictor_pb2_grpc.add_ContinuationPredictorServicer_to_server(sidecar, server)
    address = address or f"127.0.0.1:{free_port()}"
    assert server.add_insecure_port(address)
    server.start()
    try:
        yield address
    finally:
        server.stop(grace_s).wait()
        sidecar.awake.set()


@contextlib.contextmanager
def asking(address: str, **options) -> Iterator[PredictorClient]:
    client = PredictorClient(address, served_model="a-model", **options)
    try:
        yield client
    finally:
        client.close()


def answer_of(client: PredictorClient, request_id: str, timeout: float = 15.0) -> SidecarPrediction | None:
    found: list[SidecarPrediction] = []

    def taken() -> bool:
        answer = client.take(request_id)
        if answer is not None:
            found.append(answer)
        return bool(found)

    with contextlib.suppress(AssertionError):
        until(taken, timeout)
    return found[0] if found else None


def test_an_answer_belongs_to_the_request_that_asked() -> None:
    with serving(Sidecar()) as address, asking(address) as client:
        for n in range(1, 200):
            client.ask(f"r{n}", token_ids=[n, 7, 150_000], turn_count=3)
        for n in range(1, 200):
            answer = answer_of(client, f"r{n}")
            assert answer is not None and answer.probability == n / 1000 and answer.turn_count == 3
        assert client.counters.answered == client.counters.ended == 199
        assert client.waiting == 0


def test_the_request_carries_what_the_engine_knows_and_not_its_request_id() -> None:
    sidecar = Sidecar()
    with serving(sidecar) as address, asking(address) as client:
        client.ask("secret-id", token_ids=[1, 2**32 - 1], turn_count=4, category="agent", conversation_id="c", timeout_s=3)
        assert answer_of(client, "secret-id")
    (request,) = sidecar.requests
    assert list(request.conversation.tokens.ids) == [1, 2**32 - 1]
    assert request.conversation.tokens.served_model == "a-model"
    assert (request.conversation.turn_count, request.conversation.category) == (4, "agent")
    assert "secret-id" not in str(request)


@pytest.mark.parametrize(
    ("code", "fate"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, "failed"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "refused"),
        (grpc.StatusCode.UNIMPLEMENTED, "failed"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "late"),
    ],
)
def test_an_error_counts_by_its_status_and_costs_the_next_request_nothing(code: grpc.StatusCode, fate: str) -> None:
    sidecar = Sidecar(refusing(code))
    with serving(sidecar) as address, asking(address) as client:
        client.ask("bad", token_ids=[13])
        assert until(lambda: getattr(client.counters, fate) == 1)
        assert client.take("bad") is None
        sidecar.answer = prediction
        client.ask("good", token_ids=[1])
        assert answer_of(client, "good")


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
        assert client.counters.failed + client.counters.late == 1


@pytest.mark.parametrize("name", ["\ud800", "m\x1b[2J", "x" * 257, "x\n" * 2**20])
def test_a_name_that_the_sidecar_would_refuse_is_sent_as_one_that_it_accepts(name: str) -> None:
    sidecar = Sidecar()
    with serving(sidecar) as address, asking(address) as client:
        client.ask("r", token_ids=[1], category=name, served_model=name)
        assert answer_of(client, "r")
    (request,) = sidecar.requests
    for sent in (request.conversation.category, request.conversation.tokens.served_model):
        assert sent == name.replace("\ud800", "\\ud800").replace("\x1b", "\\x1b").replace("\n", "\\n")[:256]


@pytest.mark.parametrize(
    ("nonsense", "bugs"), [({"token_ids": ["a user's text"]}, 1), ({"token_ids": [1], "conversation_id": "\ud800"}, 0)]
)
def test_a_bug_in_encoding_is_logged_with_frames_and_without_text(
    nonsense: dict, bugs: int, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(Sidecar()) as address, asking(address) as client:
        client.ask("bad", **nonsense)
        assert until(lambda: client.counters.failed == 1)
        assert until(lambda: ("encoding a request" in caplog.text) == bool(bugs))
        assert ("messages.py" in caplog.text) == bool(bugs) and "a user's text" not in caplog.text


def test_forgetting_a_request_in_flight_cancels_it_at_the_sidecar() -> None:
    sidecar = silent()
    with serving(sidecar) as address, asking(address) as client:
        client.ask("r", token_ids=[1])
        assert until(lambda: sidecar.requests)
        client.forget("r")
        assert until(lambda: sidecar.cancelled)
        assert client.counters.forgotten == client.counters.ended == 1
        assert client.waiting == 0


def test_asking_again_under_the_same_id_forgets_the_first_request() -> None:
    with serving(Sidecar()) as address, asking(address) as client:
        for n in (1, 2):
            client.ask("r", token_ids=[n])
        assert until(lambda: client.counters.ended == 2)
        answer = client.take("r")
        assert answer is not None and answer.probability == 0.002
        assert client.take("r") is None


def test_a_request_without_answer_is_late_at_its_deadline() -> None:
    with serving(silent()) as address, asking(address) as client:
        client.ask("r", token_ids=[1], timeout_s=0.2)
        assert until(lambda: client.counters.late == 1)
        assert client.take("r") is None
        assert client.waiting == 0


def test_requests_over_the_capacity_push_out_the_oldest() -> None:
    with asking(f"127.0.0.1:{free_port()}", capacity=10) as client:
        for n in range(25):
            client.ask(n, token_ids=[1], timeout_s=600)
        assert client.waiting == 10
        assert client.counters.late == 15


def test_asking_reads_no_prompt_in_the_callers_thread() -> None:
    class Prompt(list[int]):
        read_by: ClassVar[set[int]] = set()

        def __iter__(self) -> Iterator[int]:
            self.read_by.add(threading.get_ident())
            return super().__iter__()

    with serving(Sidecar()) as address, asking(address) as client:
        client.ask("r", token_ids=Prompt([5]))
        assert answer_of(client, "r") is not None
    assert threading.get_ident() not in Prompt.read_by


def test_requests_wait_for_a_sidecar_that_starts_later() -> None:
    address = f"127.0.0.1:{free_port()}"
    with asking(address) as client:
        client.ask("r", token_ids=[5], timeout_s=60)
        assert until(lambda: client.reached is False)
        assert not client.healthy
        with serving(Sidecar(), address):
            answer = answer_of(client, "r")
            assert answer is not None and answer.probability == 0.005
            assert client.healthy


def test_a_request_in_flight_when_its_sidecar_dies_is_asked_again_once() -> None:
    address = f"127.0.0.1:{free_port()}"
    first, second = silent(), Sidecar()
    with asking(address) as client:
        with serving(first, address):
            client.ask("r", token_ids=[5], timeout_s=60)
            assert until(lambda: first.requests)
        with serving(second, address):
            assert answer_of(client, "r")
    assert len(second.requests) == 1


def test_a_request_that_breaks_each_sidecar_is_given_up() -> None:
    def crash(request: pb.PredictRequest, context: grpc.ServicerContext) -> pb.PredictResponse:
        if request.conversation.tokens.ids[0] == 13:
            context.abort(grpc.StatusCode.UNAVAILABLE, "poison")
        return prediction(request)

    sidecar = Sidecar(crash)
    with serving(sidecar) as address, asking(address) as client:
        client.ask("poison", token_ids=[13], timeout_s=60)
        assert until(lambda: client.counters.failed == 1)
        client.ask("good", token_ids=[1], timeout_s=60)
        assert answer_of(client, "good")
        assert sum(request.conversation.tokens.ids[0] == 13 for request in sidecar.requests) == 2


def test_a_request_that_one_sidecar_refuses_goes_to_another() -> None:
    full, idle = Sidecar(refusing(grpc.StatusCode.RESOURCE_EXHAUSTED)), Sidecar()
    with serving(full) as one, serving(idle) as two, asking(f"ipv4:{one},{two}") as client:
        early = itertools.count()

        def answered() -> bool:
            name = f"early {next(early)}"
            client.ask(name, token_ids=[1])
            return answer_of(client, name, 0.5) is not None

        assert until(answered), "the second sidecar was never connected"
        before = len(idle.requests)
        for n in range(20):
            client.ask(n, token_ids=[n + 1])
            assert answer_of(client, n)  # type: ignore[arg-type]
    assert full.requests and len(idle.requests) == before + 20


def test_a_request_too_long_for_the_sidecar_costs_the_others_nothing() -> None:
    sidecar = Sidecar()
    with serving(sidecar) as address, asking(address) as client:
        client.ask("long", token_ids=[7] * 20_000, timeout_s=60)
        client.ask("named", token_ids=[7], conversation_id="x" * 70_000, timeout_s=60)
        client.ask("good", token_ids=[1], timeout_s=60)
        assert answer_of(client, "good")
        assert until(lambda: client.counters.refused == 2)
    assert len(sidecar.requests) == 1


def test_a_peer_that_accepts_and_never_speaks_is_not_healthy_and_deadlines_hold() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as hole,
        asking(f"127.0.0.1:{hole.getsockname()[1]}", options=IMPATIENT) as client,
    ):
        client.ask("r", token_ids=[1], timeout_s=0.5)
        assert until(lambda: client.counters.late == 1)
        assert until(lambda: client.reached is False)
        assert client.take("r") is None


PROGRAM = """
import sys, grpc
from concurrent import futures
from lpc.v1 import predictor_pb2_grpc
from tests.integration.test_predictor_client import Sidecar
options = (("grpc.so_reuseport", 0), ("grpc.http2.min_ping_interval_without_data_ms", 100))
server = grpc.server(futures.ThreadPoolExecutor(4), options=options)
predictor_pb2_grpc.add_ContinuationPredictorServicer_to_server(Sidecar(), server)
server.add_insecure_port(sys.argv[1])
server.start()
print("up", flush=True)
server.wait_for_termination()
"""


@contextlib.contextmanager
def process(address: str) -> Iterator[subprocess.Popen[str]]:
    """A sidecar in a process of its own, killed at the end."""
    started = subprocess.Popen([sys.executable, "-c", PROGRAM, address], stdout=subprocess.PIPE, text=True)
    try:
        assert started.stdout is not None and started.stdout.readline() == "up\n"
        yield started
    finally:
        started.kill()
        started.communicate()


def test_a_sidecar_that_freezes_is_left_and_the_other_one_answers() -> None:
    """The frozen one's system still takes connections; nothing is ever said on them."""
    frozen, other = f"127.0.0.1:{free_port()}", Sidecar()
    with (
        process(frozen) as sidecar,
        serving(other) as address,
        asking(f"ipv4:{frozen},{address}", options=IMPATIENT, timeout_s=3) as client,
    ):
        for n in range(10):
            client.ask(n, token_ids=[1])
        assert until(lambda: client.counters.answered == 10)
        os.kill(sidecar.pid, signal.SIGSTOP)
        numbers = iter(range(10, 10_000))

        def ten_in_a_row() -> bool:
            before = client.counters
            for _ in range(10):
                client.ask(next(numbers), token_ids=[1])
            assert until(lambda: not client.waiting)
            return client.counters.answered - before.answered == 10 and client.counters.late == before.late

        assert until(ten_in_a_row, 60)
        assert client.counters.late <= 10


def test_a_sidecar_that_is_stopped_in_order_loses_nothing() -> None:
    """As in a rolling update: a new one serves, the old one answers what it has and goes."""
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    with asking(f"ipv4:{addresses[0]},{addresses[1]}", timeout_s=30) as client, contextlib.ExitStack() as stack:
        first = stack.enter_context(contextlib.ExitStack())
        first.enter_context(serving(Sidecar(), addresses[0], grace_s=5))
        asked = 0
        for n in range(200):
            client.ask(n, token_ids=[1])
            asked += 1
            if n == 50:
                stack.enter_context(serving(Sidecar(), addresses[1]))
            if n == 100:
                first.close()
            time.sleep(0.005)
        assert until(lambda: client.counters.ended == asked, 30)
        assert client.counters.answered == asked


@pytest.mark.parametrize("address", ["", "no such host:1", "unix:///no/such/socket", "127.0.0.1:99999", "\0"])
def test_an_address_that_leads_nowhere_costs_answers_only(address: str) -> None:
    with asking(address) as client:
        client.ask("r", token_ids=[1], timeout_s=0.3)
        assert until(lambda: client.counters.ended == 1)
        assert not client.healthy


def test_losing_and_finding_the_sidecar_is_one_line_each(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eviction_client.transport.channel.RETRY_S", 0.05)
    caplog.set_level("INFO", "eviction_client")
    address = f"127.0.0.1:{free_port()}"
    probes = 0
    with asking(address, probe_s=0.05) as client:
        assert until(lambda: client.reached is False)
        with serving(Sidecar(), address):
            assert until(lambda: client.healthy)
        assert until(lambda: not client.healthy)
        probes = client._channel._probed_at
        assert until(lambda: client._channel._probed_at > probes)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "WARNING"]


def test_the_interpreter_ends_without_close() -> None:
    with serving(Sidecar()) as address:
        program = (
            "from eviction_client.transport.client import PredictorClient\n"
            f"client = PredictorClient('{address}'); client.ask('r', token_ids=[1])\n"
            "import time\n"
            "while client.take('r') is None: time.sleep(0.01)\n"
            "print('answered')\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=patiently(), check=True)
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
