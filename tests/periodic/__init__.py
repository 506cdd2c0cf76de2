"""Checks that take too long for every change: the nightly and the weekly check, and their results."""
