"""Runs that faults befall on the test cluster, and the judge of what they did."""
