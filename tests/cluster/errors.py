"""Errors of a test cluster."""

from __future__ import annotations


class ClusterError(RuntimeError):
    """A command of the cluster failed. The message contains its output."""


class ClusterTimeout(ClusterError, TimeoutError):
    """A condition was not met in time. The message contains the last observation and the tails of SLURM's logs."""
