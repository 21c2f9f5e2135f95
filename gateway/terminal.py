"""What the commands say, and how they give up: one line on standard error, and exit status 2."""

from pathlib import Path
from typing import NoReturn

from rich.console import Console

from gateway.config import Config, ConfigError, load, quick

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)

WIDE = 1000  # columns of tables: a terminal that is too narrow wraps lines, where rich would leave out names
WRONG_INPUT = 2  # exit status: the command cannot do what it was asked


def read(file: Path | None, endpoints: list[str] | None) -> Config:
    """Read the configuration, or say in one line per problem why not, and exit."""
    try:
        return quick(endpoints or []) if file is None else load(file)
    except ConfigError as error:
        for problem in error.problems:
            err.print(f"kvlane: {error.source}: {problem}", markup=False)
        raise SystemExit(WRONG_INPUT) from error


def give_up(message: str) -> NoReturn:
    """Say in one line what is wrong, and exit."""
    err.print(f"kvlane: {message}", markup=False)
    raise SystemExit(WRONG_INPUT)
