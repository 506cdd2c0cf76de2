"""Conversion of hpcelastic's errors to those of torch's rendezvous."""

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
def torch_errors() -> Iterator[None]:
    """Raise errors of hpcelastic within the block as torch's rendezvous errors."""
    try:
        yield
    except RendezvousTimeout as error:
        raise RendezvousTimeoutError(str(error)) from error
    except StoreError as error:
        undecodable = isinstance(error.__cause__, DecodeError)
        raise (RendezvousStateError if undecodable else RendezvousConnectionError)(str(error)) from error
    except (HpcElasticError, OSError) as error:
        raise RendezvousError(str(error)) from error
