"""Our errors as torch's rendezvous raises them."""

import contextlib
from collections.abc import Iterator

from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousError,
    RendezvousStateError,
    RendezvousTimeoutError,
)

from hpcelastic.errors import HpcElasticError, RendezvousTimeout, StoreError
from hpcelastic.protocol.codec import DecodeError


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Within the block our errors become torch's."""
    try:
        yield
    except RendezvousTimeout as error:
        raise RendezvousTimeoutError(str(error)) from error
    except StoreError as error:
        senseless = isinstance(error.__cause__, DecodeError)
        raise (RendezvousStateError if senseless else RendezvousConnectionError)(str(error)) from error
    except (HpcElasticError, OSError) as error:
        raise RendezvousError(str(error)) from error
