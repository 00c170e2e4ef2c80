"""Trees on overlays: spanning, shortest-path, low-stretch and Steiner trees, and their bounds."""
