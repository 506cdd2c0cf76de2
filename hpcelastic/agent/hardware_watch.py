"""Watches the hardware of this node while its workers train, in a thread, because a driver may hang."""

import threading
from collections.abc import Callable, Iterator, Mapping

from hpcelastic.health.amd import amd_gpus
from hpcelastic.health.clock import ClockSteps
from hpcelastic.health.gpus import AMD_DEVICE, device_files, given_gpus
from hpcelastic.health.hardware import HardwareFinding, Source
from hpcelastic.health.infiniband import InfiniBandPorts
from hpcelastic.health.nvidia import nvidia_gpus


def sources_of(environ: Mapping[str, str]) -> Mapping[str, Callable[[], Source]]:
    """Return what makes each source of a node whose workers have the environment ``environ``, by its name."""
    makers: dict[str, Callable[[], Source]] = {"clock": ClockSteps, "InfiniBand": InfiniBandPorts}
    if given_gpus(environ) or device_files():
        makers["GPUs"] = lambda: nvidia_gpus(environ)
    if AMD_DEVICE.exists():
        makers["GPUs of AMD"] = lambda: amd_gpus(environ)
    return makers


class HardwareWatch:
    """Looks at the hardware every ``interval`` seconds; never if it is 0.

    ``found`` is called with each finding, and ``report`` with a line for each source that cannot be watched, or not any
    more. Both are called in the thread.
    """

    def __init__(
        self,
        sources: Mapping[str, Callable[[], Source]],
        interval: float,
        found: Callable[[HardwareFinding], None],
        report: Callable[[str], None],
    ) -> None:
        self._makers, self._interval, self._found, self._report = sources, interval, found, report
        self._end = threading.Event()
        if interval > 0:
            threading.Thread(target=self._run, name="hardware", daemon=True).start()

    def close(self) -> None:
        """End the watch. This does not wait for a driver that hangs."""
        self._end.set()

    def _run(self) -> None:
        looks = {name: self._looks(name, make) for name, make in self._makers.items()}
        while looks and not self._end.is_set():
            looks = {name: look for name, look in looks.items() if next(look, False)}
            self._end.wait(self._interval)

    def _looks(self, name: str, make: Callable[[], Source]) -> Iterator[bool]:
        """Look at a source at each iteration, and yield True. End if it fails, which must not end the agent."""
        try:
            source = make()
            while True:
                for finding in source.look():
                    self._found(finding)
                yield True
        except Exception as error:
            self._report(f"{name} of this node cannot be watched: {type(error).__name__}: {error}")
