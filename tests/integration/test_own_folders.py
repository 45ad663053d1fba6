"""Folders of the Unix socket that another user made first: a sidecar does not start with them."""

import os
from pathlib import Path
from typing import Any

import pytest

from predictor_service.errors import StartError
from predictor_service.own_folder import ForeignFolder, make_own
from predictor_service.server import running
from predictor_service.settings import ServiceSettings

STRANGER = 10_002

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder to another user takes the rights of root")


async def refusal(models: Path, **settings: Any) -> str:
    values = {"models": models, "model": "tiny", "port": 0, "metrics_port": None, "unix_socket": None, "threads": 1}
    with pytest.raises(StartError) as caught:
        async with running(ServiceSettings(**{**values, **settings})):
            pass
    return str(caught.value)


@pytest.mark.parametrize("place", ["folder", "above", "link"])
async def test_a_folder_that_another_user_made_is_refused(tiny_models: Path, tmp_path: Path, place: str) -> None:
    folder = tmp_path / "lpc-0" / "inner"
    if place == "link":
        folder.parent.mkdir()
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
        os.lchown(folder, STRANGER, STRANGER)
    else:
        folder.mkdir(parents=True)
        os.chown(folder if place == "folder" else folder.parent, STRANGER, STRANGER)
    said = await refusal(tiny_models, unix_socket=folder / "predictor.sock")
    assert f"belongs to user {STRANGER}" in said and "choose another folder with LPC_UNIX_SOCKET" in said


async def test_the_folder_that_it_makes_is_its_own(tiny_models: Path, tmp_path: Path) -> None:
    socket = tmp_path / "run" / "s.sock"
    settings = ServiceSettings(
        models=tiny_models,
        model="tiny",
        port=0,
        metrics_port=None,
        unix_socket=socket,
        threads=1,
    )
    for _ in range(2):
        async with running(settings):
            assert socket.parent.stat().st_mode & 0o777 == 0o700


def test_a_folder_open_to_all_users_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(tmp_path, STRANGER, STRANGER)
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    make_own(tmp_path)
    tmp_path.chmod(0o777)
    with pytest.raises(ForeignFolder, match="every user can write to "):
        make_own(tmp_path)
