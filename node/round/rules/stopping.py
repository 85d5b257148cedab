"""Whether a run that stops early is over: from the held-out losses that the ledger had when a round opened.

It compares windows of evaluated versions, by their medians: a lie about one version moves nothing. What a version's
evaluators say counts once all of them have spoken, or none of them speaks any more; so who is first gains nothing.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction

from dlx.ground.constants import MICRO
from dlx.ledger.view.run_view import RunView
from dlx.node.round.challenges.draw import MOST_WINDOW, draw_block, seals_of
from dlx.node.round.challenges.evaluation import evaluation_of
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Stop


def has_stalled(stop: Stop, losses: Sequence[Fraction]) -> bool:
    """Whether the median of the newest `patience` losses (in nats, ascending by version) is not `min_improvement` below
    that of as many before them.

    Examples:
        >>> stop = Stop(patience=2, min_improvement=0.25)
        >>> has_stalled(stop, [Fraction(loss) for loss in (4, 4, 3)])
        False
        >>> has_stalled(stop, [Fraction(loss) for loss in (4, 4, 3, 3)])
        False
        >>> has_stalled(stop, [Fraction(loss) for loss in (4, 3, 3, 3)])
        True
    """
    if len(losses) < 2 * stop.patience:
        return False
    newer, older = losses[-stop.patience :], losses[-2 * stop.patience : -stop.patience]
    return median(older) - median(newer) < Fraction(stop.min_improvement)


def seals_needed(manifest: Manifest) -> int:
    """How many of the newest rounds' seals it takes: those of two windows, and of versions of which somebody may still
    speak."""
    stop, every = manifest.stop, manifest.evaluation.every
    return 0 if stop is None else (2 * stop.patience + 1) * every + _window(manifest)


def opening(view: RunView, round: int) -> bytes | None:
    """The hash of the block that has the last seal of the round before: all that decides was before it. None without
    one at hand."""
    seals = seals_of(view, round - 1) if round else None
    return None if seals is None else max(seals, key=lambda seal: seal.at.block).at.block_hash


def blocks(view: RunView, manifest: Manifest, round: int) -> list[int] | None:
    """The numbers of the blocks that drew who evaluates the versions that decide, the oldest first: none where these
    are too few. None where the view lacks seals."""
    seals = [seals_of(view, version - 1) for version in _versions(manifest, round)]
    found = [draw_block(one, manifest.audit.draw_after) for one in seals if one is not None]
    return found if len(found) == len(seals) else None


def is_over(view: RunView, manifest: Manifest, round: int, block_hash: Callable[[int], bytes | None]) -> bool | None:
    """Whether a seal of `round` may say that the run ends: what was in blocks before that of the last seal of the round
    before decides. `block_hash`: of the numbers that `blocks` gives. None where a hash or a seal is missing, so that
    nobody knows who was drawn."""
    versions = _versions(manifest, round)
    if manifest.stop is None or not versions:
        return False
    opened, losses = seals_of(view, round - 1), list[Fraction]()
    for version in versions:
        seals = seals_of(view, version - 1)
        hash_ = None if seals is None else block_hash(draw_block(seals, manifest.audit.draw_after))
        if opened is None or seals is None or hash_ is None:
            return None
        before = max(seal.at.block for seal in opened)
        drawn = [one.accounts[-1] for one in evaluation_of(seals, hash_, manifest.evaluation.replicas).evaluators]
        heard = [one for one in (view.evaluation(account, version) for account in drawn) if one is not None]
        said = [Fraction(one.sum, one.count) / MICRO for one in heard if one.at.block < before]
        is_past = version - 1 < round - _window(manifest)  # nobody speaks of it any more
        if 2 * len(said) > len(drawn) and (is_past or len(said) == len(drawn)):
            losses.append(median(said))
    return has_stalled(manifest.stop, losses)


def _versions(manifest: Manifest, round: int) -> range:
    """Those that may decide, ascending: none where they are too few. The evaluation of version `round` is not drawn
    before the round opens."""
    stop, every = manifest.stop, manifest.evaluation.every
    if stop is None:
        return range(0)
    newest = (round - 1) // every * every
    oldest = max(1, -(-(round - seals_needed(manifest) + 1) // every)) * every
    found = range(oldest, newest + 1, every)
    return found if len(found) >= 2 * stop.patience else range(0)


def _window(manifest: Manifest) -> int:
    return min(manifest.audit.window, MOST_WINDOW)


def median(values: Sequence[Fraction]) -> Fraction:
    """The lower one."""
    return sorted(values)[(len(values) - 1) // 2]
