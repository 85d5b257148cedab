"""Campaigns of a run: what is funded, what becomes of each wei, and what an account can have of it.

Amounts in what is printed are exact: text in the token's own unit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple

import msgspec

from dlx.ground.constants import EPOCH_ROUNDS
from dlx.ground.untrusted import printable
from dlx.ledger.campaigns import (
    CLAIM_TIME,
    ETH,
    MOST_PATIENCE,
    MOST_WINDOW,
    WHOLE,
    Campaign,
    Campaigns,
    CampaignTerms,
    Due,
    Pot,
    Token,
    epochs_of,
    least_patience,
)
from dlx.ledger.client import LedgerClient
from dlx.ledger.errors import LedgerUnavailable
from dlx.ledger.view.run_view import RunView
from dlx.node.home.errors import Failure, NotReady, UsageFailure
from dlx.node.home.settings import Settings

WINDOW = 20  # rounds that work is open to challenges before it is paid, where the manifest is not at hand
PATIENCE = 30 * 86_400  # seconds
_UNITS = {"ETH": 18, "gwei": 9, "wei": 0}
_STAGES_AT_ONCE = 150  # (stage, epoch) pairs in one settlement
_AMOUNT = re.compile(r"([0-9]{1,30}(?:\.[0-9]{1,30})?) ?([A-Za-z][A-Za-z0-9.+-]{0,19})?", re.ASCII)
_ROUNDS = re.compile(r"([0-9]{1,8})?:([0-9]{1,8})?", re.ASCII)


class CampaignLine(msgspec.Struct, frozen=True, kw_only=True):
    campaign: int
    run: str
    state: str  # to come, open, closed, over
    token: str  # ETH, or its address
    unit: str
    rounds: tuple[int, int]  # the second is not paid any more
    funded: str
    paid: str
    claimable: str  # by accounts
    refundable: str  # by funders
    refunded: str
    left: str  # for epochs that are not settled


class PotLine(msgspec.Struct, frozen=True, kw_only=True):
    """An epoch. `earned` and `returned` are None before it is settled."""

    epoch: int
    rounds: tuple[int, int]
    pot: str
    earned: str | None
    returned: str | None


class AccountLine(msgspec.Struct, frozen=True, kw_only=True):
    account: str
    paid: str
    claimable: str
    forfeited: str  # goes to the funders: it was convicted, or its stage's work disproved


class FunderLine(msgspec.Struct, frozen=True, kw_only=True):
    funder: str
    deposited: str
    refunded: str
    refundable: str


class CampaignDetails(msgspec.Struct, frozen=True, kw_only=True):
    summary: CampaignLine
    window: int  # rounds after an epoch until it is settled
    patience: int  # seconds without a finished round until the run counts as dead
    seal_refund: str
    parts: tuple[str, ...]  # of a pot, by stage, in percent
    to_settle: int  # epochs that anybody can settle now
    claims_end: int | None  # Unix seconds; None while it is open
    pots: tuple[PotLine, ...]
    accounts: tuple[AccountLine, ...]
    funder: FunderLine | None  # the folder's account, if it has put anything in


class Funding(NamedTuple):
    """What pays for a run."""

    lines: list[CampaignLine]
    bars: list[tuple[float, float, float]]  # of each what was paid, is claimable, and was returned, in parts of a whole
    paid: dict[str, str]  # account -> its sums in all these campaigns
    claimable: dict[str, str]


class Progress(NamedTuple):
    """How far a run is, and the chain's time."""

    round: int
    opened_at: int  # of that round; 0: none is open yet
    now: int


def open_campaigns(client: LedgerClient, settings: Settings) -> Campaigns:
    """Raises UsageFailure where no contract is named, NotReady where it is not there, WrongLedger."""
    if not settings.campaigns:
        raise UsageFailure("no contract of campaigns is set: give --campaigns ADDRESS (`chain` and `deploy` print it)")
    try:
        return Campaigns(client, settings.campaigns)
    except LedgerUnavailable as error:
        raise NotReady(str(error)) from None


def progress_of(client: LedgerClient, run: bytes) -> Progress:
    _, round, opened_at = client.read("openRound", run)
    return Progress(round, opened_at, client.head().time)


def amount_of(text: str, token: Token) -> int:
    """The token's smallest units that "0.5 ETH", "20 gwei" or "250 USDC" means. Raises UsageFailure.

    Examples:
        >>> amount_of("0.5 ETH", Token(ETH, "ETH", 18))
        500000000000000000
        >>> amount_of("2.5", Token("0x12", "USDC", 6))
        2500000
    """
    found = _AMOUNT.fullmatch(text.strip())
    units = _UNITS if token.address == ETH else {token.symbol: token.decimals, None: token.decimals}
    if found is None or found[2] not in units:
        known = "ETH, gwei or wei" if token.address == ETH else token.symbol
        raise UsageFailure(f"{printable(text, 60)!r} is no amount: expected a number and its unit ({known})")
    exact = Decimal(found[1]).scaleb(units[found[2]])
    if exact != int(exact):
        raise UsageFailure(f"{printable(text, 60)!r}: {token.symbol} has {token.decimals} decimals only")
    if not 0 < exact < 1 << 127:
        raise UsageFailure(f"{printable(text, 60)!r}: expected more than nothing, and less than 2^127 units")
    return int(exact)


def amount_text(amount: int, token: Token) -> str:
    """Exactly, without the unit: 1,000 or 0.5."""
    whole, rest = divmod(amount, 10**token.decimals)
    return f"{whole:,}" + (f".{rest:0{token.decimals}d}".rstrip("0") if rest else "")


def terms(
    view: RunView, progress: Progress, token: str, rounds: str | None, window: int, patience: int, seal_refund: int
) -> CampaignTerms:
    """Of a campaign that begins with the next epoch and goes to the end, unless `rounds` says FROM:TO. Raises
    UsageFailure for what the contract would not take."""
    config = view.config
    begun = progress.opened_at != 0 and progress.opened_at <= progress.now
    next_epoch = progress.round // EPOCH_ROUNDS + (begun or progress.round % EPOCH_ROUNDS != 0)
    first, end = _epochs(rounds, next_epoch, config.rounds)
    if first < next_epoch:
        raise UsageFailure(
            f"--rounds {rounds}: round {progress.round} is open, and only epochs that have not begun can be funded: "
            f"from round {EPOCH_ROUNDS * next_epoch} on"
        )
    if first >= end:
        raise UsageFailure(f"no epoch is left to fund: the run has {config.rounds} rounds")
    least = least_patience(config.round_timeout)
    if not least <= patience <= MOST_PATIENCE:
        raise UsageFailure(
            f"--patience: expected {least / 86_400:g} to {MOST_PATIENCE // 86_400} days for a run whose rounds time "
            f"out after {config.round_timeout} s"
        )
    if not 0 <= window <= MOST_WINDOW:
        raise UsageFailure(f"--window {window}: expected 0 to {MOST_WINDOW} rounds")
    if seal_refund and token != ETH:
        raise UsageFailure("--seal-refund: gas is refunded in ETH, by campaigns that pay in ETH")
    return CampaignTerms(view.run, token, first, end, window, patience, seal_refund)


def parts(text: str | None, stages: int) -> tuple[int, ...]:
    """Ten-thousandths of a pot, by stage, that "70,30" (percent) means; None: all alike. Raises UsageFailure."""
    if text is None:
        return tuple(WHOLE * (stage + 1) // stages - WHOLE * stage // stages for stage in range(stages))
    try:
        found = tuple(Decimal(part) * 100 for part in text.split(","))
        fine = all(part == int(part) and 0 <= part <= WHOLE for part in found)
    except ArithmeticError:
        fine, found = False, ()
    if not fine or len(found) != stages or sum(found) != WHOLE:
        raise UsageFailure(
            f"--parts {printable(text, 60)}: expected a percentage for each of {stages} stages, 100 in all"
        )
    return tuple(map(int, found))


def lines(campaigns: Campaigns, run: bytes, progress: Progress) -> list[CampaignLine]:
    """The run's newest hundred, newest first."""
    tokens = dict[str, Token]()
    found = list[CampaignLine]()
    for one in campaigns.of_run(run):
        if one.terms.token not in tokens:
            tokens[one.terms.token] = campaigns.token(one.terms.token)
        found.append(line(one, tokens[one.terms.token], progress))
    return found


def line(campaign: Campaign, token: Token, progress: Progress) -> CampaignLine:
    terms = campaign.terms
    return CampaignLine(
        campaign=campaign.number,
        run="0x" + terms.run.hex(),
        state=_state(campaign, progress),
        token="ETH" if terms.token == ETH else terms.token,
        unit=token.symbol,
        rounds=(EPOCH_ROUNDS * terms.from_epoch, campaign.end(terms.to_epoch - 1)),
        funded=amount_text(campaign.funded, token),
        paid=amount_text(campaign.paid, token),
        claimable=amount_text(campaign.claimable, token),
        refundable=amount_text(campaign.returned - campaign.refunded, token),
        refunded=amount_text(campaign.refunded, token),
        left=amount_text(campaign.left, token),
    )


def funding(campaigns: Campaigns, view: RunView, progress: Progress, most: int) -> Funding:
    """Of the newest campaigns, and of the accounts that ever held a slot."""
    found = campaigns.of_run(view.run, most)
    tokens = {address: campaigns.token(address) for address in {one.terms.token for one in found}}
    accounts = list(view.standings)
    paid, claimable = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for one in found:
        for account, amount in zip(accounts, campaigns.paid_to(one.number, accounts), strict=True):
            paid[account, one.terms.token] += amount
        for due in campaigns.due(one, _places(view, accounts)):
            claimable[due.account, one.terms.token] += due.amount
    return Funding(
        [line(one, tokens[one.terms.token], progress) for one in found],
        [_bar(one) for one in found],
        _sums(paid, tokens),
        _sums(claimable, tokens),
    )


def _bar(campaign: Campaign) -> tuple[float, float, float]:
    whole = campaign.funded or 1
    return campaign.paid / whole, campaign.claimable / whole, campaign.returned / whole


def _sums(amounts: Counter[tuple[str, str]], tokens: Mapping[str, Token]) -> dict[str, str]:
    """By account: 0.5 ETH, 20 USDC."""
    found = dict[str, list[str]]()
    for (account, address), amount in amounts.items():
        if amount:
            token = tokens[address]
            found.setdefault(account, []).append(f"{amount_text(amount, token)} {token.symbol}")
    return {account: ", ".join(sums) for account, sums in found.items()}


def details(
    campaigns: Campaigns, campaign: Campaign, view: RunView, progress: Progress, funder: str | None
) -> CampaignDetails:
    """What became of each wei: by epoch, by account, and of what `funder` put in."""
    terms, token = campaign.terms, campaigns.token(campaign.terms.token)
    accounts = list(view.standings)
    paid = campaigns.paid_to(campaign.number, accounts)
    due = campaigns.due(campaign, _places(view, accounts))
    mine = (0, 0, 0) if funder is None else campaigns.deposit(campaign.number, funder)
    return CampaignDetails(
        summary=line(campaign, token, progress),
        window=terms.window,
        patience=terms.patience,
        seal_refund=amount_text(terms.seal_refund, token),
        parts=tuple(f"{part / 100:g}" for part in campaign.parts),
        to_settle=campaign.can_settle(progress.round, progress.opened_at, progress.now),
        claims_end=campaign.closed_at + CLAIM_TIME if campaign.closed_at else None,
        pots=tuple(_pot_line(campaign, pot, token) for pot in campaigns.pots(campaign)),
        accounts=tuple(
            AccountLine(
                account=account,
                paid=amount_text(had, token),
                claimable=amount_text(sum(one.amount for one in due if one.account == account), token),
                forfeited=amount_text(sum(one.forfeited for one in due if one.account == account), token),
            )
            for account, had in zip(accounts, paid, strict=True)
            if had or any(one.account == account for one in due)
        ),
        funder=None
        if not mine[0] or funder is None
        else FunderLine(
            funder=funder,
            deposited=amount_text(mine[0], token),
            refunded=amount_text(mine[1], token),
            refundable=amount_text(mine[2], token),
        ),
    )


def settle(campaigns: Campaigns, campaign: Campaign, progress: Progress, say: Callable[[str], None]) -> Campaign:
    """The campaign once everything that can be settled is; each settlement is a transaction."""
    most = max(1, _STAGES_AT_ONCE // len(campaign.parts))
    while not campaign.closed_at:
        ready = campaign.can_settle(progress.round, progress.opened_at, progress.now)
        if not ready and not campaign.is_dead(progress.opened_at, progress.now):
            break
        receipt = campaigns.settle(campaign, min(ready, most))
        before, campaign = campaign, campaigns.campaign(campaign.number)
        say(f"campaign {campaign.number}: {campaign.settled - before.settled} epochs settled in 0x{receipt.tx.hex()}")
    return campaign


def claims(campaigns: Campaigns, campaign: Campaign, view: RunView, account: str) -> tuple[Due, ...]:
    """What the account can claim of settled epochs."""
    found = campaigns.due(campaign, _places(view, [account]))
    return tuple(one for one in found if one.amount)


def _places(view: RunView, accounts: Sequence[str]) -> list[tuple[str, int]]:
    """(account, stage) for each stage in which one ever held a slot."""
    stages = range(view.config.stages)
    standing = view.standings
    return [
        (one, stage) for one in accounts if one in standing for stage in stages if standing[one].stages >> stage & 1
    ]


def _epochs(rounds: str | None, next_epoch: int, total: int) -> tuple[int, int]:
    found = _ROUNDS.fullmatch(rounds or ":")
    if found is None:
        raise UsageFailure(f"--rounds {printable(rounds or '', 40)}: expected FROM:TO, such as 16:160 or 32:")
    first = EPOCH_ROUNDS * next_epoch if found[1] is None else int(found[1])
    end = total if found[2] is None else int(found[2])
    if first % EPOCH_ROUNDS or (end % EPOCH_ROUNDS and end != total):
        raise UsageFailure(
            f"--rounds {rounds}: whole epochs of {EPOCH_ROUNDS} rounds are funded: multiples of {EPOCH_ROUNDS}, "
            f"or the run's end at {total}"
        )
    if end > total:
        raise UsageFailure(f"--rounds {rounds}: the run has {total} rounds")
    return first // EPOCH_ROUNDS, epochs_of(end)


def _state(campaign: Campaign, progress: Progress) -> str:
    if campaign.closed_at:
        return "over" if progress.now > campaign.closed_at + CLAIM_TIME else "closed"
    first = EPOCH_ROUNDS * campaign.terms.from_epoch
    opened = progress.opened_at != 0 and progress.opened_at <= progress.now
    return "open" if progress.round > first or (progress.round == first and opened) else "to come"


def _pot_line(campaign: Campaign, pot: Pot, token: Token) -> PotLine:
    return PotLine(
        epoch=pot.epoch,
        rounds=(EPOCH_ROUNDS * pot.epoch, campaign.end(pot.epoch)),
        pot=amount_text(pot.amount, token),
        earned=None if pot.worth is None else amount_text(pot.worth, token),
        returned=None if pot.worth is None else amount_text(pot.amount - pot.worth, token),
    )


def chosen(campaigns: Campaigns, number: int, run: bytes) -> Campaign:
    """Raises Failure for a number that no campaign of the run has."""
    found = campaigns.campaign(number)
    if found.terms.run != run:
        raise Failure(f"campaign {number} is of run 0x{found.terms.run.hex()}, not 0x{run.hex()}")
    return found
