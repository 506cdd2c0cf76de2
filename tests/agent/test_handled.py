"""Handlers of signals, for as long as a block lasts."""

import os
import signal
import threading

from hpcelastic.agent.signals import signal_handlers


def test_within_the_block_signals_come_and_afterwards_go_where_they_went() -> None:
    before, came = signal.getsignal(signal.SIGUSR1), []
    with signal_handlers({signal.SIGUSR1: lambda signum, _: came.append(signum), signal.SIGUSR2: signal.SIG_IGN}):
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR2)
    assert came == [signal.SIGUSR1]
    assert signal.getsignal(signal.SIGUSR1) == before


def test_in_another_thread_nothing_is_changed() -> None:
    seen = []

    def act() -> None:
        with signal_handlers({signal.SIGUSR1: signal.SIG_IGN}):
            seen.append(signal.getsignal(signal.SIGUSR1))

    thread = threading.Thread(target=act)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGUSR1)]
