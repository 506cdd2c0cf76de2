"""A worker writes the stack of its main thread at a signal, and survives that."""

import os
import signal
import subprocess
import sys
import time

from hpcelastic.ipc.stack_memory import SIGNAL, StackMemory

WORKER = """
import sys, threading, time
from hpcelastic.worker.fork_server_main import _register_stacks

def dig(depth):
    return depth and dig(depth - 1)

def work():
    pause = threading.Event()
    while True:
        dig(50)
        pause.wait(0.0005)

def wait_for_data():
    print("up", flush=True)
    time.sleep(600)

_register_stacks(sys.argv[1])
for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
wait_for_data()
"""
SIGNALS = 1000
"""A handler that reads the stacks of threads that run crashes the process within about 200 of them."""


def test_a_worker_survives_many_requests_while_its_threads_run() -> None:
    memory = StackMemory()
    process = subprocess.Popen([sys.executable, "-c", WORKER, memory.variable], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        for _ in range(SIGNALS):
            memory.clear()
            os.kill(process.pid, SIGNAL)
            time.sleep(0.001)
        deadline, stacks = time.monotonic() + 60, ""
        while "in <module>" not in stacks or "in work" in stacks:
            # A request that comes before the main thread has executed the last one is executed by another thread.
            memory.clear()
            os.kill(process.pid, SIGNAL)
            time.sleep(0.1)
            stacks = memory.read()
            assert process.poll() is None, f"ended with {process.poll()}"
            assert time.monotonic() < deadline, stacks
        assert "in wait_for_data" in stacks
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        memory.close()
