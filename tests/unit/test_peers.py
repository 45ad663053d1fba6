"""Which sidecars stand behind an address, and which of them an engine chooses."""

from eviction_client.peers import MOST_PEERS, Peer, chosen, may_change, peers_of


def test_what_cannot_change_is_one_peer_as_it_was_written() -> None:
    for address in ("unix:///run/lpc/s.sock", "127.0.0.1:50051", "[::1]:50051", "localhost:50051", "xds:///lpc", "nonsense"):
        assert not may_change(address)
        assert peers_of(address) == [Peer(address)]
        assert peers_of(address)[0].options == ()


def test_a_list_of_addresses_is_a_peer_each() -> None:
    assert peers_of("ipv4:10.0.0.1:5,10.0.0.2:5") == [Peer("ipv4:10.0.0.1:5"), Peer("ipv4:10.0.0.2:5")]


def test_names_with_and_without_a_scheme_are_names() -> None:
    for address in ("predictor:50051", "dns:predictor:50051", "dns:///predictor.lpc.svc:50051"):
        assert may_change(address)


def test_the_address_of_a_name_speaks_as_the_name() -> None:
    """Else its certificate would not fit."""
    options = dict(Peer("ipv4:10.0.0.1:5", "predictor.lpc.svc:5").options)
    assert options == {"grpc.default_authority": "predictor.lpc.svc:5", "grpc.ssl_target_name_override": "predictor.lpc.svc"}


def test_of_many_sidecars_engines_choose_differently_and_keep_to_their_choice() -> None:
    fleet = [Peer(f"ipv4:10.0.0.{n}:5") for n in range(40)]
    counts = dict.fromkeys(fleet, 0)
    for engine in range(400):
        mine = chosen(fleet, str(engine).encode())
        assert len(mine) == MOST_PEERS
        for peer in mine:
            counts[peer] += 1
        assert chosen(list(reversed(fleet)), str(engine).encode()) == mine
        without = chosen([peer for peer in fleet if peer != mine[1]], str(engine).encode())
        assert set(mine) - set(without) == {mine[1]}  # the others stay
    assert min(counts.values()) > 15 and max(counts.values()) < 70  # 40 each, drawn
