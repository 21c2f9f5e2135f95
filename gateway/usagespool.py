"""Usage that could not be saved when its gateway stopped, and waits for the next one.

    DIRECTORY/unsaved-GATEWAY.json   the batches of a gateway that is gone, with their numbers

Whoever starts next adds them in the name of the one that is gone: a batch that had arrived after all is known by its
number, and so is one that two gateways find at a time.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.usagefiles import entries_of, replace, sums_of
from gateway.usagestore import Batch

log = logging.getLogger(__name__)

VERSION = 1


@dataclass(frozen=True, slots=True)
class Left:
    """What a gateway has left behind."""

    file: Path
    gateway: str
    batches: Sequence[Batch]


def leave(directory: Path, gateway: str, batches: Sequence[Batch]) -> None:
    """Write batches down.

    Raises:
        OSError: that cannot be done.
    """
    directory.mkdir(parents=True, exist_ok=True)
    told = [{"version": VERSION, "number": each.number, "day": each.day, **entries_of(each.sums)} for each in batches]
    content = json.dumps({"gateway": gateway, "batches": told}).encode()
    replace(directory / f"unsaved-{gateway}.json", content)


def found_in(directory: Path) -> list[Left]:
    """Give what was left behind; what makes no sense is left where it is, and said.

    Raises:
        OSError: that cannot be read.
    """
    found = []
    for file in sorted(directory.glob("unsaved-*.json")):
        try:
            content = json.loads(file.read_bytes())
            batches = [Batch(int(each["number"]), str(each["day"]), sums_of(each)) for each in content["batches"]]
            found.append(Left(file, str(content["gateway"]), batches))
        except FileNotFoundError:  # another gateway has added it
            pass
        except (KeyError, TypeError, ValueError) as error:
            log.error("accounting: %s makes no sense (%s): it is not added", file, error)
    return found
