import json
from pathlib import Path

import pytest

from lpc.errors import UsageError
from lpc_apps.lmcache.coordinator import TESTED, find_incompatibility, with_controller
from lpc_apps.lmcache.settings import LMCacheSettings, LMCacheUnfit


def test_the_in_process_mode_is_refused_in_every_release() -> None:
    reason = find_incompatibility(TESTED[0], "LMCacheConnectorV1")
    assert reason is not None
    assert "MP mode" in reason


def test_the_controller_is_added_to_the_operators() -> None:
    assert with_controller(None) == {"controller_packages": ["lpc_apps.lmcache.controller"]}
    named = with_controller(json.dumps({"controller_packages": ["mine"], "other": 1}))
    assert named == {"controller_packages": ["mine", "lpc_apps.lmcache.controller"], "other": 1}
    assert with_controller(json.dumps(named)) == named


@pytest.mark.parametrize("raw", ["[1]", "{", '{"controller_packages": "mine"}'])
def test_a_malformed_extra_config_is_refused(raw: str) -> None:
    with pytest.raises(UsageError, match="extra-config"):
        with_controller(raw)


def test_the_token_comes_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("  s3cret\n")
    assert LMCacheSettings(token_file=file).token() == "s3cret"
    assert LMCacheSettings().token() is None
    file.write_text("\n")
    with pytest.raises(LMCacheUnfit, match="empty"):
        LMCacheSettings(token_file=file).token()
    with pytest.raises(LMCacheUnfit, match="cannot read"):
        LMCacheSettings(token_file=file.parent / "none").token()
    file.write_bytes(b"\xff")
    with pytest.raises(LMCacheUnfit, match="not text"):
        LMCacheSettings(token_file=file).token()
