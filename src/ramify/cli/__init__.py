"""The command line: parse, call, print. No logic of its own."""

from ramify.cli import commands, explaining, pipeline, planning
from ramify.cli.app import app, main

__all__ = ["app", "commands", "explaining", "main", "pipeline", "planning"]
