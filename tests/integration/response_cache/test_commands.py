"""`lpc cache` against a real sidecar and its Redis."""

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from typer.testing import CliRunner, Result

from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.cache.v1 import response_cache_pb2_grpc as rpc
from lpc_cli.cli import app
from response_cache.bodies import question
from response_cache.semantic.calibration import PairsError, read_pairs
from response_cache.service import servicer
from tests.caching_sidecar import ResponseCaches, response_caches
from tests.eventually import until

BODY = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "It is."}, "finish_reason": "stop"}]}


SCOPES = {
    "default": {},
    "faq": {"kind": "faq"},
    "normal": {"normalised": "serve"},
    "judged": {"mode": "shadow", "similarity": 0.9, "pairs": "text"},
    "digests": {"mode": "shadow", "pairs": "digest"},
}


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory, tiny_models: Path) -> Iterator[ResponseCaches]:
    with response_caches(tmp_path_factory.mktemp("caches"), tiny_models, SCOPES) as made:
        yield made


@pytest.fixture
def stub(caches: ResponseCaches) -> Iterator[rpc.ResponseCacheStub]:
    """A client of the sidecar. Its caches are empty at the start of each test."""
    caches.redis.ask("FLUSHALL")
    with grpc.insecure_channel(caches.sidecar.address) as channel:
        yield rpc.ResponseCacheStub(channel)


def run(caches: ResponseCaches, *words: str) -> Result:
    return CliRunner().invoke(app, ["cache", *words, "--address", caches.sidecar.address], env={"COLUMNS": "200"})


def asked(text: str, scope: str = "faq") -> pb.Request:
    return question({"model": "m", "messages": [{"role": "user", "content": text}], "temperature": 0}, scope=scope)


def store(stub: rpc.ResponseCacheStub, request: pb.Request) -> str:
    stored = stub.Store(
        pb.StoreRequest(request=request, response=pb.Response(body=json.dumps(BODY).encode(), finish_reason="stop"))
    )
    assert stored.stored, stored.refusal
    return stored.entry_id.hex()


def found(stub: rpc.ResponseCacheStub, request: pb.Request) -> bool:
    return stub.Lookup(pb.LookupRequest(request=request)).HasField("hit")


def test_feedback_counts_and_drops(caches: ResponseCaches, stub: rpc.ResponseCacheStub) -> None:
    entry = store(stub, asked("feedback"))
    assert run(caches, "feedback", entry, "--right").output == "counted\n"
    done = run(caches, "feedback", entry, "--wrong", "--drop")
    assert (done.exit_code, done.output) == (0, "counted, and dropped\n")
    assert not found(stub, asked("feedback"))
    for wrong, message in (("zz", "hexadecimal"), ("00" * 40, "no such entry")):
        refused = run(caches, "feedback", wrong)
        assert refused.exit_code != 0 and message in refused.output and "Traceback" not in refused.output
    gone = run(caches, "feedback", entry, "--drop")
    assert gone.exit_code != 0 and "reported wrong before" in gone.output


def test_invalidate_and_purge_remove_the_named_answers_and_no_others(
    caches: ResponseCaches, stub: rpc.ResponseCacheStub
) -> None:
    last = asked("last")
    for gone, erase in ((asked("one", scope="default"), ()), (asked("other", scope="default"), ("--erase",))):
        store(stub, gone)
        store(stub, last)
        assert run(caches, "invalidate", "--scope", "default", *erase).output.startswith("done"), erase
        assert not found(stub, gone) and found(stub, last), erase
    for refused_words in ((), ("--scope", "")):
        assert run(caches, "invalidate", *refused_words).exit_code == 2, refused_words
    refused = CliRunner().invoke(app, ["cache", "purge", "--address", caches.sidecar.address], input="n\n")
    assert refused.exit_code != 0 and found(stub, last)
    assert run(caches, "purge", "--yes").output == "done; 1 deleted\n"
    assert not list(caches.redis.client().scan_iter("lpc:rc:*:e:*"))


def test_report_shows_the_scopes_of_the_client(caches: ResponseCaches, stub: rpc.ResponseCacheStub) -> None:
    store(stub, asked("report"))
    (scope,) = json.loads(run(caches, "report", "--json").stdout)["scopes"]
    assert (scope["scope"], scope["entries"], scope["threshold"], scope["reachable"]) == ("faq", 1, None, True)
    shown = run(caches, "report")
    assert shown.exit_code == 0 and "faq" in shown.output and "off" in shown.output


def test_report_shows_savings_by_day_and_what_each_tier_lacks(
    caches: ResponseCaches, stub: rpc.ResponseCacheStub, tmp_path: Path
) -> None:
    usage = {"prompt_tokens": 2_000_000, "completion_tokens": 500_000, "engine_s": 7200.0}
    response = pb.Response(body=json.dumps(BODY).encode(), finish_reason="stop", **usage)
    entry = stub.Store(pb.StoreRequest(request=asked("savings", "normal"), response=response)).entry_id
    assert found(stub, asked("savings", "normal")) and not found(stub, asked("other", "normal"))
    stub.Lookup(pb.LookupRequest(request=asked("SAVINGS!", "normal")))  # a candidate, without a label yet
    assert stub.Feedback(pb.FeedbackRequest(entry_id=entry, wrong=True)).counted
    words = ("report", "--scope", "normal", "--price", "0.5,2", "--picture", str(tmp_path / "days.png"))
    done = run(caches, *words, "--json")
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    (day,) = figures["days"]
    assert (day["lookups"], day["hits"], day["hit_rate"], day["money"]) == (3, 1, pytest.approx(1 / 3), 2.0)
    assert day["results"] == {"below_threshold": 1, "cold": 1, "exact": 1}
    assert (day["engine_s"], day["reported_wrong"]) == (7200.0, 1)
    normalised = figures["scopes"][0]["tiers"]["normalised"]
    assert normalised["lookups_missing"] >= normalised["labels_needed"] - 1 > 200 and normalised["error_bound"] is None
    assert (tmp_path / "days.png").read_bytes().startswith(b"\x89PNG")
    shown = run(caches, *words).output
    assert "33.3%" in shown and "2.0 h" in shown and "effective labels of" in shown
    assert "No look-ups in these days" in run(caches, "report", "--scope", "faq").output


@pytest.mark.parametrize("price", ["", "1", "1,2,3", "a,b", "-1,2", "nan,1", "1,inf"])
def test_an_invalid_price_is_one_clear_error(caches: ResponseCaches, price: str) -> None:
    refused = run(caches, "report", "--price", price)
    assert refused.exit_code == 2 and "two numbers" in refused.output and "Traceback" not in refused.output


def test_a_report_is_bounded_in_days_and_in_rate(caches: ResponseCaches, stub: rpc.ResponseCacheStub) -> None:
    with pytest.raises(grpc.RpcError) as long:
        stub.Report(pb.ReportRequest(days=101))
    assert long.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.RpcError) as often:
        for _ in range(servicer.REPORTS + 1):
            stub.Report(pb.ReportRequest(days=100))
    assert often.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "Report" in (often.value.details() or "")


def until_pair(stub: rpc.ResponseCacheStub, scope: str) -> None:
    """Ask similar questions until one finds a candidate."""
    store(stub, asked("where is the \x1b[31mlibrary of this town", scope))

    def near() -> bool:
        request = asked("well, where is the \x1b[31mlibrary of this town", scope)
        miss = stub.Lookup(pb.LookupRequest(request=request)).miss
        stub.Store(pb.StoreRequest(request=request, flight=miss.flight, aborted=True))
        return bool(miss.candidate)

    until(near)
    until(lambda: len(stub.Pairs(pb.PairsRequest(scope=scope, most=1)).pairs) == 1)


def test_pairs_are_shown_and_written_for_labels(caches: ResponseCaches, stub: rpc.ResponseCacheStub, tmp_path: Path) -> None:
    until_pair(stub, "judged")
    file = tmp_path / "pairs.jsonl"
    done = run(caches, "pairs", "--scope", "judged", "--pairs", str(file))
    assert done.exit_code == 0, done.output
    assert "well, where is the" in done.output and "\x1b[31m" not in done.output
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (line, *_) = map(json.loads, file.read_text().splitlines())
    assert line["label"] is None and line["a"].startswith("where") and line["b"].startswith("well")
    with pytest.raises(PairsError, match="line 1"):
        read_pairs(file)
    file.write_text(file.read_text().replace("null", "true"))
    assert all(pair.same for pair in read_pairs(file))
    figures = json.loads(run(caches, "pairs", "--scope", "judged", "--json").stdout)
    assert figures["setting"] == "text" and 0.9 <= figures["pairs"][0]["similarity"] <= 1
    until(lambda: "from similarity 0.9 (set), at most" in run(caches, "report", "--scope", "judged").output)


def test_pairs_without_text_or_setting_are_one_clear_error(
    caches: ResponseCaches, stub: rpc.ResponseCacheStub, tmp_path: Path
) -> None:
    until_pair(stub, "digests")
    refused = run(caches, "pairs", "--scope", "digests", "--pairs", str(tmp_path / "pairs.jsonl"))
    assert refused.exit_code == 2 and "digests only" in refused.output and not (tmp_path / "pairs.jsonl").exists()
    shown = run(caches, "pairs", "--scope", "digests")
    assert shown.exit_code == 0 and "library" not in shown.output
    off = run(caches, "pairs", "--scope", "faq")
    assert off.exit_code == 1 and "keeps no pairs" in off.output and "Traceback" not in off.output
    assert run(caches, "pairs").exit_code == 2


@pytest.mark.parametrize("kind", ["labels", "link", "device"])
def test_pairs_replace_no_file(caches: ResponseCaches, stub: rpc.ResponseCacheStub, tmp_path: Path, kind: str) -> None:
    """It may have labels; a device would be no device any more."""
    until_pair(stub, "judged")
    (file := tmp_path / "pairs.jsonl").write_text(labelled := '{"a": "x", "b": "y", "label": true}\n')
    (link := tmp_path / "link").symlink_to("/dev/null" if kind == "device" else file)
    done = run(caches, "pairs", "--scope", "judged", "--pairs", str(file if kind == "labels" else link))
    assert done.exit_code == 2 and "exists" in done.output and "labels" in done.output
    assert file.read_text() == labelled and link.is_symlink()


def test_pairs_of_an_empty_scope_are_refused(caches: ResponseCaches) -> None:
    done = run(caches, "pairs", "--scope", "")
    assert done.exit_code == 2 and "default" in done.output


def test_calls_for_pairs_are_bounded_in_rate(caches: ResponseCaches, stub: rpc.ResponseCacheStub) -> None:
    with pytest.raises(grpc.RpcError) as often:
        for _ in range(servicer.REPORTS + 1):
            stub.Pairs(pb.PairsRequest(scope="faq", most=2**32 - 1))
    assert often.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "Pairs" in (often.value.details() or "")
