"""Objects that outlive their round although they hold its process groups."""

import gc
import sys
import types
from collections.abc import Iterator
from typing import Any


def kept_wrappers() -> list[str]:
    """Return a description of each model wrapper of torch that is alive, such as DistributedDataParallel.

    Objects that were frozen (`gc.freeze`) are not searched, so it takes some milliseconds at most.
    """
    kinds = tuple(_wrapper_classes())
    found = [each for each in gc.get_objects() if isinstance(each, kinds)] if kinds else []
    if not found:
        return []
    gc.unfreeze()  # frozen objects are not found as referrers
    try:
        return [f"{type(found[i]).__name__} in {_holder(found, i)}" for i in range(len(found))]
    finally:
        gc.freeze()


def _wrapper_classes() -> Iterator[type]:
    """Yield the classes of wrappers, as far as their modules are imported."""
    for module, name in (
        ("torch.nn.parallel.distributed", "DistributedDataParallel"),
        ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel"),
        ("torch.distributed.device_mesh", "DeviceMesh"),
    ):
        if module in sys.modules and hasattr(sys.modules[module], name):
            yield getattr(sys.modules[module], name)


def _holder(found: list[Any], index: int) -> str:
    """Describe what refers to an object, apart from the list ``found``."""
    for referrer in gc.get_referrers(found[index]):
        if referrer is found:
            continue
        if isinstance(referrer, types.FrameType):
            return f"the function {referrer.f_code.co_name}"
        if isinstance(referrer, dict):
            return _place_in(referrer, found[index])
        if isinstance(referrer, list | tuple | set | types.CellType):
            return f"a {type(referrer).__name__}"
        attributes = getattr(referrer, "__dict__", {})  # an object need not have a dictionary before it is asked for it
        if any(value is found[index] for value in attributes.values()):
            return _place_in(attributes, found[index])
    return "an object"


def _place_in(names: dict[Any, Any], found: object) -> str:
    """Describe a dictionary that refers to an object: the globals of a module, or the attributes of an object."""
    name = next((str(name) for name, value in names.items() if value is found), "")
    if "__name__" in names and "__builtins__" in names:
        return f"the variable {name} of the module {names['__name__']}"
    owner = next((each for each in gc.get_referrers(names) if getattr(each, "__dict__", None) is names), None)
    return f"the attribute {name} of a {type(owner).__name__}" if owner is not None else f"the entry {name} of a dict"
