"""The sockets that are shut down at the end of a round."""

import socket
import sys
import threading

import pytest
import torch.distributed as dist

from hpcelastic.training.process_groups import ProcessGroups, has_process_group


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> ProcessGroups:
    import torch.distributed.distributed_c10d as c10d

    monkeypatch.setattr(c10d, "_new_process_group_helper", c10d._new_process_group_helper)
    return ProcessGroups()


def test_a_communicator_that_waits_for_a_peer_ends(groups: ProcessGroups) -> None:
    with socket.create_server(("127.0.0.1", 0)) as of_script, groups.connecting():
        with socket.create_server(("127.0.0.1", 0)) as of_nccl:
            raised: list[OSError] = []
            waits = threading.Thread(target=_accept, args=(of_nccl, raised))
            waits.start()
            groups.end_collectives(0)
            waits.join(30)
            assert raised
        with socket.create_connection(of_script.getsockname()):
            of_script.accept()[0].close()


def test_sockets_that_listen_stay_after_the_communicator_exists(groups: ProcessGroups) -> None:
    with groups.connecting():
        server = socket.create_server(("127.0.0.1", 0))
    with server:
        groups.end_collectives(0)
        with socket.create_connection(server.getsockname()):
            server.accept()[0].close()


def test_a_group_that_cannot_be_shut_down_is_forgotten(groups: ProcessGroups, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: object) -> None:
        raise RuntimeError("NCCL error: remote process exited")

    hook = sys.excepthook
    with monkeypatch.context() as patched:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
        dist.new_group()
        patched.setattr(dist.ProcessGroup, "shutdown", fails)
        groups.destroy(failed=True)
    assert not has_process_group()
    assert sys.excepthook is hook
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    assert dist.get_rank(dist.new_group()) == 0
    groups.destroy(failed=False)
    assert not has_process_group()


def _accept(server: socket.socket, raised: list[OSError]) -> None:
    try:
        server.accept()
    except OSError as error:
        raised.append(error)
