"""The command line: parse, call, print. No logic of its own."""

from ramify.cli import (
    content,
    demo,
    explain,
    matches,
    messages,
    move,
    overlay,
    pipeline,
    plan,
    rules,
    status,
)
from ramify.cli.app import app, main

__all__ = [
    "app",
    "content",
    "demo",
    "explain",
    "main",
    "matches",
    "messages",
    "move",
    "overlay",
    "pipeline",
    "plan",
    "rules",
    "status",
]
