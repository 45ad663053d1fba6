"""All sidecars, also after restarts, decide by the same evidence: gates that share a real Redis."""

import contextlib
import random
from collections.abc import AsyncIterator

import pytest

from lpc.wire.redis_connection import Connection
from lpc.wire.redis_reach import RedisAway, RedisReach
from response_cache.keys.canonical import EntryId, Namer, Scope
from response_cache.semantic.evidence import NO_RECORD, Evidence
from response_cache.semantic.gate import Decision, Gate
from response_cache.semantic.ranking import Cluster
from response_cache.store import layout, shared_evidence
from response_cache.store.shared_evidence import SharedEvidence
from testing.processes import RedisServer

SCOPE = Scope(b"s" * 16)
NEAR = 0.999
NAMER = Namer(b"k" * 32)


@pytest.fixture
async def shared(redis_server: RedisServer) -> AsyncIterator[SharedEvidence]:
    reach = RedisReach(Connection(redis_server.url, timeout_s=5.0), "of the test")
    yield SharedEvidence(reach, NAMER, lambda: "encoder")
    await reach.close()


async def exchange(shared: SharedEvidence, *gates: Gate, judged_by: str = "") -> None:
    for gate in gates:
        pending = gate.pending()
        gate.merge(await shared.exchange(SCOPE, judged_by, pending), pending)


def misses(gate: Gate, count: int, name: str, *, same: bool = True, similarity: float = NEAR) -> None:
    for i in range(count):
        question = f"{name} {i}".encode()
        decision = gate.decide(similarity, question)
        if decision is not Decision.SERVE:
            gate.learn(similarity, same=same, decision=decision)


def labels_from_before(count: int = 400) -> Evidence:
    start = Evidence()
    for _ in range(count):
        start.apply([*start.lookup(NEAR), *start.label(NEAR, same=True)])
    return start


async def test_labels_of_two_sidecars_add_up_and_survive_a_restart(shared: SharedEvidence) -> None:
    one, other = Gate(draw=random.Random(1)), Gate(draw=random.Random(2))
    for i in range(8):
        misses(one, 40, f"one {i}")
        misses(other, 40, f"other {i}")
        await exchange(shared, one, other)
    await exchange(shared, one, other)
    assert one.evidence.fields() == other.evidence.fields()
    assert one.evidence.labels > 200
    assert one.threshold is not None and one.threshold == other.threshold
    later = Gate()
    await exchange(shared, later)
    assert later.threshold == one.threshold
    elsewhere = Gate()  # what another judge said is other evidence
    await exchange(shared, elsewhere, judged_by="embedding")
    assert elsewhere.evidence.labels == 0


@pytest.mark.parametrize("start", [False, True])
async def test_drift_in_one_sidecar_shuts_the_scope_in_all_for_good(shared: SharedEvidence, start: bool) -> None:
    one, other = (Gate(start=labels_from_before(), draw=random.Random(seed)) for seed in (1, 2))
    if not start:
        one, other = Gate(draw=random.Random(1)), Gate(draw=random.Random(2))
        misses(one, 500, "clean")
    await exchange(shared, one, other)
    assert one.threshold is not None and other.threshold is not None
    for _ in range(3):
        one.learn(NEAR, same=False, decision=Decision.AUDIT)
    assert one.threshold is None
    other.learn(NEAR, same=True, decision=Decision.AUDIT)
    await exchange(shared, one, other)
    assert other.threshold is None
    assert other.evidence.labels == 0, "a label of before the turn was counted after it"
    misses(other, 5, "anew")
    await exchange(shared, other, one)
    assert one.evidence.labels == 5
    later = Gate(start=labels_from_before() if start else None)
    await exchange(shared, later)
    assert later.threshold is None and later.evidence.labels == 5
    newer = labels_from_before()
    newer.apply(newer.lookup(NEAR))
    measured_anew = Gate(start=newer)
    await exchange(shared, measured_anew)
    assert measured_anew.threshold is not None


async def test_wrong_audits_of_all_sidecars_add_up(shared: SharedEvidence) -> None:
    one, other = (Gate(start=labels_from_before(3000), draw=random.Random(seed)) for seed in (1, 2))
    await exchange(shared, one, other)
    one.learn(NEAR, same=False, decision=Decision.AUDIT)
    assert one.threshold is not None
    await exchange(shared, one, other)
    assert {other.decide(NEAR, b"next %d" % i) for i in range(20)} == {Decision.AUDIT}
    for _ in range(2):
        other.learn(NEAR, same=False, decision=Decision.AUDIT)
    assert other.threshold is None
    await exchange(shared, other, one)
    assert one.threshold is None


async def test_an_exchange_of_evidence_is_not_another_look(shared: SharedEvidence) -> None:
    gate = Gate(draw=random.Random(1))
    opened = []
    for i in range(400):
        misses(gate, 1, f"{i}")
        before = gate.evidence.totals["looks"]
        await exchange(shared, gate)
        opened.append((gate.threshold is not None, before))
    first = next(i for i, (is_open, _) in enumerate(opened) if is_open)
    assert opened[first][1] == opened[first - 1][1] + 1, "it opened without a look"


async def test_a_reset_that_did_not_reach_redis_is_sent_again(shared: SharedEvidence) -> None:
    gate = Gate(start=labels_from_before())
    gate.shut()
    away = RedisReach(Connection("redis://127.0.0.1:1/0", timeout_s=0.2), "of the test")
    pending = gate.pending()
    with pytest.raises(RedisAway):
        await SharedEvidence(away, NAMER).exchange(SCOPE, "", pending)
    gate.restore(pending)
    await away.close()
    await exchange(shared, gate)
    later = Gate(start=labels_from_before())
    await exchange(shared, later)
    assert later.threshold is None


async def counted(shared: SharedEvidence, candidate: EntryId, joins: EntryId | None = None) -> int:
    """Count a label; return the number of earlier ones in its cluster."""
    return sum(labels for labels, _ in await shared.label(SCOPE, "", candidate, 0.999, same=True, joins=joins))


async def test_sidecars_count_clusters_together_and_the_older_half_expires(
    shared: SharedEvidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [EntryId(bytes([i]) * 16) for i in range(60)]
    assert [await counted(shared, names[0], joins=names[1]), await counted(shared, names[1])] == [0, 1]
    assert await counted(shared, names[1], joins=names[2]) == 2
    assert [await counted(shared, names[2]), await counted(shared, names[3])] == [3, 0]
    monkeypatch.setattr(shared_evidence, "CLUSTERED", 20)
    for name in names[10:24]:
        await counted(shared, name)
    assert await counted(shared, names[2]) == 4  # of those before, still known
    for name in names[24:]:
        await counted(shared, name)
    assert await counted(shared, names[3]) == 0


async def test_a_cluster_has_the_record_of_its_entries_by_score(shared: SharedEvidence) -> None:
    one, other, alone = (EntryId(bytes([i]) * 16) for i in range(3))
    assert await shared.label(SCOPE, "", one, 0.999, same=True, joins=other) == NO_RECORD
    earlier = await shared.label(SCOPE, "", other, 0.8, same=False)
    assert earlier == ((1, 0), *NO_RECORD[1:])
    found = await shared.clusters(SCOPE, "", [one, other, alone])
    assert found[0] == found[1] == Cluster(layout.text(one), 2, 1)
    assert found[2] == Cluster(layout.text(alone))
    assert await shared.clusters(SCOPE, "another judge", [one]) == [Cluster(layout.text(one))]


async def test_a_client_that_divides_itself_keeps_the_evidence_of_its_latest_parts_and_others_keep_theirs(
    redis_server: RedisServer,
) -> None:
    reach = RedisReach(Connection(redis_server.url, timeout_s=5.0), "of the test")
    shared = SharedEvidence(reach, NAMER, parts=3)

    async def learn(place: str, part_of: str) -> None:
        gate = Gate()
        misses(gate, 1, place)
        await shared.label(SCOPE, place, EntryId(b"e" * 16), NEAR, same=True, joins=EntryId(place.encode().ljust(16)))
        await shared.exchange(SCOPE, place, gate.pending(), part_of)

    for place in (":quiet", ":client"):
        await learn(place, "")
    await learn(":quiet's part", "quiet")
    for number in range(20):
        await learn(f":part {number}", "loud")
        await learn(":part 0", "loud")
    with contextlib.closing(redis_server.client()) as client:
        left = {key.decode().rpartition(":")[2] for key in client.scan_iter("lpc:rc:*:t:*")}
        clusters = {key.decode().rpartition(":")[2] for key in client.scan_iter("lpc:rc:*:k:*")}
        assert all(client.pttl(key) > 0 for key in client.scan_iter("lpc:rc:*:ot:*"))
    assert left == clusters == {"quiet", "client", "quiet's part", "part 0", "part 18", "part 19"}
    await reach.close()
