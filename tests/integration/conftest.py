"""Fixtures that tests of several services share."""

import pytest

from response_cache.service.embedding import ModelEmbedder

PATIENCE_S = 60.0


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look-ups and stores wait for a question's vector however busy the machine is: without one nothing is similar."""
    vector_in_time = ModelEmbedder.vector_in_time

    async def wait(self: ModelEmbedder, text: str, patience_s: float) -> object:
        return await vector_in_time(self, text, PATIENCE_S)

    monkeypatch.setattr(ModelEmbedder, "vector_in_time", wait)
