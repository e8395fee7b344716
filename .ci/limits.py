"""Compares figures with their goals, and with what `.ci/limits` still grants."""

import pathlib
import sys

FILE = pathlib.Path(__file__).parent / "limits"


def granted():
    """The limit by name, of figures that do not meet their goals yet."""
    lines = (line.split("#")[0].split() for line in FILE.read_text().splitlines())
    return {words[0]: float(words[1]) for words in lines if words}


def check(figures):
    """Exits with 1 if one of `figures`, by name a value and its goal, is over the goal and its limit, or if
    its limit is no longer needed."""
    limits, failed = granted(), False
    for name, (value, goal) in figures.items():
        limit = limits.get(name, goal)
        if round(value, 1) > max(limit, goal):
            print(f"{name}: {value:.1f} is over {max(limit, goal):g}", file=sys.stderr)
            failed = True
        elif name in limits and value <= goal:
            print(f"{name}: {value:.1f} meets its goal of {goal:g}; remove it from .ci/limits", file=sys.stderr)
            failed = True
    sys.exit(failed)
