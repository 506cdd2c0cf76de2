"""Faults in real runs, and the verdicts on them."""
