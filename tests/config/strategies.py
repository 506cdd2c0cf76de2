"""Any valid configuration."""

from typing import Any

from hypothesis import strategies as st

from hpcelastic.agent.settings import Entrypoint, LogSettings, WorkerSettings
from hpcelastic.config import JobConfig, RunSettings, SlurmSettings
from hpcelastic.config.container import ContainerSettings
from hpcelastic.config.options import UNSAFE
from hpcelastic.network.settings import NetworkSettings
from hpcelastic.protocol.settings import NodeRange, RendezvousSettings, RestartSettings

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
words = text | st.sampled_from(
    [
        "no",
        "null",
        "1.10",
        "0123",
        "1:30:00",
        "true",
        "~",
        "a: b",
        "# a",
        "'",
        "2..4",
        " ",
        "-",
        "?",
        "|",
        ">",
        "%",
        "=",
        "<<",
        "---",
    ]
)
plain = words.filter(lambda text: not UNSAFE.search(text))
seconds = st.floats(1e-3, 1e6) | st.integers(1, 10**6).map(float)
streams = st.sampled_from(["none", "out", "err", "both"])
rank_streams = streams | st.dictionaries(st.integers(0, 99).map(str), streams, max_size=3)
values = words | st.integers() | st.booleans()

options = st.dictionaries(
    st.sampled_from(["no", "on", "mail-type"]),
    plain | st.integers() | st.booleans() | st.lists(plain | st.integers(), max_size=2).map(tuple),
    max_size=3,
)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


entrypoints = st.builds(Entrypoint, module=words.filter(bool), args=st.lists(words, max_size=3).map(tuple)) | st.builds(
    Entrypoint,
    function=st.just("a.b:c"),
    args=st.lists(values | st.floats(allow_nan=False, allow_infinity=False), max_size=3).map(tuple),
)

configs = st.builds(
    JobConfig,
    run=st.builds(
        RunSettings,
        name=maybe(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,9}", fullmatch=True)),
        directory=words.filter(bool),
    ),
    entrypoint=entrypoints,
    nodes=st.builds(
        lambda least, more, spares, multiple, within: NodeRange(
            least * multiple, (least + more) * multiple, spares, multiple, within if multiple > 1 else None
        ),
        st.integers(1, 9),
        st.integers(0, 9),
        st.integers(0, 2),
        st.integers(1, 3),
        maybe(st.sampled_from(["switch", "block"])),
    ),
    workers=st.builds(
        WorkerSettings,
        per_node=st.just("auto") | st.integers(1, 99),
        role=words.filter(bool),
        virtual_local_rank=st.booleans(),
        timers=st.booleans(),
        numa=st.sampled_from(["none", "node", "core-complex"]),
        stop_grace=seconds,
        park_grace=seconds,
        forward_signals=st.lists(st.sampled_from(["SIGUSR1", "SIGHUP"]), max_size=2).map(tuple),
        preload=st.lists(st.sampled_from(["torch", "numpy.random"]), max_size=2).map(tuple),
    ),
    rendezvous=st.builds(
        lambda lease, wait: RendezvousSettings(
            join_timeout=wait, last_call=wait, lease=lease or "auto", margin=wait, poll=lease / 8 or wait
        ),
        st.just(0.0) | seconds,
        seconds,
    ),
    restarts=st.builds(RestartSettings, max=st.integers(0, 10**30)),
    logs=st.builds(
        LogSettings,
        redirect=rank_streams,
        tee=rank_streams,
        prefix=words,
        local_ranks=st.lists(st.integers(0, 99), max_size=2).map(tuple),
        match_out=st.lists(words.filter(bool), max_size=2).map(tuple),
        directory=maybe(words.filter(bool)),
    ),
    network=st.builds(
        NetworkSettings,
        interface=maybe(st.sampled_from(["ib0", "10.1.0.0/16", "fd00::/64"])),
        ports=maybe(st.sampled_from(["29500-29600", "1-2"])),
        notifications=st.booleans(),
        snapshot_rate=st.integers(0, 10**6),
    ),
    environment=st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True), words, max_size=3),
    slurm=st.builds(
        SlurmSettings,
        shape=st.sampled_from(["allocation", "pool"]),
        partition=maybe(plain),
        time=maybe(st.sampled_from(["90", "1:30:00", "2-0"])),
        gpus_per_node=maybe(st.integers(0, 9) | st.just("a100:4")),
        cpus_per_node=maybe(st.integers(1, 99)),
        memory=maybe(st.sampled_from(["64G", "0123"])),
        exclude=maybe(plain),
        requeue=st.booleans(),
        setup=st.lists(words, max_size=3).map(tuple),
        container=st.builds(
            ContainerSettings,
            image=maybe(words),
            runtime=st.sampled_from(["apptainer", "singularity", "pyxis"]),
            mounts=st.lists(st.sampled_from(["/a", "/a:/b", "/a:/b:ro"]), max_size=2).map(tuple),
            python=words,
            options=options,
        ),
        options=options,
        srun_options=options,
    ),
)
