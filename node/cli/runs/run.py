"""`dlx-node run new | plan | create | list | show | dismiss | publish`: training runs on the ledger."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from dlx.node.cli import options
from dlx.node.cli.progress import Progress
from dlx.node.cli.runs import consent, invite, plan, plan_text, wizard
from dlx.node.home import extras
from dlx.node.home.errors import Failure
from dlx.node.home.program import line

app = options.Verbs(help="Draft, plan, create, list and show training runs; free slots; publish checkpoints.")


app.command("new")(wizard.command)
app.command("plan")(plan.command)
app.command("invite")(invite.command)
app.command("revoke")(invite.revoke)
app.command("steward")(invite.steward)


@app.command()
@options.of_folder(*options.LEDGER, *options.FEES, "password_file")
def create(
    given: options.Given,
    manifest: plan.DraftOption,
    public_data: Annotated[
        bool,
        typer.Option("--public-data", help="The run's text may be public: whoever asks gets it.", show_default="asked"),
    ] = False,
    founder: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ACCOUNT",
            help="An account whose node signs the first seals; may be given up to 8 times.",
            show_default="the account that creates the run",
        ),
    ] = None,
    invited: Annotated[
        bool, typer.Option("--invited", help="Only whom `run invite` names may join, as by invited in FILE.")
    ] = False,
    unbounded: Annotated[
        bool,
        typer.Option("--unbounded", help='Let anybody join although outer.policy is "mean": one can ruin the model.'),
    ] = False,
    json: options.JsonOption = False,
) -> None:
    """Freeze data and initial weights into blobs, complete the manifest and register the run.

    The folder's node serves the blobs, the text among them, to whoever asks; asking again for the same run changes
    nothing. Until work has earned enough weight in a stage, its seals take the signature of a founder, whose node has
    to run.
    """
    founders = [options.account(one, "--founder") for one in founder or ()]
    extras.require("train")  # for the initial weights, after the data
    folder, settings = options.folder(given)
    from dlx.node.home.keys.identity import load_account
    from dlx.node.home.ledgers import open_ledger
    from dlx.node.runs import create
    from dlx.node.runs.upkeep import unpaid
    from dlx.training.recipe.draft import draft_from_toml

    account = load_account(folder, settings)
    with plan.reading(manifest):
        draft = draft_from_toml(manifest)
        for warning in unpaid(draft.audit):
            options.note(f"warning: {warning}")
    consent.askable(public_data, ", ".join(map(str, draft.sources[:3])) or draft.data.prepared)
    with plan.reading(manifest), open_ledger(settings, folder, account.secret) as client, Progress(json) as progress:
        created = create.create_run(
            manifest,
            folder,
            client,
            lambda what: consent.agree(public_data, what),
            progress.say,
            progress.show,
            founders,
            invited,
            unbounded,
        )
    if json:
        options.print_json(created)
        return
    options.print_fields(
        [
            ("run", created.run),
            ("ledger", "had the run before" if created.existed else "run registered"),
            ("name", created.name),
            ("creator", created.creator),
            ("founders", ", ".join(created.founders)),
            ("manifest", created.manifest),
            ("data manifest", created.data_manifest),
            *((f"genesis of stage {stage}", name) for stage, name in enumerate(created.genesis)),
            *([] if created.held_out is None else [("held-out loss", f"{created.held_out:.4f} nats before training")]),
            ("blobs", created.blobs),
            ("next", line("start", "--run", created.run[:14], folder=folder.root)),
        ]
    )


@app.command("list")
@options.of_folder(*options.LEDGER)
def list_(given: options.Given, json: options.JsonOption = False) -> None:
    """List the ledger's runs, oldest first."""
    folder, settings = options.folder(given)
    from dlx.node.home.ledgers import open_index, open_ledger
    from dlx.node.runs import find

    with open_ledger(settings, folder) as client, open_index(client) as index:
        found, unreadable = find.list_runs(client, index, folder.blob_folders)
    for one in unreadable:
        options.note(f"run {one.run} cannot be shown: {one.why}")
    if json:
        options.print_json({"runs": found, "unreadable": unreadable})
    elif not found and not unreadable:
        sys.stdout.write("no runs\n")
    elif found:
        rows = [
            [run.run, run.name, f"{run.sealed_rounds} of {run.rounds}", run.stages, run.members, run.state, run.creator]
            for run in found
        ]
        options.print_table(["RUN", "NAME", "ROUNDS", "STAGES", "MEMBERS", "STATE", "CREATOR"], rows)


@app.command()
@options.of_folder(*options.LEDGER)
def show(given: options.Given, run: options.RunArgument = None, json: options.JsonOption = False) -> None:
    """Show a run's terms, what a slot takes, its members, how far it is, and the ten newest checkpoints that were
    published."""
    folder, settings = options.folder(given)
    from dlx.node.home.ledgers import limits_of, open_index, open_ledger
    from dlx.node.runs import find, slot_costs
    from dlx.node.runs.history import utc

    with open_ledger(settings, folder) as client, open_index(client) as index:
        view = find.view_of(client, index, find.resolve(index, run))
        found = find.show_run(view, folder.blob_folders, index.tip.time if index.tip else None)
        price = slot_costs.gas_price(client.rpc, limits_of(settings))
        take = slot_costs.take(
            view, find.read_manifest(view, folder.blob_folders), price, slot_costs.round_seconds(view)
        )
    if json:
        options.print_json(msgspec.to_builtins(found) | {"slot": take})
        return
    summary = found.summary
    fields = [
        ("run", summary.run),
        ("name", summary.name),
        ("creator", summary.creator),
        ("manifest", summary.manifest),
        ("state", summary.state),
        ("rounds", f"{summary.sealed_rounds} of {summary.rounds} sealed"),
        ("stages", summary.stages),
        ("replicas", f"{found.min_replicas} to {found.max_replicas}, {found.complete_replicas} complete now"),
        ("founders", ", ".join(found.founders)),
        ("weight", f"of work that the last {found.horizon} or so seals counted; {find.founders_part(found)}"),
        ("quorum", f"{found.quorum} of a stage's weight, rounded up"),
        *([("opens", f"not before {utc(found.start_time)}")] if found.start_time else []),
        ("times", plan_text.round_times(found.min_round_time, found.round_timeout, found.eviction_time)),
        ("inner steps", f"at most {found.max_inner_steps} a round"),
        ("tokens per step", found.tokens_per_step),
    ]
    options.print_fields(fields)
    if summary.state != "finished":
        more = f"`{line('run', 'plan', '--run', summary.run[:14], of_ledger=True)}` says it of this machine"
        gas = slot_costs.gas_in_words(take.gas, take.gas_unknown, client.chain_id, settings.daily_budget)
        sys.stdout.write("\nA slot takes, of the stage that takes most:\n")
        options.print_fields(
            [*slot_costs.in_words(take, more), ("gas", gas), ("bond", slot_costs.bond_in_words(take.bond_wei))]
        )
    sited = any(member.site for member in found.members)
    rows = [
        [
            *(member.replica, member.stage, member.account, member.last_round_counted, f"{member.weight:.1%}"),
            *("yes" if holds else "" for holds in (member.accused, member.forfeit)),
            *([member.site or ""] if sited else []),
        ]
        for member in found.members
    ]
    if rows:
        sys.stdout.write("\n")
        heads = ["REPLICA", "STAGE", "ACCOUNT", "LAST COUNTED", "WEIGHT", "ACCUSED", "FORFEIT"]
        options.print_table([*heads, *(["SITE"] if sited else [])], rows)
    if found.checkpoints:
        sys.stdout.write("\n")
        offers = [[one.version, one.uri, one.account, one.checkpoint] for one in found.checkpoints[-10:]]
        options.print_table(["VERSION", "PUBLISHED AT", "BY", "CHECKPOINT"], offers)


@app.command()
@options.of_folder(*options.LEDGER, *options.FEES, "password_file")
def dismiss(
    given: options.Given,
    account: Annotated[str, typer.Argument(metavar="ACCOUNT", help="Who holds the slot.")],
    successor: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="ACCOUNT",
            help="Who alone may take the slot, for as long as an evicted member's waits.",
            show_default="anybody",
        ),
    ] = None,
    run: options.RunOption = None,
    json: options.JsonOption = False,
) -> None:
    """Free a member's slot, as a founder of the run: against who holds slots of a stage and does not work.

    Possible while founders hold two thirds of the stage's weight. Or as much of it as the member has, while a stage
    of the run stands still: 32 rounds in a row were empty there. Nobody is barred: the account may join again.
    """
    member = options.account(account, "ACCOUNT")
    heir = None if successor is None else options.account(successor, "--for")
    folder, settings = options.folder(given)
    from dlx.node.home.keys.identity import load_account
    from dlx.node.home.ledgers import open_index, open_ledger
    from dlx.node.runs import find

    own = load_account(folder, settings)
    with open_ledger(settings, folder, own.secret) as client, open_index(client) as index:
        view = find.view_of(client, index, find.resolve(index, run))
        now = index.tip.time if index.tip else 0
        slot = view.slot_of(member)
        if not view.is_founder(own.address):
            raise Failure(f"{own.address} is no founder of the run: {', '.join(view.founders)} may dismiss")
        if slot is None:
            raise Failure(f"{member} holds no slot of the run")
        if not view.may_dismiss(own.address, member, now):
            raise Failure(
                f"work has earned more than a third of stage {slot[1]}'s weight: its slots can be freed once a stage "
                "has had 32 empty rounds in a row, while founders have no less of it than who holds them"
            )
        if heir is not None and (view.slot_of(heir) is not None or view.is_convicted(heir)):
            why = "was convicted" if view.is_convicted(heir) else "has one"
            raise Failure(f"{heir} cannot take the slot: it {why}")
        receipt = client.dismiss(view.run, member, heir)
    replica, stage = slot
    done = {"account": member, "replica": replica, "stage": stage, "for": heir or "anybody", "block": receipt.block}
    options.print_json(done) if json else options.print_fields(list(done.items()))


@app.command()
@options.of_folder(*options.LEDGER, "bootstrap", "mailboxes", *options.FEES, "password_file")
def publish(
    given: options.Given,
    uri: Annotated[str, typer.Option(metavar="URI", help="Where the checkpoint's folder can be had.")],
    run: options.RunArgument = None,
    round: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="Version N: the weights after N rounds.", show_default="the newest sealed"
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="What `dlx-node pull` wrote.", show_default="pulled for this"),
    ] = None,
    blobs: options.BlobsOption = None,
    json: options.JsonOption = False,
) -> None:
    """Say on the ledger where a version can be had, with the hash of the list of its files (SHA256SUMS).

    For the run's creator and its members. Whoever pulls the version sees whether that list is the same.
    """
    folder, settings = options.folder(given)
    from dlx.node.audit.sources.places import Places
    from dlx.node.checkpoints.pull import pull_run
    from dlx.node.home.keys.identity import load_account
    from dlx.node.home.ledgers import open_index, open_ledger
    from dlx.node.runs import find
    from dlx.node.runs.listing import publish

    kept = tuple(options.existing_folder(path, "--blobs") for path in blobs or ())
    if checkpoint is not None:
        options.existing_folder(checkpoint, "--checkpoint")
    places = Places(kept, tuple(folder.blob_folders), settings.bootstrap, settings.mailboxes)
    account = load_account(folder, settings)
    with (
        open_ledger(settings, folder, account.secret) as client,
        open_index(client) as index,
        Progress(json) as progress,
    ):
        view = find.view_of(client, index, find.resolve(index, run))

        def pull(version: int, out: Path) -> dict[str, Any]:
            return pull_run(client, view, version, out, places, progress.show, progress.say)

        made = publish(client, view, options.cited_version(round), uri, checkpoint, pull)
    options.print_json(made) if json else options.print_fields(list(made.items()))
