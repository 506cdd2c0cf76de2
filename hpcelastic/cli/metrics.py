"""``hpcelastic metrics``: metrics of runs for Prometheus."""

import argparse
import sys
import threading
import time
from pathlib import Path

from hpcelastic.cli.find import add_runs, find_all
from hpcelastic.cli.parser import number_of
from hpcelastic.errors import ConfigError

_FILE = "hpcelastic.prom"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_runs(parser)
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--textfile", metavar="DIR", help=f"write {_FILE} there, for the textfile collector of node_exporter"
    )
    where.add_argument("--listen", metavar="[HOST:]PORT", help="serve the metrics over HTTP until Ctrl-C")
    parser.add_argument(
        "--every",
        type=number_of("seconds"),
        metavar="S",
        help="write the file again after so many seconds, until Ctrl-C (default: once)",
    )


def run(args: argparse.Namespace) -> int:
    try:
        from prometheus_client import generate_latest, start_http_server, write_to_textfile
    except ImportError as error:
        raise ConfigError(
            "the metrics need the package prometheus-client: pip install 'hpcelastic[metrics]'"
        ) from error
    from hpcelastic.api.metrics import registry_of  # it needs the package too

    registry = registry_of(find_all(args))
    if args.listen:
        host, port = _address(args.listen)
        start_http_server(port, host, registry)
        print(f"metrics at http://{host}:{port}/metrics", file=sys.stderr, flush=True)
        threading.Event().wait()
    if not args.textfile:
        print(generate_latest(registry).decode(), end="")
        return 0
    path = Path(args.textfile) / _FILE
    write_to_textfile(str(path), registry)
    print(path, flush=True)
    while args.every is not None:
        time.sleep(args.every)
        try:
            write_to_textfile(str(path), registry)
        except OSError as error:  # the disk may be full for a while
            print(f"hpcelastic metrics: {path}: {error.strerror}", file=sys.stderr, flush=True)
    return 0


def _address(text: str) -> tuple[str, int]:
    """Return the host and the port in ``[HOST:]PORT``. Without a host, only this machine is served."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"--listen {text}: {port or 'nothing'} is no port; write PORT or HOST:PORT, such as 9400")
    return host.strip("[]") or "127.0.0.1", int(port)
