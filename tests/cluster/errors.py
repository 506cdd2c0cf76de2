"""Errors of a test cluster."""

from __future__ import annotations


class ClusterError(RuntimeError):
    """A command of the cluster failed; the message holds its output."""


class ClusterTimeout(ClusterError, TimeoutError):
    """Something did not come true in time; the message holds what was last seen and the tails of SLURM's logs."""
