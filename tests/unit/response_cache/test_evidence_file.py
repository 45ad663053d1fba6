"""Files of verdicts and evidence: several processes, damaged contents, interrupted writers."""

import json
import multiprocessing
import multiprocessing.synchronize
from pathlib import Path

import pytest

from lpc.files import LockedError, locked
from response_cache.semantic import evidence_file
from response_cache.semantic.evidence import Evidence
from response_cache.semantic.evidence_file import EvidenceError, Verdicts, read_evidence, read_judge_error, write_evidence
from tests.eventually import patiently
from tests.full_disk import fill

ROUNDS = 50


def note_together(folder: Path, own: str, together: "multiprocessing.synchronize.Barrier") -> None:
    for number in range(ROUNDS):
        verdicts = Verdicts(folder / f"{number}.json")
        together.wait(patiently())
        assert verdicts.grow(own, {"turned": number + 1})
        verdicts.write()


def test_two_sidecars_that_share_a_file_of_verdicts_lose_none(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(2)
    processes = [context.Process(target=note_together, args=(tmp_path, own, together)) for own in ("a", "b")]
    for process in processes:
        process.start()
    for process in processes:
        process.join(patiently())
    assert [process.exitcode for process in processes] == [0, 0]
    for number in range(ROUNDS):
        assert json.loads((tmp_path / f"{number}.json").read_text()) == {own: {"turned": number + 1} for own in "ab"}


def test_a_number_that_could_not_be_written_is_written_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "verdicts.json"
    verdicts = Verdicts(path)
    path.unlink()
    path.mkdir()
    assert verdicts.grow("k", {"turned": 1})
    verdicts.write()
    assert "cannot store a verdict" in caplog.text and verdicts.of("k") == {"turned": 1}
    path.rmdir()
    assert verdicts.grow("k", {"turned": 1})  # nothing is larger, but the file lacks it
    verdicts.write()
    assert not verdicts.grow("k", {"turned": 1})
    assert Verdicts(path).of("k") == {"turned": 1}


def test_a_client_that_divides_itself_does_not_fill_the_file_and_its_latest_verdicts_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence_file, "PARTS", 3)
    path = tmp_path / "verdicts.json"
    one, other = Verdicts(path), Verdicts(path)
    one.grow("quiet", {"turned": 1})
    one.grow("quiet's part", {"turned": 2}, "quiet")
    for number in range(20):
        for verdicts in (one, other):
            verdicts.grow(f"part {number}", {"turned": number + 1}, "loud")
            verdicts.grow("part 0", {"turned": 1}, "loud")
            verdicts.write()
    for verdicts in (one, other, Verdicts(path)):
        known = {key: verdicts.of(key) for key in ("quiet", "quiet's part", "part 0", "part 17", "part 18", "part 19")}
        turned = {key: numbers.get("turned") for key, numbers in known.items()}
        assert turned == {"quiet": 1, "quiet's part": 2, "part 0": 1, "part 17": None, "part 18": 19, "part 19": 20}
    assert len(json.loads(path.read_text())) == 5


def test_a_verdict_of_an_earlier_release_grows(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.json"
    path.write_text('{"part": {"turned": 1}}')
    verdicts = Verdicts(path)
    assert verdicts.grow("part", {"turned": 2}, "client")
    verdicts.write()
    assert Verdicts(path).of("part") == {"turned": 2} and len(json.loads(path.read_text())) == 1


def test_a_lock_that_another_process_holds_ends_in_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with locked(path), pytest.raises(LockedError, match="another process changes"), locked(path, wait_s=0.0):
        pass
    with locked(path, wait_s=0.0):  # it is released
        pass


@pytest.mark.parametrize("amount", ["1e999", "NaN", "-1", "1e30", "true", "1" + 50 * "0", '"5"', "null"])
def test_a_count_that_is_not_one_makes_a_file_of_evidence_invalid(tmp_path: Path, amount: str) -> None:
    path = tmp_path / "evidence.json"
    write_evidence(path, Evidence(), "encoder")
    text = json.dumps(
        json.loads(path.read_text()) | {"counts": {"0:1:same": "?"}, "judge": {"false_same": "?", "different": "?"}}
    )
    path.write_text(text.replace('"?"', amount))
    with pytest.raises(EvidenceError):
        read_evidence(path, "encoder")
    with pytest.raises(EvidenceError):
        read_judge_error(path, "encoder")


def test_verdicts_on_a_full_disk_stay_in_memory_and_are_written_when_it_has_space(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = small_disk / "verdicts.json"
    verdicts = Verdicts(place)
    verdicts.grow("key", {"turned": 7})
    verdicts.write()
    ballast = fill(small_disk)
    grown = {f"key {number}": {"turned": number} for number in range(1, 400)}
    for key, numbers in grown.items():
        assert verdicts.grow(key, numbers)
    verdicts.write()
    assert caplog.messages == [
        f"cannot store a verdict on evidence in {place} (No space left on device): check LPC_STATE; it is tried again"
    ]
    assert json.loads(place.read_text()) == {"key": {"turned": 7}}
    with pytest.raises(EvidenceError, match=f"{place} cannot be written .No space left on device.: free space there"):
        Verdicts(place)  # a start could not keep what it learns
    ballast.unlink()
    verdicts.write()
    assert json.loads(place.read_text()) == {"key": {"turned": 7}, **grown}
    assert sorted(path.name for path in small_disk.iterdir()) == [".verdicts.json.lock", "verdicts.json"]


def test_evidence_on_a_full_disk_is_as_before_and_the_error_names_the_file(small_disk: Path) -> None:
    place = small_disk / "evidence.json"
    write_evidence(place, Evidence(), "encoder")
    before = place.read_bytes()
    fill(small_disk)
    with pytest.raises(OSError, match="No space left on device") as error:
        write_evidence(place, Evidence(), "another")
    assert error.value.filename == str(place) and place.read_bytes() == before
