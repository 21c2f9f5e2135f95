"""`python -m gateway` is `kvlane`."""

from gateway.cli import main

main()
