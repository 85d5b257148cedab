"""`dlx-node campaign create | fund | show | claim | refund`: money for a run's work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from dlx.node.cli import options
from dlx.node.home.errors import Failure
from dlx.node.home.formatting import bar

if TYPE_CHECKING:
    from dlx.ledger.campaigns import Campaigns
    from dlx.ledger.client import LedgerClient
    from dlx.ledger.view.run_view import RunView
    from dlx.node.runs.campaigns import CampaignDetails, CampaignLine, Progress

app = options.Verbs(help="Fund a run, see what became of each wei, and be paid for work.")
_OPTIONS = (*options.LEDGER, "campaigns")
_SENDS = (*_OPTIONS, *options.FEES, "password_file")
_CampaignArgument = Annotated[int, typer.Argument(min=0, metavar="CAMPAIGN", help="Its number.")]
_AmountArgument = Annotated[
    str, typer.Argument(metavar="AMOUNT", help='Such as "0.5 ETH", "20 gwei", or "250 USDC" of a token.')
]


class _Opened(NamedTuple):
    client: LedgerClient
    campaigns: Campaigns
    view: RunView
    progress: Progress
    account: str | None  # the folder's, if it has one


@app.command()
@options.of_folder(*_SENDS)
def create(
    given: options.Given,
    amount: _AmountArgument,
    run: options.RunOption = None,
    token: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="An ERC-20 to pay in.", show_default="ETH")
    ] = None,
    rounds: Annotated[
        str | None,
        typer.Option(
            metavar="FROM:TO", help="Rounds to pay for, whole epochs of 16.", show_default="next epoch to the end"
        ),
    ] = None,
    parts: Annotated[
        str | None, typer.Option(metavar="PERCENT,...", help="Of each stage.", show_default="all alike")
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="ROUNDS", help="After an epoch until it is paid.", show_default="the run's audit.window"
        ),
    ] = None,
    patience: Annotated[
        float, typer.Option(metavar="DAYS", help="Without a finished round until the run counts as dead.")
    ] = 30.0,
    seal_refund: Annotated[
        str | None,
        typer.Option(metavar="AMOUNT", help="The most that one seal's gas is refunded with.", show_default="nothing"),
    ] = None,
    json: options.JsonOption = False,
) -> None:
    """Make a campaign for rounds to come, and fund it. What no round uses comes back."""
    from dlx.ledger.campaigns import ETH
    from dlx.node.runs import campaigns as rules

    with _opened(given, run, sends=True) as opened:
        paid_in = opened.campaigns.token(options.account(token, "--token") if token else ETH)
        refund = 0 if seal_refund is None else rules.amount_of(seal_refund, opened.campaigns.token(ETH))
        window = _audit_window(given, opened.view) if window is None else window
        terms = rules.terms(
            opened.view, opened.progress, paid_in.address, rounds, window, round(patience * 86_400), refund
        )
        shares = rules.parts(parts, opened.view.config.stages)
        number = opened.campaigns.create(terms, shares, rules.amount_of(amount, paid_in))
        _show(opened, number, json)


@app.command()
@options.of_folder(*_SENDS)
def fund(
    given: options.Given,
    campaign: _CampaignArgument,
    amount: _AmountArgument,
    json: options.JsonOption = False,
) -> None:
    """Add to a campaign that has not begun."""
    from dlx.node.runs import campaigns as rules

    with _opened(given, None, sends=True, campaign=campaign) as opened:
        found = opened.campaigns.campaign(campaign)
        opened.campaigns.fund(found, rules.amount_of(amount, opened.campaigns.token(found.terms.token)))
        _show(opened, campaign, json)


@app.command()
@options.of_folder(*_OPTIONS)
def show(
    given: options.Given,
    campaign: Annotated[
        int | None, typer.Argument(min=0, metavar="CAMPAIGN", help="Its number.", show_default="all of the run")
    ] = None,
    run: options.RunOption = None,
    json: options.JsonOption = False,
) -> None:
    """Show a run's campaigns, or what became of each wei of one: by epoch, by account, and of what you put in."""
    from dlx.node.runs import campaigns as rules

    with _opened(given, run, sends=False, campaign=campaign) as opened:
        if campaign is not None:
            _show(opened, campaign, json)
            return
        found = rules.lines(opened.campaigns, opened.view.run, opened.progress)
    if json:
        options.print_json({"campaigns": found})
    elif not found:
        options.say("no campaign pays for this run")
    else:
        heads = ["CAMPAIGN", "STATE", "ROUNDS", "FUNDED", "PAID", "CLAIMABLE", "REFUNDABLE", "REFUNDED", "LEFT", "IN"]
        options.print_table(heads, [_row(one) for one in found])


@app.command()
@options.of_folder(*_SENDS)
def claim(
    given: options.Given,
    campaign: Annotated[
        int | None, typer.Argument(min=0, metavar="CAMPAIGN", help="Its number.", show_default="all of the run")
    ] = None,
    run: options.RunOption = None,
    account: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Whose pay; it goes there.", show_default="the folder's account"),
    ] = None,
    json: options.JsonOption = False,
) -> None:
    """Pay an account for its counted work: of one campaign, which is settled first, or of all that are settled.

    Settling costs gas for each epoch, so of campaigns that strangers made nobody settles unasked.
    """
    from dlx.node.runs import campaigns as rules

    with _opened(given, run, sends=True, campaign=campaign) as opened:
        whose = opened.client.account if account is None else options.account(account, "--account")
        all_ = opened.campaigns.of_run(opened.view.run)
        paid = list[dict[str, Any]]()
        for one in all_ if campaign is None else [opened.campaigns.campaign(campaign)]:
            if campaign is not None:
                one = rules.settle(opened.campaigns, one, opened.progress, options.note)
            token = opened.campaigns.token(one.terms.token)
            for due in rules.claims(opened.campaigns, one, opened.view, whose):
                receipt = opened.campaigns.claim(one.number, due)
                amount = f"{rules.amount_text(due.amount, token)} {token.symbol}"
                paid.append({"campaign": one.number, "stage": due.stage, "paid": amount, "transaction": receipt.tx})
    if json:
        options.print_json({"account": whose, "claims": [{**one, "transaction": _hex(one)} for one in paid]})
    elif not paid:
        options.say(f"nothing of this run's campaigns is claimable by {whose} now")
    else:
        rows = [[one["campaign"], one["stage"], one["paid"], _hex(one)] for one in paid]
        options.print_table(["CAMPAIGN", "STAGE", "PAID", "TRANSACTION"], rows)


@app.command()
@options.of_folder(*_SENDS)
def refund(given: options.Given, campaign: _CampaignArgument, json: options.JsonOption = False) -> None:
    """Settle what can be settled, and take back what no work used of what you put in."""
    from dlx.node.runs import campaigns as rules

    with _opened(given, None, sends=True, campaign=campaign) as opened:
        found = rules.settle(opened.campaigns, opened.campaigns.campaign(campaign), opened.progress, options.note)
        funder, token = opened.client.account, opened.campaigns.token(found.terms.token)
        _, _, back = opened.campaigns.deposit(campaign, funder)
        if not back:
            raise Failure(f"nothing of campaign {campaign} is {funder}'s to take back now")
        receipt = opened.campaigns.refund(campaign, funder)
    amount = f"{rules.amount_text(back, token)} {token.symbol}"
    made = {"campaign": campaign, "funder": funder, "refunded": amount, "transaction": "0x" + receipt.tx.hex()}
    options.print_json(made) if json else options.print_fields(list(made.items()))


@contextmanager
def _opened(given: options.Given, run: str | None, sends: bool, campaign: int | None = None) -> Iterator[_Opened]:
    """The ledger and its campaigns. `campaign`: its run is meant, and `run` may only say so too."""
    folder, settings = options.folder(given)
    from dlx.node.home.keys.identity import account_address, load_account
    from dlx.node.home.ledgers import open_index, open_ledger
    from dlx.node.runs import campaigns as rules
    from dlx.node.runs import find

    key = load_account(folder, settings).secret if sends else None
    account = None
    with suppress(Failure):  # who only looks needs none
        account = account_address(folder)
    with open_ledger(settings, folder, key) as client, open_index(client) as index:
        campaigns = rules.open_campaigns(client, settings)
        if campaign is None or run is not None:
            chosen = find.resolve(index, run)
        else:
            chosen = campaigns.campaign(campaign).terms.run
        if campaign is not None:
            rules.chosen(campaigns, campaign, chosen)
        view = find.view_of(client, index, chosen)
        yield _Opened(client, campaigns, view, rules.progress_of(client, chosen), account)


def _show(opened: _Opened, number: int, json: bool) -> None:
    from dlx.node.runs import campaigns as rules

    found = opened.campaigns.campaign(number)
    details = rules.details(opened.campaigns, found, opened.view, opened.progress, opened.account)
    options.print_json(details) if json else _print(details, found.funded - found.left, found.funded)


def _print(details: CampaignDetails, spent: int, funded: int) -> None:
    from dlx.node.runs.history import utc

    line = details.summary
    first, end = line.rounds
    options.print_fields(
        [
            ("campaign", f"{line.campaign}, {line.state}, for rounds {first} to {end - 1}"),
            ("run", line.run),
            ("paid in", line.unit if line.token == "ETH" else f"{line.unit} ({line.token})"),
            ("funded", f"{line.funded} {line.unit}"),
            ("paid", line.paid),
            ("claimable", f"{line.claimable} by accounts"),
            ("refundable", f"{line.refundable} by funders, who took back {line.refunded}"),
            ("left", f"{line.left} for epochs that are not settled"),
            ("settled", bar(spent, funded)),
            ("parts", ", ".join(f"stage {stage}: {part}%" for stage, part in enumerate(details.parts))),
            ("seal refund", f"at most {details.seal_refund}"),
            ("times", f"paid {details.window} rounds after an epoch; dead after {details.patience / 86_400:g} days"),
            *([("to settle", f"{details.to_settle} epochs")] if details.to_settle else []),
            *([("claims end", utc(details.claims_end))] if details.claims_end else []),
        ]
    )
    _print_table(
        ["EPOCH", "ROUNDS", "POT", "EARNED", "RETURNED"],
        [
            [pot.epoch, f"{pot.rounds[0]} to {pot.rounds[1] - 1}", pot.pot, pot.earned, pot.returned]
            for pot in details.pots
        ],
    )
    _print_table(
        ["ACCOUNT", "PAID", "CLAIMABLE", "FORFEITED"],
        [[one.account, one.paid, one.claimable, one.forfeited] for one in details.accounts],
    )
    if (mine := details.funder) is not None:
        _print_table(
            ["FUNDER", "PUT IN", "TOOK BACK", "REFUNDABLE"],
            [[mine.funder, mine.deposited, mine.refunded, mine.refundable]],
        )


def _print_table(columns: list[str], rows: list[list[Any]]) -> None:
    if rows:
        options.say("")
        options.print_table(columns, rows)


def _row(one: CampaignLine) -> list[Any]:
    rounds = f"{one.rounds[0]} to {one.rounds[1] - 1}"
    sums = [one.funded, one.paid, one.claimable, one.refundable, one.refunded, one.left]
    return [one.campaign, one.state, rounds, *sums, one.unit]


def _hex(one: dict[str, Any]) -> str:
    return "0x" + one["transaction"].hex()


def _audit_window(given: options.Given, view: RunView) -> int:
    """Rounds for which drawn work is served, as the run's manifest says where this folder has it."""
    from dlx.node.runs.campaigns import WINDOW
    from dlx.node.runs.find import read_manifest

    manifest = read_manifest(view, options.folder(given)[0].blob_folders)
    return WINDOW if manifest is None else manifest.audit.window
