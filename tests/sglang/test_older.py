"""A release of SGLang without support for the plug-in. `make sglang-versions` passes its unpacked wheel."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from eviction_client.engines.sglang.versions import find_incompatibility

FOLDER = os.environ.get("LPC_TEST_OLDER_SGLANG")


@pytest.mark.skipif(FOLDER is None, reason="run by `make sglang-versions`")
@pytest.mark.refuses(engine="SGLang", tier="radix cache", what="a release that does not show when requests end: its own LRU")
def test_a_release_that_does_not_report_when_requests_end_is_refused(record_property: Callable[[str, object], None]) -> None:
    release = Path(FOLDER or "")
    record_property("version", release.name)
    assert "checkpoint_into_tree" in (find_incompatibility(release / "sglang") or "")
