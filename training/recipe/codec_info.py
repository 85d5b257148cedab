"""What each codec is to the training rule and to plans: needed where a manifest is read, without torch."""

from typing import NamedTuple


class CodecInfo(NamedTuple):
    name: str
    levels: tuple[int, ...]  # of a plan: bits of a value
    ranks: tuple[int, int]  # of a plan: the lowest and the highest
    contract: int = 0  # its number in contracts/src/Payloads.sol; 0: no contract decodes it


INT4 = CodecInfo("int4", levels=(4, 8), ranks=(0, 0), contract=1)
LOWRANK = CodecInfo("lowrank", levels=(4,), ranks=(1, 4096))
TERNARY = CodecInfo("ternary", levels=(2,), ranks=(0, 0), contract=2)
TOPK = CodecInfo("topk", levels=(2,), ranks=(32, 256), contract=3)
CODECS = {one.name: one for one in (INT4, LOWRANK, TERNARY, TOPK)}
