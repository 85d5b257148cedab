"""A member that lies: `python -m tests.attacks.liar NAME start ...` is `dlx-node start ...` under the lie NAME."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dlx.node.cli.app import main
from dlx.node.trainer import spawn
from tests.attacks import acts, network
from tests.attacks.lies import LIES
from tests.attacks.trainer import LIE

if __name__ == "__main__":
    name = sys.argv.pop(1)
    os.environ[LIE] = name
    os.environ[acts.FILE] = str(Path(sys.argv[sys.argv.index("--datadir") + 1]) / acts.NAME)
    spawn.ForkServer.MODULE = "tests.attacks.trainer"
    network.lie_to_members(LIES[name])
    main()
