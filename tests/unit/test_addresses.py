"""Hosts and addresses in settings, IPv6 with and without brackets, and what an error says."""

import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge
from pydantic import ValidationError

from eviction_client.settings import ClientSettings
from lpc.wire.access import is_loopback, stays_on_this_machine
from lpc.wire.addresses import bare, parted, target, url_with_brackets, with_port
from lpc.wire.listening import MOST_SCRAPES, ListenError, listen, serve_metrics
from response_cache.gateway.settings import GatewaySettings
from tests.eventually import patiently, until


def own_scoped() -> Iterator[str]:
    """Yield this machine's link-local addresses with their zones."""
    for line in Path("/proc/net/if_inet6").read_text().splitlines():
        digits, _, _, _, _, name = line.split()
        if digits.startswith("fe80"):
            yield ":".join(digits[at : at + 4] for at in range(0, 32, 4)) + "%" + name


@pytest.mark.parametrize(
    ("written", "host"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("localhost", "localhost"),
        ("my_host.svc.cluster.local", "my_host.svc.cluster.local"),
        ("::", "::"),
        ("[::]", "::"),
        ("::1", "::1"),
        ("[::1]", "::1"),
        ("fe80::1%lo", "fe80::1%lo"),
        ("[fe80::1%lo]", "fe80::1%lo"),
        ("[fe80::1%25lo]", "fe80::1%lo"),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.1"),
    ],
)
def test_a_host_is_kept_without_brackets(written: str, host: str) -> None:
    assert bare(written) == host == GatewaySettings(host=written).host == GatewaySettings(metrics_host=written).metrics_host
    assert parted(with_port(written, 80)) == (host, 80)


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("", "is empty"),
        ("*", "use :: for all"),
        ("[::", "not an IPv6 address"),
        ("::1]", "not an IPv6 address"),
        ("[127.0.0.1]", "not an IPv6 address"),
        ("[]", "not an IPv6 address"),
        ("::1::2", "not an IPv6 address"),
        ("127.0.0.1:8080", "set the port by its own setting"),
        ("[::1]:8080", "not an IPv6 address"),
        ("http://a", "not an IPv6 address"),
        ("a b", "not a host name"),
    ],
)
def test_an_invalid_host_is_refused_with_what_is_wrong(written: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        bare(written)
    with pytest.raises(ValidationError, match=why):
        GatewaySettings(host=written)


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("sidecar:50051", "sidecar:50051"),
        ("[::1]:50051", "[::1]:50051"),
        ("::1:50051", "[::1]:50051"),
        ("fe80::1%eth0:50051", "[fe80::1%eth0]:50051"),
        ("[fe80::1%25eth0]:50051", "[fe80::1%eth0]:50051"),
        ("2001:db8::7:8080", "[2001:db8::7]:8080"),
        ("unix:///run/lpc.sock", "unix:///run/lpc.sock"),
        ("unix:/run/a:b:c", "unix:/run/a:b:c"),
        ("dns:///sidecar:50051", "dns:///sidecar:50051"),
        ("ipv6:[::1]:50051", "ipv6:[::1]:50051"),
    ],
)
def test_an_address_for_grpc_has_brackets_around_ipv6(written: str, address: str) -> None:
    assert target(written) == address == ClientSettings(predictor_address=written).predictor_address


@pytest.mark.parametrize("written", ["::1", "2001:db8::1:", "[::1]:", "[::1", "[::1]:99999", "a:b:1"])
def test_an_ipv6_address_without_a_port_is_refused(written: str) -> None:
    with pytest.raises(ValidationError, match=r"such as \[::1\]:50051"):
        ClientSettings(predictor_address=written)


def test_an_ipv6_loopback_address_stays_on_this_machine() -> None:
    assert all(map(stays_on_this_machine, ("[::1]:1", "::1:50051", "127.0.0.1:1", "localhost:1", "unix:///a")))
    assert not any(map(stays_on_this_machine, ("[::]:1", "[::2]:1", "sidecar:1", "::1", "")))
    assert is_loopback("[::1]") and is_loopback("::1") and not is_loopback("::")


def test_engines_urls_may_have_ipv6_addresses_in_both_forms() -> None:
    urls = "http://[::1]:8000, http://::2:8000/prefix, https://[::3], http://[fe80::1%25eth0]:8000"
    expected = ("http://[::1]:8000", "http://[::2]:8000/prefix", "https://[::3]", "http://[fe80::1%eth0]:8000")
    assert GatewaySettings(gateway_engines=urls).gateway_engines == expected
    assert url_with_brackets("http://engine:8000/a") == "http://engine:8000/a"
    for wrong in ("http://::1", "http://[::1", "http://[::g]:1"):
        with pytest.raises(ValidationError, match="gateway_engines"):
            GatewaySettings(gateway_engines=wrong)


@pytest.mark.parametrize("written", ["::1", "[::1]", "127.0.0.1", "localhost", "0.0.0.0", "::", "[::]"])
def test_it_listens_on_both_forms(written: str) -> None:
    with listen(written, 0) as listener:
        port = listener.getsockname()[1]
        socket.create_connection((bare(written), port), 10).close()


def test_all_addresses_of_ipv6_accept_ipv4_as_well() -> None:
    with listen("[::]", 0) as listener:
        port = listener.getsockname()[1]
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, port), 10).close()


def test_it_listens_on_a_link_local_address_with_its_zone() -> None:
    addresses = [*own_scoped()]
    if not addresses:
        pytest.skip("this machine has no link-local IPv6 address")
    for written in (addresses[0], f"[{addresses[0]}]"):
        with listen(written, 0) as listener:
            socket.create_connection((addresses[0], listener.getsockname()[1]), 10).close()


def test_an_error_says_what_is_wrong_and_which_setting_to_change() -> None:
    with listen("::1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=rf"^cannot listen on \[::1\]:{port} \(Address already in use\): .*LPC_PORT$"):
            listen("[::1]", port)
        with pytest.raises(ListenError, match=r"\(Address already in use\): choose another port with .* LPC_METRICS_PORT$"):
            serve_metrics(CollectorRegistry(), "::1", port).__enter__()
    for host, why in (("2001:db8::1", "Cannot assign requested address"), ("nowhere.invalid", ""), ("[::1", "not an IPv6")):
        with pytest.raises(ListenError, match=rf"{why}.*: choose another address with --host or LPC_HOST$"):
            listen(host, 0)


@pytest.mark.parametrize("host", ["::1", "[::1]", "127.0.0.1", "[::]"])
def test_silent_connections_do_not_keep_metrics_from_being_read(host: str) -> None:
    registry = CollectorRegistry()
    Gauge("up", "Up.", registry=registry).set(1)
    before = threading.active_count()
    with serve_metrics(registry, host, 0) as port, ExitStack() as stack:
        place = "::1" if ":" in host else host
        for number in range(4 * MOST_SCRAPES):
            half = stack.enter_context(socket.create_connection((place, port), 10))
            half.sendall(b"GET /metrics HTTP/1.1\r\nhalf: " if number % 2 else b"")
        text = urllib.request.urlopen(f"http://{with_port(place, port)}/metrics", timeout=patiently()).read()
        assert b"up 1.0" in text
        assert until(lambda: threading.active_count() <= before + MOST_SCRAPES + 1, 60)
