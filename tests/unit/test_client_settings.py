import pytest
from pydantic import ValidationError

from eviction_client.settings import ClientSettings


def test_the_environment_sets_what_flags_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LPC_REDIS_URL", "rediss://user:hunter2@redis:6380/0")
    monkeypatch.setenv("LPC_HINTS_SHARE", "0.5")
    monkeypatch.setenv("LPC_PREDICTOR_ADDRESS", "unix:///run/lpc.sock")
    monkeypatch.setenv("LPC_TENANT_FLOORS", "d8bb14d833d59559=0.25, d8bb14d833d5955a=0.5")
    settings = ClientSettings(hints_share=0.7)
    assert settings.tenant_floors == {"d8bb14d833d59559": 0.25, "d8bb14d833d5955a": 0.5}
    assert settings.hints_share == 0.7
    assert settings.predictor_address == "unix:///run/lpc.sock"
    assert settings.redis_url is not None
    assert "hunter2" not in repr(settings)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LPC_HINTS_SHARE", "-0.1"),
        ("LPC_HINTS_SHARE", "nan"),
        ("LPC_REDIS_SHARDS", "0"),
        ("LPC_REDIS_URL", "http://:hunter2@redis"),
        ("LPC_PREDICTOR_ADDRESS", ""),
        ("LPC_TENANT_FLOORS", "hunter2=0.1"),
        ("LPC_TENANT_FLOORS", "d8bb14d833d59559"),
        ("LPC_TENANT_FLOORS", "d8bb14d833d59559=0"),
        ("LPC_TENANT_FLOORS", "d8bb14d833d59559=0.6,d8bb14d833d5955a=0.5"),
    ],
)
def test_a_value_without_meaning_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValidationError) as caught:
        ClientSettings()
    assert name.removeprefix("LPC_").lower() in str(caught.value)
    assert "hunter2" not in str(caught.value)
