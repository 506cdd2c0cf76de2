"""The key-value store that the workers of a round share."""

from hpcelastic.errors import ConfigError
from hpcelastic.store import files
from hpcelastic.store.keyvalue import KeyValueStore
from hpcelastic.store.paths import RunPaths

from .context import context


def store() -> KeyValueStore:
    """The store of this worker's round: small facts, shared by all its ranks, gone two rounds later.

    It lives in files of the run's directory, so it needs no server and no rank that must stay. Values are strings of up
    to 1 MiB; what is larger belongs into a file. Raises ``ConfigError`` outside hpcelastic, ``StoreError`` where the
    run's directory can't be used.
    """
    here = context()
    if here.run_dir is None:
        raise ConfigError(
            "store() is for workers that an agent of hpcelastic has started; HPCELASTIC_RUN_DIR is not set"
        )
    directory = RunPaths(here.run_dir).store(here.round)
    files.make_directory(directory)  # before anybody looks there: this node would remember that it was absent
    return KeyValueStore(directory, f"rank {here.rank} on {here.node}")
