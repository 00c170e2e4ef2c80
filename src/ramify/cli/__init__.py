"""The command line: parse, call, print. No logic of its own."""

from ramify.cli.app import app, main

__all__ = ["app", "main"]
