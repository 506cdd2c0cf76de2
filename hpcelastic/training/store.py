"""The key-value store that the workers of a round share."""

from hpcelastic.errors import ConfigError
from hpcelastic.storage import files
from hpcelastic.storage.keyvalue import KeyValueStore
from hpcelastic.storage.paths import RunPaths

from .context import context
from .token import check_token


def store() -> KeyValueStore:
    """Return the store of this worker's round. All its ranks share it; it is removed two rounds later.

    It is kept in files of the run's directory, so it needs no server and no rank that must stay. Values are strings of
    up to 1 MiB; larger data belong in a file. Raises ``ConfigError`` outside hpcelastic, and ``StoreError`` if the
    round has ended or the run's directory can't be used.
    """
    worker = context()
    if worker.run_dir is None:
        raise ConfigError(
            "store() works only in workers that an agent of hpcelastic has started; HPCELASTIC_RUN_DIR is not set"
        )
    check_token()
    paths = RunPaths(worker.run_dir)
    directory = paths.store(worker.round)
    files.make_directory(
        directory, within=paths.root
    )  # before the first access, because this node would cache that it was absent
    return KeyValueStore(directory, f"rank {worker.rank} on {worker.node}")
