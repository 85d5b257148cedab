"""`dlx-node run plan` on a draft, as a person and as a program read it."""

import json
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlx.node.cli.runs import plan_text
from dlx.node.home.config import load
from dlx.node.home.datadir import DataDir
from dlx.node.home.errors import UsageFailure
from dlx.node.home.formatting import size
from dlx.node.runs.find import config_of
from dlx.node.runs.upkeep import round_bytes
from dlx.training.balance.costs import costs
from dlx.training.models import weights
from dlx.training.models.placement import Placement
from dlx.training.models.shapes import stage_shapes
from dlx.training.recipe.draft import complete, draft_from_toml
from dlx.training.recipe.recipe import BlobRef, WeightsRef
from tests.node.command import dlx

DOCS = Path(__file__).parents[3] / "docs"

DRAFT = """
name = "plan"
stages = {stages}
rounds = 4
[model.config]
model_type = "{family}"
vocab_size = 4096
{sizes}
[data]
source = ["run.toml"]
sequence_length = 32
batch_size = 4
micro_batches = {micro_batches}
"""
LLAMA = """hidden_size = 32
intermediate_size = 64
num_hidden_layers = 6
num_attention_heads = 2
num_key_value_heads = 2
max_position_embeddings = 32"""


def _write(folder: Path, stages: str, micro_batches: int = 2, family: str = "llama", sizes: str = LLAMA) -> Path:
    path = folder / "run.toml"
    path.write_text(DRAFT.format(stages=stages, micro_batches=micro_batches, family=family, sizes=sizes))
    return path


def test_a_price_says_what_a_campaign_costs(tmp_path: Path) -> None:
    draft = _write(tmp_path, "[[0, 3], [3, 6]]")
    asked = ["run", "plan", "--manifest", draft, "--replicas", 2, "--ranks", 1, "--json"]
    assert json.loads(dlx(*asked).stdout)["campaign"] is None
    plan = json.loads(dlx(*asked, "--price", "2 USDC/h").stdout)
    paid, seconds = plan["campaign"], plan["seconds"]
    whole = 3 * seconds["round"] + seconds["first_round"]
    assert paid["device_hours"] == pytest.approx(whole / 3600 * 2 * 2) and paid["unit"] == "USDC"
    assert paid["sum"] == paid["epoch"] == pytest.approx(2 * paid["device_hours"])
    assert sum(paid["parts"]) == pytest.approx(100) and len(paid["parts"]) == 2
    by_token = json.loads(dlx(*asked, "--price", "0.5/Mtok").stdout)["campaign"]
    assert by_token["sum"] == pytest.approx(0.5 * paid["tokens"] / 1e6)
    shown = dlx("run", "plan", "--manifest", draft, "--price", "2USDC/h").stdout
    assert "USDC for 4 rounds" in shown and "--parts" in shown
    assert "0.5USDC/h" in dlx("run", "plan", "--manifest", draft, "--price", "cheap", code=2).stderr


def test_a_plan_for_machines_and_for_people(tmp_path: Path) -> None:
    draft = _write(tmp_path, "[[0, 3], [3, 6]]")
    found = json.loads(dlx("run", "plan", "--manifest", draft, "--json").stdout)
    first, last = found["stages"]
    assert (first["stage"], first["layers"], last["layers"]) == (0, [0, 3], [3, 6])
    assert found["parameters"] == first["parameters"] + last["parameters"]
    assert first["parameters_share"] + last["parameters_share"] == pytest.approx(1)
    assert last["flops_per_token"] > 2 * first["flops_per_token"], "the head is most of this model"
    assert found["suggested"] == [[0, 5], [5, 6]]
    for stage in found["stages"]:
        memory = stage["memory"]
        assert memory["weights"] == memory["gradients"] == 4 * stage["parameters"]
        assert memory["device"] == 0 and memory["host"] > memory["activations"] + 2 * memory["weights"]
        assert 0 < stage["payload"] < memory["weights"]
        assert stage["pipes"] == 2 * (2 * 32 * 32 * 4), "two micro-batches, one neighbour"
        states, received = memory["weights"] + memory["optimiser"], 10 * stage["pipes"]
        assert stage["checks"]["undecided"] == states + received + memory["weights"], "a round is one segment"
        assert round_bytes(draft_from_toml(draft), stage["stage"], 10) == stage["checks"]["undecided"]
        assert stage["checks"]["drawn"] == 2 * states + received
        assert stage["checks"]["waiting"] == 2 * stage["checks"]["undecided"]
        assert stage["checks"]["payloads"] == 8 * 4 * stage["payload"], "of all replicas and rounds"
        kept = ("waiting", "served", "slot", "versions", "payloads")
        assert stage["checks"]["disk"] == sum(stage["checks"][one] for one in kept)
        assert stage["checks"]["served"] == round(20 * stage["checks"]["drawn"] / 16), "one segment, all of it its own"
    assert found["conditions"]["replicas"] == 8 and found["seconds"]["hides"] is False
    assert found["seconds"]["round"] >= found["seconds"]["training"] + found["seconds"]["exchange"]

    text = dlx("run", "plan", "--manifest", draft).stdout
    assert "more balanced: [[0, 5], [5, 6]]" in text and "hidden      no: the delay is 0" in text
    assert f"{first['parameters']:,}" in text and size(last["memory"]["host"]) in text
    assert "as balanced as can be: " in dlx("run", "plan", "--manifest", _write(tmp_path, "[[0, 5], [5, 6]]")).stdout


@pytest.mark.slow
def test_a_device_takes_the_state_and_ranks_divide_it(tmp_path: Path) -> None:
    draft = _write(tmp_path, "[[0, 3], [3, 6]]")

    def plan(*options: str) -> dict[str, Any]:
        return json.loads(dlx("run", "plan", "--manifest", draft, "--json", *options).stdout)

    one, two = plan("--device", "h100"), plan("--device", "h100", "--ranks", "2")
    for whole, half in zip(one["stages"], two["stages"], strict=True):
        assert half["memory"]["weights"] == whole["memory"]["weights"] // 2
        assert half["memory"]["device"] < whole["memory"]["device"]
        assert whole["memory"]["device"] > 3 * whole["memory"]["weights"]
    assert two["seconds"]["compute"] == pytest.approx(one["seconds"]["compute"] / 2)
    assert (one["device"]["name"], one["device"]["bfloat16"]) == ("NVIDIA H100 SXM", 989e12)
    assert one["conditions"]["flops"] == 0.4 * 67e12, "the run is in float32"
    assert plan("--device", "1e12", "--utilisation", "0.5")["conditions"]["flops"] == 0.5e12
    measured = plan("--measure")
    assert measured["device"]["measured"] and measured["conditions"]["flops"] > 1e6
    idle = plan("--ranks", "4")["warnings"]
    assert any("micro-batches of 2 samples leave ranks idle" in warning for warning in idle)


def test_the_largest_payload_that_an_adapting_plan_can_come_to_counts(tmp_path: Path) -> None:
    draft = _write(tmp_path, "[[0, 3], [3, 6]]")
    draft.write_text(draft.read_text() + "[outer]\nlr = 0.8\nalpha = 0.8\ndelay = 1\n[codec]\nname = 'lowrank'\n")
    adaptive = "[plan]\nrank = 4\n[adaptive]\ninner_steps = 40\nmin_rank = 2\nmax_rank = 8\n"
    fixed = json.loads(dlx("run", "plan", "--manifest", _with(draft, "[plan]\nrank = 4\n"), "--json").stdout)
    found = json.loads(dlx("run", "plan", "--manifest", _with(draft, adaptive), "--json").stdout)
    assert all(more["payload"] > one["payload"] for more, one in zip(found["stages"], fixed["stages"], strict=True))


DILOCOX = """[inner]
optimiser = "adamw"
[outer]
lr = 0.7
alpha = 0.7
momentum = 0.5
nesterov = true
delay = 1
[codec]
name = "lowrank"
[plan]
rank = 32
inner_steps = 125
"""


def test_a_plan_that_adapts_takes_as_long_as_one_that_stays_and_says_how_many_rounds_it_can_come_to(
    tmp_path: Path,
) -> None:
    draft = _write(tmp_path, "[[0, 3], [3, 6]]")
    draft.write_text(draft.read_text().replace("rounds = 4", "rounds = 10000") + DILOCOX)
    adapts = _with(draft, "[adaptive]\nmin_rank = 32\nmax_rank = 32\n")
    asked = ["--price", "2 USDC/h", "--link", "100kbit/s"]

    def said(draft: Path) -> dict[str, str]:
        lines = dlx("run", "plan", "--manifest", draft, *asked).stdout.splitlines()
        return {line.partition("  ")[0]: line for line in lines}

    fixed, found = said(draft), said(adapts)
    assert draft_from_toml(adapts).rounds == 250_000
    assert found["time"] == fixed["time"].replace(":", ", up to 250,000 if the plan shrinks:")
    assert found["traffic"] == fixed["traffic"].replace(" for the run", " for 10,000 rounds")
    assert found["campaign"] == fixed["campaign"] and " for 10,000 rounds, " in found["campaign"]
    data = json.loads(dlx("run", "plan", "--manifest", adapts, *asked, "--json").stdout)
    assert (data["rounds"], data["most_rounds"]) == (10_000, 250_000)
    short = adapts.read_text().replace("[adaptive]", "[adaptive]\ninner_steps = 1_000_000")
    assert " at best for 8,000 rounds of " in said(_with(draft, short.removeprefix(draft.read_text())))["time"]


def test_a_round_beyond_the_timeout_is_warned_of_with_a_value_that_ends_the_warning(tmp_path: Path) -> None:
    draft = _write(tmp_path, "[[0, 3], [3, 6]]")

    def warning(draft: Path, link: str = "2kbit/s") -> str:
        lines = dlx("run", "plan", "--manifest", draft, "--link", link).stderr.splitlines()
        return "".join(line for line in lines if "timing.round_timeout" in line)

    said = warning(draft)
    (value,) = re.findall(r"from the timeout on: write `(round_timeout = \d+)` under \[timing\]$", said)
    took = int(re.findall(r"takes about ([\d,]+) s", said)[0].replace(",", ""))
    assert 3 * took <= int(value.split()[-1]) < 3.4 * took
    assert warning(_with(draft, f"[timing]\n{value}\n")) == ""
    assert warning(draft, "1bit/s").endswith("no longer timeout is possible, so take fewer inner steps")


def test_a_slow_link_is_warned_of_what_does_not_fit(tmp_path: Path) -> None:
    draft = _write(tmp_path, "[[0, 6]]")
    draft.write_text(draft.read_text() + "[outer]\nlr = 0.8\nalpha = 0.8\ndelay = 1\n")
    found = json.loads(dlx("run", "plan", "--manifest", draft, "--link", "2kbit/s", "--json").stdout)
    assert found["conditions"]["served"] == round(found["stages"][0]["checks"]["drawn"] / 16)
    assert found["seconds"]["checks"] == 8 * found["conditions"]["served"] / 2000
    said = "\n".join(found["warnings"])
    assert "audit.share 0.0625: payloads and what checkers fetch take" in said
    assert "timing.round_timeout 120: a round takes about" in said
    assert re.search(r"longer rounds fit$", said, re.MULTILINE), "the payloads alone fill the link"
    fast = json.loads(dlx("run", "plan", "--manifest", draft, "--json").stdout)
    assert fast["warnings"] == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--device", "h1000"], "--device h1000: expected cpu, b200, h200,"),
        (["--device", "nan"], "--device nan: expected"),
        (["--utilisation", "1e-320"], "--utilisation 9.99989e-321: expected a part from 0.001 to 1"),
        (["--utilisation", "1.5"], "--utilisation 1.5: expected a part from 0.001 to 1"),
        (
            ["--checkpoint", "all"],
            "invalid value for '--checkpoint': 'all' is not one of 'none', 'layers', 'selective'",
        ),
        (["--link", "1Gb"], "--link 1Gb: expected a speed such as 100Mbit/s"),
        (["--lan", "0Gbit/s"], "--lan 0Gbit/s: expected a speed"),
        (["--replicas", "9"], "--replicas 9: the run has at most 8"),
    ],
)
def test_an_impossible_option_is_one_line(options: list[str], said: str, tmp_path: Path) -> None:
    draft = _write(tmp_path, "[[0, 3], [3, 6]]")
    line = dlx("run", "plan", "--manifest", draft, *options, code=2).stderr
    assert line.startswith(f"dlx-node: {said}") and line.count("\n") == 1


def _with(draft: Path, text: str) -> Path:
    path = draft.with_name("more.toml")
    path.write_text(draft.read_text() + text)
    return path


def test_tied_embeddings_are_counted_in_the_pipes(tmp_path: Path) -> None:
    sizes = "n_embd = 32\nn_layer = 6\nn_head = 2\nn_positions = 32"
    found = []
    for tied in ("false", "true"):
        draft = _write(tmp_path, "[[0, 3], [3, 6]]", family="gpt2", sizes=f"{sizes}\ntie_word_embeddings = {tied}")
        found.append(json.loads(dlx("run", "plan", "--manifest", draft, "--json").stdout)["stages"])
    head = found[0][1]["parameters"] - found[1][1]["parameters"]
    assert head > 0 and [tied["pipes"] - untied["pipes"] for untied, tied in zip(*found, strict=True)] == [4 * head] * 2


def test_the_example_of_107_billion_parameters_is_what_the_docs_say() -> None:
    text = (DOCS / "plan.md").read_text()
    command = next(
        line for line in text.splitlines() if line.startswith("    dlx-node run plan --manifest docs/107b.toml")
    )
    options = [str(DOCS / "107b.toml") if one == "docs/107b.toml" else one for one in command.split()[1:]]
    printed = dlx(*options).stdout
    for line in printed.splitlines():
        name = line[:24].strip()
        shown = [cell.strip() for cell in re.split(r"  +", line.strip())]
        if len(shown) == 9:  # a name and eight stages, of which the docs have three
            found = next(one for one in text.splitlines() if one.startswith(f"    {name}  "))
            assert re.split(r"  +", found.strip()) == [name, shown[1], shown[2], shown[8]]
        elif name and not line.startswith(" "):
            assert f"    {line.rstrip()}\n" in text
    plan = json.loads(dlx(*options, "--json").stdout)
    assert f"{plan['parameters']:,}" in text and 106.5e9 < plan["parameters"] < 107.5e9
    assert len(plan["stages"]) == 8 and plan["conditions"]["replicas"] == 20
    assert plan["seconds"]["hides"] and plan["seconds"]["hiding_steps"] <= plan["max_inner_steps"]
    for stage in plan["stages"]:
        memory = 8 * stage["memory"]["device"]
        assert stage["checks"]["undecided"] < 2 * memory and stage["checks"]["waiting"] < 4 * memory
    assert plan["warnings"] == []


@pytest.mark.slow
def test_a_start_ahead_takes_one_more_file_of_weights_to_check_a_segment_in_the_middle(tmp_path: Path) -> None:
    draft, drawn = _write(tmp_path, "[[0, 6]]"), {}
    text = draft.read_text()
    for steps in (20, 40, 60):
        for ahead in (0.0, 0.5):
            draft.write_text(text + f"[outer]\nahead = {ahead}\n[plan]\ninner_steps = {steps}\n")
            (stage,) = json.loads(dlx("run", "plan", "--manifest", draft, "--json").stdout)["stages"]
            drawn[steps // 20, ahead] = stage["checks"]["drawn"]
    weights = stage["memory"]["weights"]
    assert drawn[2, 0.0] - drawn[1, 0.0] == weights
    assert [drawn[segments, 0.5] - drawn[segments, 0.0] for segments in (1, 2, 3)] == [0, 0, weights]


@pytest.mark.slow
def test_rounds_that_no_disk_holds_until_they_are_drawn_are_warned_of_with_a_number_of_steps_that_fits(
    tmp_path: Path,
) -> None:
    example = (DOCS / "107b.toml").read_text()
    options = ["--device", "h200", "--ranks", "8", "--checkpoint", "layers", "--lan", "10Gbit/s"]

    def warnings(adaptive: str) -> list[str]:
        draft = tmp_path / "run.toml"
        draft.write_text(example.replace("max_inner_steps = 16", adaptive))
        found = json.loads(dlx("run", "plan", "--manifest", draft, *options, "--json").stdout)["warnings"]
        return [one for one in found if one.startswith("adaptive.max_inner_steps")]

    (said,) = warnings("max_inner_steps = 125")
    assert said.startswith("adaptive.max_inner_steps 125: until its rounds' draws are known, stage ")
    assert "keeps 13.7 TB of states and received tensors on disk; at most " in said
    most = int(said.partition("at most ")[2].split()[0])
    assert warnings(f"max_inner_steps = {most}") == [] != warnings(f"max_inner_steps = {most + 1}")


def test_time_traffic_and_disk_are_said_first_and_what_a_common_one_does_not_hold_is_warned_of(tmp_path: Path) -> None:
    def plan(*options: str) -> Any:
        return dlx("run", "plan", "--manifest", draft, "--device", "h200", "--ranks", "8", *options)

    draft = tmp_path / "run.toml"
    draft.write_text((DOCS / "107b.toml").read_text())
    said = plan()
    time, traffic, disk = said.stdout.splitlines()[:3]
    assert re.fullmatch(
        r"time     \S+ \S+ at best for 10,000 rounds of .*: [\d,]+ tokens/s at best, of 20 replicas, "
        r"at an assumed speed .*",
        time,
    )
    assert re.fullmatch(
        r"traffic  \S+ GB each way a round for a member, \S+ GB a day, \S+ TB for the run; "
        r"between .* an inner step, .* a day",
        traffic,
    )
    assert disk.startswith("disk     up to 3.5 TB for a member of stage 0: ") and "versions of the last 25" in disk
    assert "of disk, more than" not in said.stderr
    found = json.loads(plan("--json").stdout)
    assert found["retention"] == {"payloads": 25, "versions": 3, "every": 10, "checkpoints": 25}
    draft.write_text(draft.read_text() + '[retention]\npayloads = "run"\ncheckpoints = "run"\n')
    (warning,) = [one for one in json.loads(plan("--json").stdout)["warnings"] if "of disk, more than" in one]
    assert warning.startswith("a member of stage 0 takes up to 276.4 TB of disk, more than 4.0 TB, which are common; ")
    assert warning.endswith(
        "156.8 TB of it for payloads: a smaller retention.payloads (now of the whole run) or more stages take less"
    )


def test_a_disk_that_private_rounds_fill_is_warned_of_with_what_makes_them_less(tmp_path: Path) -> None:
    draft = tmp_path / "run.toml"
    draft.write_text((DOCS / "107b.toml").read_text().replace("max_inner_steps = 16", "max_inner_steps = 500"))
    said = dlx("run", "plan", "--manifest", draft, "--device", "h200", "--ranks", "8").stderr
    (warning,) = [line for line in said.splitlines() if "of disk, more than" in line]
    assert "for rounds until they are drawn: a smaller adaptive.max_inner_steps (now 500) or more stages" in warning


def test_the_free_disk_is_that_of_the_data_folder_and_of_no_other_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []

    def usage(place: Path) -> SimpleNamespace:
        looked.append(place)
        return SimpleNamespace(free=10**9)

    monkeypatch.setattr("shutil.disk_usage", usage)
    draft, folder = tmp_path / "run.toml", tmp_path / "node"
    folder.mkdir()
    draft.write_text((DOCS / "107b.toml").read_text())
    here = dlx("run", "plan", "--manifest", draft, "--device", "cpu", "--datadir", folder).stderr
    assert f"the disk of {folder} has 1.0 GB free, less than the member of stage 0 takes" in here
    assert looked == [folder]
    other = dlx("run", "plan", "--manifest", draft, "--device", "h200", "--ranks", "8", "--datadir", folder).stderr
    assert "free, less than" not in other


def test_the_free_memory_is_that_of_this_machine_where_it_trains_and_of_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = _write(tmp_path, "[[0, 2], [2, 6]]")
    needed = max(cost.memory.host for cost in costs(draft_from_toml(draft)))

    def said(free: int, *device: object) -> str:
        monkeypatch.setattr(plan_text, "free_memory", lambda: free)
        return dlx("run", "plan", "--manifest", draft, *device).stderr

    lacking = f"this machine has {size(needed - 1)} of memory free, less than the {size(needed)} that stage 1 takes"
    assert lacking in said(needed - 1)
    assert "of memory free" not in said(needed) + said(1, "--device", "h200")
    assert "of memory free" in said(needed, "--ranks", 2), "each rank takes its own"


def test_a_run_of_107_billion_parameters_is_within_every_limit_and_soon_planned() -> None:
    draft, began = draft_from_toml(DOCS / "107b.toml"), time.process_time()
    found = costs(draft, Placement(device="cuda", checkpoint="layers"), 8)
    assert time.process_time() - began < 10
    shapes = [stage_shapes(draft, stage) for stage in range(8)]
    sizes = [weights.file_size(one) for one in shapes]
    assert 428e9 < sum(sizes) < 429e9
    manifest = complete(draft, [WeightsRef("ab" * 32, size, "cd" * 32) for size in sizes], BlobRef("cd" * 32, 1 << 20))
    config = config_of(manifest)
    assert config.tokens_per_step == 128 * 4096 and config.max_inner_steps == 16
    assert max(cost.payload for cost in found) < min(sizes)
    assert draft.rounds * config.max_inner_steps * config.tokens_per_step * 20 < 1 << 63


def test_a_draft_that_cannot_be_planned_is_one_line(tmp_path: Path) -> None:
    sizes = "n_embd = 33\nn_layer = 6\nn_head = 2\nn_positions = 32"
    draft = _write(tmp_path, "[[0, 3], [3, 6]]", family="gpt2", sizes=sizes)
    line = dlx("run", "plan", "--manifest", draft, code=2).stderr
    assert "model.config.n_embd: expected a multiple of n_head (2), got 33" in line


def test_checkpointed_activations_are_a_setting_like_others(tmp_path: Path) -> None:
    folder = DataDir(tmp_path)
    assert load(folder, {}, {}).checkpoint_activations == "none"
    assert load(folder, {}, {"DLX_CHECKPOINT_ACTIVATIONS": "true"}).checkpoint_activations == "layers"
    assert load(folder, {"checkpoint_activations": "selective"}, {}).checkpoint_activations == "selective"
    folder.config.write_text("checkpoint_activations = true\n")
    assert load(folder, {}, {}).checkpoint_activations == "layers"
    with pytest.raises(UsageFailure, match="checkpoint_activations"):
        folder.config.write_text('checkpoint_activations = "yes"\n')
        load(folder, {}, {})
