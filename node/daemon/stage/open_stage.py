"""A stage that a training process has opened, with a slot or without, and what serves it alone."""

from dataclasses import dataclass
from pathlib import Path

from dlx.node.daemon.context import RunContext
from dlx.node.daemon.data.versions import Versions
from dlx.node.round.rules.round_rules import Rules
from dlx.node.trainer.client import Trainer


@dataclass(frozen=True)
class OpenStage:
    context: RunContext
    rules: Rules
    stage: int
    trainer: Trainer
    versions: Versions

    @property
    def directory(self) -> Path:
        return stage_directory(self.context, self.stage)


def stage_directory(context: RunContext, stage: int) -> Path:
    """The node's own files of a stage."""
    return context.storage.directory / f"stage-{stage}"
