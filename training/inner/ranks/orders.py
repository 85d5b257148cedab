"""What rank 0 has the other ranks do. Every order is carried out by all ranks together, rank 0 with them."""

from msgspec import Struct

from dlx.training.models.placement import Placement


class Begin(Struct, frozen=True, tag="begin"):
    """First: the stage to hold."""

    manifest: bytes
    stage: int
    placement: Placement  # but for the device, of which each rank has its own


class Idle(Struct, frozen=True, tag="idle"):
    """Nothing: rank 0 is there, and has no work."""


class Load(Struct, frozen=True, tag="load"):
    """Take your rows of a tensor of the state."""

    name: str


class Clear(Struct, frozen=True, tag="clear"):
    """The optimiser's state is zero."""


class Free(Struct, frozen=True, tag="free"):
    """Give back the gradients' memory."""


class Segment(Struct, frozen=True, tag="segment"):
    """The next step is the first of one."""


class Give(Struct, frozen=True, tag="give"):
    """Hand your rows of a tensor of the state to rank 0."""

    name: str


class Do(Struct, frozen=True, tag="do"):
    """Something that concerns the layers above, in their words."""

    work: bytes


class Step(Struct, frozen=True, tag="step"):
    """An inner step, at `factor` times the manifest's rates; the batch follows where the stage has data."""

    index: int
    factor: float
    previous: bool  # whether there are pipes
    next: bool


class End(Struct, frozen=True, tag="end"):
    """The last one."""


Order = Begin | Idle | Load | Clear | Free | Segment | Give | Do | Step | End
