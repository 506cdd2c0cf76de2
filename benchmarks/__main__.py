"""Run benchmarks and write docs/performance.md: ``python -m benchmarks [--quick] [--render] [NAME ...]``.

Without names, all benchmarks run. ``--quick`` takes minutes and only prints its results. ``--render`` measures nothing
and writes the page from the results that are kept as JSON.
"""

import argparse
import importlib
import json
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks import machine, plot, report

NAMES = (
    "recovery",
    "scale",
    "operations",
    "agent_cost",
    "restart",
    "resume",
    "register",
    "torch_store",
    "meeting",
    "stopping",
    "keep",
    "watching",
    "silent_node",
    "hangs",
    "preflight",
    "why",
    "telling",
    "gpu",
)
PAGE = machine.CHECKOUT / "docs" / "performance.md"
RESULTS = machine.CHECKOUT / "docs" / "performance"


def measured(name: str, quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Run one benchmark and return its results and the machine."""
    if not quick:
        machine.await_idle(say)
    here = machine.document(machine.this_machine())
    module = importlib.import_module(f"benchmarks.{name}")
    return {"machine": here, "results": module.measure(module.QUICK if quick else module.Parameters(), say)}


def tables(name: str, document: Mapping[str, Any]) -> list[report.Table]:
    found: list[report.Table] = importlib.import_module(f"benchmarks.{name}").tables(document["results"])
    return found


def section(name: str, document: Mapping[str, Any]) -> str:
    """Return the page's section of one benchmark."""
    where = machine.described(machine.Machine(**document["machine"]))
    picture = f"![Phases and totals of each recovery](performance/{name}.svg)\n" if name == "recovery" else ""
    return "\n".join(filter(None, [f"{where}\n", picture, *map(report.markdown, tables(name, document))]))


def keep(name: str, document: Mapping[str, Any]) -> None:
    """Write the results, the diagram and the page's section."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    if name == "recovery":
        plot.recovery(document["results"], RESULTS / f"{name}.svg")
    PAGE.write_text(report.spliced(PAGE.read_text(), name, section(name, document)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--quick", action="store_true", help="small parameters; nothing is written")
    parser.add_argument("--render", action="store_true", help="measure nothing; write the page from stored results")
    args = parser.parse_args()
    if unknown := set(args.names) - set(NAMES):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}; choose from {', '.join(NAMES)}")
    if not (args.quick or args.render) and (changed := machine.changed_files()):
        parser.error(f"results name the commit, and {changed[0]} has uncommitted changes; commit them, or use --quick")
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))  # what runs is stopped then
    for name in args.names or NAMES:
        kept = RESULTS / f"{name}.json"
        if args.render and not kept.exists():
            print(f"{name}: no stored results; run this benchmark without --render first", file=sys.stderr)
            continue
        document = json.loads(kept.read_text()) if args.render else measured(name, args.quick, _say)
        print("\n" + "\n".join(map(report.plain, tables(name, document))), flush=True)
        if not args.quick and document["results"].get("runs", True):  # otherwise keep the results of another machine
            keep(name, document)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
