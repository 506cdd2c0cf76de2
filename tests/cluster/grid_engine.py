"""A Grid Engine cluster in a temporary directory: a host with the master, and nodes with an execution daemon each."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.availability import why_no_hosts
from tests.cluster.errors import ClusterError
from tests.cluster.host import Host
from tests.cluster.site import Site, site, start_on
from tests.cluster.waiting import wait_until

ENVIRONMENT = "elastic"
"""The parallel environment: one slot on each node."""

_ROOT, _LIB, _SHARE = Path("/var/lib/gridengine"), Path("/usr/lib/gridengine"), Path("/usr/share/gridengine")
_MASTER = "qmaster"
_TIMEOUT = 60.0

_BOOTSTRAP = """\
admin_user none
default_domain none
ignore_fqdn true
spooling_method classic
spooling_lib libspoolc
spooling_params {common};{spool}/qmaster
binary_path /usr/sbin
qmaster_spool_dir {spool}/qmaster
security_mode none
listener_threads 2
worker_threads 2
scheduler_threads 1
"""

_SETTINGS = {
    "min_uid": "0",
    "min_gid": "0",
    "load_report_time": "00:00:01",
    "max_unheard": "00:00:10",
    "mailer": "/bin/true",
    "loglevel": "log_info",
}
"""Settings that differ from the defaults of the package."""

_PARALLEL = f"""\
pe_name {ENVIRONMENT}
slots 999
user_lists NONE
xuser_lists NONE
start_proc_args NONE
stop_proc_args NONE
allocation_rule 1
control_slaves TRUE
job_is_first_task FALSE
urgency_slots min
accounting_summary FALSE
qsort_args NONE
"""

_NONE = """load_thresholds suspend_thresholds ckpt_list prolog epilog starter_method suspend_method resume_method
    terminate_method owner_list user_lists xuser_lists subordinate_list complex_values projects xprojects calendar"""
_LIMITS = ("rt", "cpu", "fsize", "data", "stack", "core", "rss", "vmem")
_QUEUE = {
    "qname": "all.q",
    "seq_no": "0",
    "nsuspend": "1",
    "suspend_interval": "00:05:00",
    "priority": "0",
    "min_cpu_interval": "00:00:01",
    "processors": "UNDEFINED",
    "qtype": "BATCH INTERACTIVE",
    "pe_list": ENVIRONMENT,
    "rerun": "TRUE",
    "slots": "1",
    "tmpdir": "/tmp",
    "shell": "/bin/bash",
    "shell_start_mode": "unix_behavior",
    "notify": "00:00:20",
    "initial_state": "default",
    **dict.fromkeys(_NONE.split(), "NONE"),
    **{f"{kind}_{limit}": "INFINITY" for kind in "sh" for limit in _LIMITS},
}


def why_no_grid_engine() -> str | None:
    """Return None if Grid Engine can start here, else the reason and the remedy."""
    return why_no_hosts("sge_qmaster", "sge_execd", "qsub", weekly=True)


class GridEngineCluster:
    """A running cluster. Commands run on the master's host, as root."""

    def __init__(self, here: Site, env: Mapping[str, str], master: Host, nodes: list[Host]) -> None:
        self._site, self._env, self._master, self._nodes = here, env, master, nodes
        self.work = here.path / "work"
        """A directory that all hosts share. Jobs are submitted from it."""

        self.work.mkdir()

    def run(self, script: str) -> str:
        """Return the output of shell commands in the shared directory. Raises ClusterError if they fail."""
        return _run(self._master, f"cd {self.work}\n{script}", self._env)

    def submit(self, *options: str) -> str:
        """Submit a job with these options and arguments of qsub. Return its id, with its tasks if it is an array."""
        return self.run(f"qsub -terse {' '.join(options)}").strip()

    def queued(self, job: str) -> bool:
        """Return whether the job waits or runs."""
        return re.search(rf"^ *{job} ", self.run("qstat"), re.MULTILINE) is not None

    def fail_node(self, number: int) -> None:
        """Kill a node, and disconnect it. Nodes are numbered from 1."""
        self._nodes[number - 1].cut()
        self._nodes[number - 1].kill()

    def logs(self) -> str:
        outputs = [f"--- {path.name}\n{path.read_text(errors='replace')}" for path in self.work.glob("*.o*")]
        return "\n".join([*outputs, self._site.logs()])


@contextmanager
def grid_engine(nodes: int) -> Iterator[GridEngineCluster]:
    """Start a cluster with so many nodes, n1, n2, ... It ends with the context."""
    names = [f"n{number}" for number in range(1, nodes + 1)]
    with site(_MASTER, *names) as here:
        env = _configure(here)
        master = here.start(_MASTER, [str(_LIB / "sge_qmaster")], env=env)
        submits = ["bash", "-c", f"qconf -as {_MASTER}"]
        wait_until(
            "Grid Engine's master",
            lambda: start_on(master, submits, env).wait(_TIMEOUT),
            lambda status: status == 0,
            _TIMEOUT,
            here.logs,
        )
        for name in names:
            _run(master, f"qconf -ah {name} && qconf -as {name}", env)
        hosts = [here.start(name, [str(_LIB / "sge_execd")], env=env) for name in names]
        queue = {**_QUEUE, "hostlist": " ".join(names)}
        (here.path / "queue").write_text("".join(f"{key} {value}\n" for key, value in queue.items()))
        (here.path / "parallel").write_text(_PARALLEL)
        wait_until(
            "the nodes of Grid Engine",
            lambda: _run(master, "qconf -sel || true", env).split(),
            lambda known: sorted(known) == names,
            _TIMEOUT,
            here.logs,
        )
        _run(master, f"qconf -Ap {here.path}/parallel && qconf -Aq {here.path}/queue", env)
        yield GridEngineCluster(here, env, master, hosts)


def _configure(here: Site) -> dict[str, str]:
    """Write the files of the cluster. Return the environment of its programs."""
    root, spool = here.path / "root", here.path / "spool"
    common = root / "default" / "common"
    for directory in (common, spool / "qmaster" / "job_scripts", spool / "execd"):
        directory.mkdir(parents=True)
    for name in ("bin", "lib", "util", "utilbin"):
        (root / name).symlink_to(_ROOT / name)
    (common / "bootstrap").write_text(_BOOTSTRAP.format(common=common, spool=spool))
    (common / "act_qmaster").write_text(f"{_MASTER}\n")
    (common / "cluster_name").write_text("test\n")
    settings = {**_SETTINGS, "execd_spool_dir": str(spool / "execd")}
    text = (_SHARE / "default-configuration").read_text()
    for key, value in settings.items():
        text = re.sub(rf"^{key}\s.*$", f"{key} {value}", text, flags=re.MULTILINE)
    (here.path / "configuration").write_text(text)
    env = {
        "SGE_ROOT": str(root),
        "SGE_CELL": "default",
        "SGE_ARCH": "lx-amd64",
        "SGE_QMASTER_PORT": "6444",
        "SGE_EXECD_PORT": "6445",
        "SGE_ND": "1",  # the daemons stay in the foreground
    }
    for command in (
        ["spoolinit", "classic", "libspoolc", f"{common};{spool}/qmaster", "init"],
        ["spooldefaults", "configuration", f"{here.path}/configuration"],
        ["spooldefaults", "complexes", f"{_SHARE}/util/resources/centry"],
        ["spooldefaults", "usersets", f"{_SHARE}/util/resources/usersets"],
        ["spooldefaults", "managers", "root"],
    ):
        path = _LIB / command[0]
        subprocess.run([str(path), *command[1:]], env={**os.environ, **env}, check=True, capture_output=True)
    return env


def _run(host: Host, script: str, env: Mapping[str, str]) -> str:
    process = start_on(host, ["bash", "-c", script], env)
    status = process.wait(_TIMEOUT)
    if status:
        raise ClusterError(f"{script} ended with {status}: {process.output()}")
    return process.output()
