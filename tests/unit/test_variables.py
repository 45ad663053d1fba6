"""A typing error in a variable's name is said, with the name that was meant; what others set is left alone."""

import re

from eviction_client.settings import ClientSettings
from lpc.wire.server_settings import ServerSettings
from lpc.wire.variables import CACHE, ENGINE, GATEWAY, LMCACHE, SERVER, SIDECAR, unknown_variables
from lpc_apps.lmcache.settings import LMCacheSettings
from predictor_service.settings import ServiceSettings
from response_cache.gateway.settings import GatewaySettings
from response_cache.service.settings import CacheSettings


def test_the_names_are_those_of_the_settings_objects() -> None:
    """A setting that is added must be named in lpc/wire/variables.py too."""
    server = set(re.findall(r"\w+", SERVER))
    assert server == set(ServerSettings.model_fields)
    assert set(re.findall(r"\w+", SIDECAR)) == set(ServiceSettings.model_fields) - server
    assert set(re.findall(r"\w+", CACHE)) == set(CacheSettings.model_fields) - set(ServiceSettings.model_fields)
    assert set(re.findall(r"\w+", ENGINE)) == set(ClientSettings.model_fields)
    assert set(re.findall(r"\w+", GATEWAY)) == set(GatewaySettings.model_fields) - server
    assert set(re.findall(r"\w+", LMCACHE)) == {f"lmcache_{name}" for name in LMCacheSettings.model_fields}


def test_a_misspelt_variable_is_reported_with_the_most_similar_name() -> None:
    found = unknown_variables({"LPC_REDIS_ULR": "redis://r", "LPC_SERVED_MODLES": "{}", "PATH": "/bin"})
    assert found == [
        "LPC_REDIS_ULR is not a setting: did you mean LPC_REDIS_URL?",
        "LPC_SERVED_MODLES is not a setting: did you mean LPC_SERVED_MODELS?",
    ]


def test_variables_of_kubernetes_services_are_not_reported() -> None:
    links = {
        "LPC_PREDICTOR_SERVICE_HOST": "10.0.0.1",
        "LPC_PREDICTOR_SERVICE_PORT": "50051",
        "LPC_PREDICTOR_SERVICE_PORT_GRPC": "50051",
        "LPC_PREDICTOR_PORT": "tcp://10.0.0.1:50051",
        "LPC_PREDICTOR_PORT_50051_TCP_ADDR": "10.0.0.1",
    }
    assert unknown_variables(links) == []
    assert unknown_variables({"LPC_METRIC_PORT": "9"}) == ["LPC_METRIC_PORT is not a setting: did you mean LPC_METRICS_PORT?"]
