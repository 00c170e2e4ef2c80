"""The problem and the plan form: channels, trees, checks, files, and how plans grow."""
