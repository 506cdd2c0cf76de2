"""Handlers of signals within a block."""

import os
import signal
import threading

from hpcelastic.agent.signals import signal_handlers


def test_handlers_are_set_within_the_block_and_restored_afterwards() -> None:
    before, came = signal.getsignal(signal.SIGUSR1), []
    with signal_handlers({signal.SIGUSR1: lambda signum, _: came.append(signum), signal.SIGUSR2: signal.SIG_IGN}):
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR2)
    assert came == [signal.SIGUSR1]
    assert signal.getsignal(signal.SIGUSR1) == before


def test_in_another_thread_no_handler_is_set() -> None:
    seen = []

    def act() -> None:
        with signal_handlers({signal.SIGUSR1: signal.SIG_IGN}):
            seen.append(signal.getsignal(signal.SIGUSR1))

    thread = threading.Thread(target=act)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGUSR1)]
