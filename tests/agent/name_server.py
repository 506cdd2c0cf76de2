"""Serves a round's store where the name server never answers, and prints how often it was asked.

It runs in network and mount namespaces of its own. The first number is that of the store server of an agent. The second
one is that of a server whose environment does not prevent questions.
"""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping

from hpcelastic.agent.store_server import STORE_SERVER_MODULE, store_server_environment

FILES = {
    "/etc/resolv.conf": "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n",
    "/etc/nsswitch.conf": "hosts: dns\n",
}
CLIENT = """
import sys, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False, wait_for_workers=False)
store.set("key", "value")
assert store.get("key") == b"value"
"""


def questions(environ: Mapping[str, str], silent: Mapping[str, str], name_server: socket.socket) -> int:
    """Let three connections and a client meet in a server with ``environ``. Return how often it has asked for a name.

    The client has the environment ``silent``, with which it asks for none.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    port, fd = listener.getsockname()[1], listener.fileno()
    command = [sys.executable, "-m", STORE_SERVER_MODULE, str(fd)]
    server = subprocess.Popen(command, env=environ, pass_fds=(fd,), stderr=subprocess.PIPE)
    listener.close()
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        subprocess.run([sys.executable, "-c", CLIENT, str(port)], env=silent, check=True, stderr=subprocess.DEVNULL)
    server.kill()
    _, output = server.communicate()
    assert not output, output
    asked = 0
    with contextlib.suppress(BlockingIOError):
        while name_server.recv(4096):
            asked += 1
    return asked


def main() -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for path, text in FILES.items():
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(text)
            file.flush()
            os.chmod(file.name, 0o644)
            subprocess.run(["mount", "--bind", file.name, path], check=True)
    name_server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    name_server.bind(("127.0.0.1", 53))
    name_server.setblocking(False)
    silent = store_server_environment(os.environ)
    asking = {name: value for name, value in silent.items() if name != "RES_OPTIONS"}
    print(questions(silent, silent, name_server), questions(asking, silent, name_server))


if __name__ == "__main__":
    main()
