"""Runs with faults on the test cluster, and the judge of their records."""
