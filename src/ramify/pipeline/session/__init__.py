"""Spark itself: found, started, joined, stopped; its failures in words; files on their way to tasks."""
