"""Checks that take too long for every change: what runs each night, what runs each week, and what became of it."""
