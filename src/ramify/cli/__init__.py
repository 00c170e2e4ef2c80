"""The command line: parse, call, print. No logic of its own."""

from ramify.cli import (
    commands,
    demo,
    explaining,
    live,
    matching,
    messaging,
    moving,
    pipeline,
    planning,
    status,
)
from ramify.cli.app import app, main

__all__ = [
    "app",
    "commands",
    "demo",
    "explaining",
    "live",
    "main",
    "matching",
    "messaging",
    "moving",
    "pipeline",
    "planning",
    "status",
]
