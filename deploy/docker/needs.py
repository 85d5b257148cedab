"""`needs.py EXTRA...`: what pyproject.toml, in this folder, asks for beside the program, a line for each package.

An image that installs this first keeps the layer as long as pyproject.toml and the constraints are as they were.
"""

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path


def needs(project: dict, extras: Iterable[str]) -> Iterator[str]:
    """The project's dependencies, and those of the extras, which may name others."""
    yield from project["dependencies"]
    for extra in extras:
        for one in project["optional-dependencies"][extra]:
            if own := re.fullmatch(rf"{project['name']}\[(.+)\]", one):
                yield from needs(project | {"dependencies": []}, own[1].split(","))
            else:
                yield one


if __name__ == "__main__":
    found = needs(tomllib.loads(Path("pyproject.toml").read_text())["project"], sys.argv[1:])
    sys.stdout.write("\n".join(dict.fromkeys(found)) + "\n")
