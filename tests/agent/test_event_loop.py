"""The waits of an agent for file descriptors."""

import os
from collections.abc import Iterator

import pytest

from hpcelastic.agent.event_loop import EventLoop
from hpcelastic.ipc.readiness import readable

MONTH = 30 * 86_400.0


class Pipe:
    """A pipe, which is readable once something was written."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def fileno(self) -> int:
        return self._read

    def fill(self) -> None:
        os.write(self._write, b"x")

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


@pytest.fixture
def pipes() -> Iterator[list[Pipe]]:
    made = [Pipe(), Pipe()]
    yield made
    for pipe in made:
        pipe.close()


def test_the_sources_that_are_readable_are_known(pipes: list[Pipe]) -> None:
    assert readable(pipes, 0) == readable([], 0) == set()
    pipes[1].fill()
    assert readable(pipes, None) == readable([pipes[1].fileno()], 0) == {pipes[1].fileno()}


@pytest.mark.usefixtures("high_descriptors")
def test_a_process_with_many_descriptors_can_wait() -> None:
    pipe = Pipe()
    assert pipe.fileno() > 1023
    pipe.fill()
    assert readable([pipe], None) == {pipe.fileno()}
    pipe.close()


def test_a_wait_may_last_for_a_month(pipes: list[Pipe]) -> None:
    pipes[0].fill()
    assert readable(pipes, MONTH) == {pipes[0].fileno()}
    loop, handled = EventLoop(), []
    loop.watch(pipes[0], lambda: handled.append(0))
    loop.turn(MONTH, first=pipes[0])
    assert handled == [0]
