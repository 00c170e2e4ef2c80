"""The client of a live overlay, with and without an event loop. Light: it knows no plans."""
