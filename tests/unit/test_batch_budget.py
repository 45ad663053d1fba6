"""How large a batch may be: by what batches take, and by what the process is given."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor_service.batching.budget import TokenBudget, measured
from predictor_service.batching.memory import MIB, MemoryGiven, memory_given, peak_during

LENGTH, MOST = 512, 32_768


class Machine:
    """Holds `base` bytes, and `each` more for every conversation of the largest batch that it ran; at most `limit`."""

    def __init__(self, base: int, each: int, limit: float = float("inf")) -> None:
        self.base, self.each, self.limit = base, each, limit
        self.ran: list[int] = []

    def run(self, items: int) -> None:
        if self.base + items * self.each > self.limit:
            raise MemoryError("too much")
        self.ran.append(items)

    @property
    def held(self) -> int:
        return self.base + self.each * max(self.ran, default=0)

    def peak(self, work: Callable[[], object]) -> int:
        work()
        return self.held

    def budget(self, room: int | None) -> int:
        return measured(self.run, LENGTH, MOST, room, now=lambda: self.held, peak=self.peak)


@given(base=st.integers(0, 1000), each=st.integers(1, 500), room=st.integers(0, 20_000))
def test_the_largest_batch_has_run_within_the_room_and_twice_as_much_would_not_fit(base: int, each: int, room: int) -> None:
    machine = Machine(base * MIB, each * MIB)
    items = machine.budget(room * MIB) // LENGTH
    assert 1 <= items <= MOST // LENGTH
    if base + each > room:
        assert items == 1
    else:
        assert base + items * each <= room
        assert items in machine.ran
        assert items == MOST // LENGTH or base + 2 * items * each > room
    assert all(base + ran * each <= room for ran in machine.ran if ran > 1), "it never ran what would not fit"


@given(each=st.integers(1, 500), limit=st.integers(1, 20_000))
def test_without_a_limit_what_fails_is_too_much(each: int, limit: int) -> None:
    """As in CUDA's arena, which refuses what is over its bound."""
    machine = Machine(0, each, limit)
    items = machine.budget(None) // LENGTH
    assert items == 1 or items * each <= limit
    assert items == MOST // LENGTH or 2 * items * each > limit


def test_a_limit_that_holds_no_conversation_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert Machine(900 * MIB, 200 * MIB).budget(1000 * MIB) == LENGTH
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "1100 MiB, and 1,000 MiB may be used: raise the memory limit" in record.getMessage()


def test_a_batch_that_did_not_fit_halves_the_budget() -> None:
    budget = TokenBudget(4096)
    budget.shrink(3000)
    assert budget.tokens == 1500
    budget.shrink(4000)
    assert budget.tokens == 1500


def tree(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("0::/", {"memory.max": "2147483648\n"}, 2**31),
        ("0::/", {"memory.max": "max\n"}, None),
        ("0::/pod/me", {"pod/memory.max": "1000000\n", "pod/me/memory.max": "2000000\n"}, 1_000_000),
        ("0::/../elsewhere", {"memory.max": "3000000\n"}, 3_000_000),
        ("4:memory:/pod/me\n0::/", {"memory/pod/me/memory.limit_in_bytes": "5000000\n"}, 5_000_000),
        ("4:memory:/on/the/host", {"memory/memory.limit_in_bytes": "6000000\n"}, 6_000_000),
        ("4:memory:/", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        ("3:cpu,cpuacct:/", {"memory.max": "7\n"}, None),
    ],
)
def test_the_limit_is_that_of_the_cgroup(tmp_path: Path, cgroup: str, files: dict[str, str], expected: int | None) -> None:
    tree(tmp_path, {"proc/cgroup": f"{cgroup}\n", **{f"fs/{name}": text for name, text in files.items()}})
    found = memory_given(proc=tmp_path / "proc", cgroups=tmp_path / "fs")
    assert (found.bytes if found else None) == expected


def test_the_operators_own_limit_counts_where_it_is_tighter(tmp_path: Path) -> None:
    tree(tmp_path, {"proc/cgroup": "0::/\n", "fs/memory.max": f"{100 * MIB}\n"})
    places = {"proc": tmp_path / "proc", "cgroups": tmp_path / "fs"}
    assert memory_given(50, **places) == MemoryGiven(50 * MIB, "LPC_MEMORY_MIB")
    assert memory_given(200, **places) == MemoryGiven(100 * MIB, "the cgroup's limit")
    assert memory_given(proc=tmp_path / "nowhere", cgroups=tmp_path) is None


def test_the_peak_is_what_was_held_meanwhile() -> None:
    import time

    def work() -> None:
        block = bytearray(200 * MIB)
        block[::4096] = b"1" * len(block[::4096])
        time.sleep(0.1)

    before = peak_during(lambda: None)
    assert peak_during(work) - before > 150 * MIB
