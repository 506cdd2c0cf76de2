"""The address of a node: that of the configured interface, or one that others can reach."""

import socket
from collections.abc import Callable

import pytest

from hpcelastic.agent import address
from hpcelastic.agent.address import Interface, interfaces, own_address
from hpcelastic.errors import ConfigError

LO = Interface("lo", "127.0.0.1")
LO6 = Interface("lo", "::1")
ETH = Interface("eth0", "10.0.0.7")
IB = Interface("ib0", "10.1.0.7")
IB2 = Interface("ib0", "10.2.0.7")
ETH6 = Interface("eth0", "fd00::7")
NEAR6 = Interface("eth0", "fe80::7")
NEAR = Interface("idrac", "169.254.0.2")

Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Replace the interfaces of this machine, and the source addresses of its routes by prefix."""

    def made(*here: Interface, **routes: str) -> None:
        class Probe(socket.socket):
            def connect(self, peer: tuple[str, int]) -> None:  # type: ignore[override]  # as it is used
                self._ours = next((ours for prefix, ours in table.items() if peer[0].startswith(prefix)), "")
                if not self._ours:
                    raise OSError(101, "Network is unreachable")

            def getsockname(self) -> tuple[str, int]:
                return self._ours, 1

        table = {{"v4": "192.0.2.", "v6": "2001:db8::", "lo": "127."}.get(to, to): ours for to, ours in routes.items()}
        monkeypatch.setattr(address, "interfaces", lambda: list(here))
        monkeypatch.setattr("hpcelastic.agent.address.socket.socket", Probe)

    return made


def test_the_address_is_one_of_this_machine() -> None:
    ours = own_address()
    assert ours in [one.address for one in interfaces()]
    with socket.socket(socket.AF_INET6 if ":" in ours else socket.AF_INET) as server:
        server.bind((ours, 0))


def test_the_kernel_lists_all_addresses() -> None:
    found = interfaces()
    assert LO in found
    assert {one.name for one in found} <= {name for _, name in socket.if_nameindex()}
    for one in found:
        assert ipv(one.address)


def ipv(text: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)


# Without a configured interface

FOUND = {
    "the address of the default route": ([LO, ETH, IB], {"v4": "10.1.0.7"}, "10.1.0.7"),
    "the first without a route": ([LO, IB, ETH], {}, "10.1.0.7"),
    "no loopback": ([LO, Interface("dummy", "127.8.0.1"), ETH], {}, "10.0.0.7"),
    "no link-local": ([LO, NEAR, ETH], {}, "10.0.0.7"),
    "IPv4 before IPv6": ([LO, ETH, LO6, ETH6], {"v6": "fd00::7"}, "10.0.0.7"),
    "IPv6 by route": ([LO, LO6, NEAR6, ETH6], {"v6": "fd00::8"}, "fd00::8"),
    "IPv6 without a route": ([LO, LO6, NEAR6, ETH6], {}, "fd00::7"),
    "loopback if there is no other": ([LO, LO6, NEAR6], {}, "127.0.0.1"),
    "no interface": ([], {}, "127.0.0.1"),
}


@pytest.mark.parametrize(("here", "routes", "expected"), FOUND.values(), ids=FOUND.keys())
def test_the_address_without_a_configured_interface(
    machine: Machine, here: list[Interface], routes: dict[str, str], expected: str
) -> None:
    machine(*here, **routes)
    assert own_address() == expected


LAUNCHED = {
    "the address of the route to the launcher": ("10.1.0.1", "10.1.0.7"),
    "over IPv6": ("fd00::1", "fd00::7"),
    "a launcher on the loopback": ("127.0.0.1", "10.0.0.7"),
    "a launcher without a route": ("172.16.0.1", "10.0.0.7"),
    "nor a name": ("login1", "10.0.0.7"),
    "no launcher": ("", "10.0.0.7"),
}


@pytest.mark.parametrize(("launcher", "expected"), LAUNCHED.values(), ids=LAUNCHED.keys())
def test_the_route_to_the_launcher_determines_the_address(machine: Machine, launcher: str, expected: str) -> None:
    machine(LO, ETH, IB, ETH6, v4="10.0.0.7", lo="127.0.0.1", **{"10.1.": "10.1.0.7", "fd00:": "fd00::7"})
    assert own_address(launcher=launcher) == expected


# With a configured interface

ASKED = {
    "name": ("ib0", "10.1.0.7"),
    "network": ("10.2.0.0/16", "10.2.0.7"),
    "network given by an address in it": ("10.2.9.9/16", "10.2.0.7"),
    "one address": ("10.0.0.7/32", "10.0.0.7"),
    "IPv6 network": ("fd00::/64", "fd00::7"),
    "configured loopback": ("lo", "127.0.0.1"),
    "IPv6 only": ("eth6", "fd00::9"),
    "link-local if there is no other": ("idrac", "169.254.0.2"),
}


@pytest.mark.parametrize(("interface", "expected"), ASKED.values(), ids=ASKED.keys())
def test_the_configured_interface(machine: Machine, interface: str, expected: str) -> None:
    eth6 = [Interface("eth6", "fe80::9"), Interface("eth6", "fd00::9")]
    machine(LO, ETH, IB, IB2, NEAR, LO6, NEAR6, ETH6, *eth6, v4="10.0.0.7")
    assert own_address(interface, launcher="192.0.2.9") == expected


@pytest.mark.parametrize("interface", ["ib1", "10.9.0.0/16", "fd01::/64"])
def test_a_missing_interface_is_refused_with_the_existing_ones(
    machine: Machine, interface: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(LO, ETH, ETH6, v4="10.0.0.7")
    monkeypatch.setattr("os.uname", lambda: type("Names", (), {"nodename": "n7"}))
    with pytest.raises(ConfigError) as caught:
        own_address(interface)
    assert str(caught.value) == (
        f"network.interface is {interface}, and n7 has no such interface with an address; "
        "it has lo 127.0.0.1, eth0 10.0.0.7, eth0 fd00::7"
    )
