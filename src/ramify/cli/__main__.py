"""`python -m ramify.cli`, where the `ramify` script is not on the path."""

from ramify.cli import main

main()
