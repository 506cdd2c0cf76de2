"""Reduces a scenario that violates a property: fewer nodes, fewer faults, a simpler filesystem."""

import json
from collections.abc import Iterator
from dataclasses import replace

from hpcelastic.protocol.codec import encode
from hpcelastic.protocol.settings import NodeRange
from tests.protocol.under_test import Patch
from tests.simulation.faults import Scenario, without
from tests.simulation.filesystem import Traits
from tests.simulation.simulation import Simulation

_TRIES = 400


def violation_of(scenario: Scenario, patches: tuple[Patch, ...] = ()) -> AssertionError | None:
    """Return the violation in a scenario, with its history; None if there is none."""
    try:
        Simulation(scenario, patches).run()
    except AssertionError as violation:  # a Violation, or a check of the code itself
        return violation
    return None


def shrunk(scenario: Scenario, patches: tuple[Patch, ...] = ()) -> Scenario:
    """Return the smallest scenario found that violates a property like ``scenario``."""
    tries = 0
    while True:
        for smaller in _smaller(scenario):
            tries += 1
            if violation_of(smaller, patches) is not None:
                scenario = smaller
                break
            if tries >= _TRIES:
                return scenario
        else:
            return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Yield scenarios that are one step smaller, the largest step first."""
    for size in range(2, scenario.size):
        yield _with_size(scenario, size)
    count = len(scenario.faults)
    step = count
    while step:
        for first in range(0, count, step):
            yield without(scenario, set(range(first, first + step)))
        step //= 2
    if scenario.traits != Traits():
        yield replace(scenario, traits=Traits())
        for name, plain in vars(Traits()).items():
            if getattr(scenario.traits, name) != plain:
                yield replace(scenario, traits=replace(scenario.traits, **{name: plain}))
    profile = scenario.profile
    if profile.publishes or profile.counts:
        yield replace(scenario, profile=replace(profile, publishes=False, counts=False))
    for i, fault in enumerate(scenario.faults):
        if fault.operations:
            simpler = replace(fault, operations=0)
            yield replace(scenario, faults=(*scenario.faults[:i], simpler, *scenario.faults[i + 1 :]))


def _with_size(scenario: Scenario, size: int) -> Scenario:
    """Return the scenario with fewer nodes."""
    nodes = scenario.settings.nodes
    fewer = NodeRange(min(nodes.min, size), min(nodes.max, size + 1))
    return replace(scenario, size=size, settings=replace(scenario.settings, nodes=fewer))


def story(scenario: Scenario, violation: AssertionError) -> str:
    """Return a description of a violation: the property, the scenario, the history, and the command that repeats it."""
    broken, _, history = str(violation).partition("\n")
    faults = "\n".join(f"  {fault}" for fault in scenario.faults) or "  no faults"
    head = f"seed {scenario.seed}, profile {scenario.profile.name!r}, {scenario.size} nodes, {scenario.traits}"
    return f"{broken}\n\n{head}\n{faults}\n\n{history}\n\nTo repeat it:\n{command(scenario)}"


def command(scenario: Scenario) -> str:
    """Return the shell command that repeats a scenario."""
    bare = replace(scenario, profile=replace(scenario.profile, faults={}, traits=()))
    return f"python -m tests.simulation --replay '{to_text(bare)}'"


def to_text(scenario: Scenario) -> str:
    """Return a scenario as JSON."""
    return json.dumps(encode(scenario), separators=(",", ":"))
