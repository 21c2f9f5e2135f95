"""`python -m loadtests` is `kvlane-sim`."""

from loadtests.cli import main

main()
