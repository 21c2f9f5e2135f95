"""kvlane-sim: the simulated fleet, and the load that proves what the gateway does."""

import sys

import typer

from loadtests.bars import bars
from loadtests.demo import demo
from loadtests.experiment import simulate, spread
from loadtests.fleet import fleet
from loadtests.limits import limits
from loadtests.load import drive
from loadtests.overload import overload
from loadtests.pressed import pressed
from loadtests.ranking import rank

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.command()(demo)
app.command()(fleet)
app.command()(drive)
app.command()(simulate)
app.command()(bars)
app.command()(rank)
app.command()(overload)
app.command("press")(pressed)
app.command()(limits)


@app.callback()
def sim() -> None:
    """Simulated engines and load for Kvlane."""


def main() -> None:
    """Run the command line."""
    app(args=spread(sys.argv[1:]))
