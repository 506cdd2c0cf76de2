import pytest

from hpcelastic.network.settings import NetworkSettings, is_network


@pytest.mark.parametrize("interface", [None, "ib0", "enp1s0f0.100", "10.1.0.0/16", "10.1.2.3/16", "fd00::/64"])
def test_an_interface_is_a_name_or_a_network(interface: str | None) -> None:
    assert NetworkSettings(interface).interface == interface


@pytest.mark.parametrize("interface", ["", "ib 0", "10.1.0.0/33", "ib0/16", "a-name-that-is-too-long"])
def test_other_values_are_refused(interface: str) -> None:
    with pytest.raises(ValueError, match=r"network\.interface is .*; name an interface such as ib0, or a network"):
        NetworkSettings(interface)


@pytest.mark.parametrize(
    ("ports", "numbers"), [(None, range(0)), ("29500-29509", range(29500, 29510)), ("1-65535", range(1, 65536))]
)
def test_ports_are_a_range(ports: str | None, numbers: range) -> None:
    assert NetworkSettings(ports=ports).port_range == numbers


@pytest.mark.parametrize("ports", ["", "29500", "29500-29500", "29600-29500", "0-10", "65530-65536", "a-b", "1-2-3"])
def test_other_ports_are_refused(ports: str) -> None:
    with pytest.raises(ValueError, match=r"network\.ports is .*; write the first and the last port, at least 2 in all"):
        NetworkSettings(ports=ports)


@pytest.mark.parametrize("rate", [0, 1, 10**5])
def test_a_rate_is_a_number_or_no_limit(rate: int) -> None:
    assert NetworkSettings(snapshot_rate=rate).snapshot_rate == rate


def test_a_negative_rate_is_refused() -> None:
    with pytest.raises(ValueError, match=r"network\.snapshot_rate is -1; write a number of MiB per second, or 0 for"):
        NetworkSettings(snapshot_rate=-1)


@pytest.mark.parametrize(
    ("text", "network"), [("10.1.0.0/16", True), ("fd00::/64", True), ("ib0", False), ("10.1.2.3", False)]
)
def test_a_network_is_compared_by_its_bits(text: str, network: bool) -> None:
    assert is_network(text) == network
