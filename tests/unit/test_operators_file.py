"""The file by which an operator forces LRU: another local user cannot create one that counts."""

import os
from pathlib import Path

import pytest

from eviction_client.operators_file import OperatorsFile

STRANGER = 65533


def as_strangers(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.lchown(path, STRANGER, STRANGER)


def test_a_file_of_the_engines_user_counts_until_it_is_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    switch = OperatorsFile(tmp_path / "lru")
    assert not switch.on()
    (tmp_path / "lru").touch()
    assert switch.on()
    (tmp_path / "lru").unlink()
    assert not switch.on() and not caplog.records


def test_a_file_of_another_user_is_ignored_with_one_warning_until_it_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    switch = OperatorsFile(tmp_path / "lru")
    (tmp_path / "lru").touch()
    as_strangers(tmp_path / "lru")
    assert not switch.on() and not switch.on()
    assert len(caplog.records) == 1 and f"belongs to user {STRANGER}" in caplog.text
    (tmp_path / "lru").unlink()
    (tmp_path / "lru").touch()
    assert switch.on()


def test_another_users_link_to_a_file_of_root_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "roots").touch()
    (tmp_path / "lru").symlink_to(tmp_path / "roots")
    as_strangers(tmp_path / "lru")
    assert not OperatorsFile(tmp_path / "lru").on()
    assert "belongs to user" in caplog.text


def test_a_second_name_of_a_file_of_root_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "roots").touch()
    (tmp_path / "lru").hardlink_to(tmp_path / "roots")
    assert not OperatorsFile(tmp_path / "lru").on()
    assert "hard links" in caplog.text


@pytest.mark.parametrize("path", ["a\0b", "x" * 5_000, "/proc/self/nothing/lru"])
def test_a_path_that_cannot_exist_does_not_raise(path: str) -> None:
    assert not OperatorsFile(Path(path)).on()
