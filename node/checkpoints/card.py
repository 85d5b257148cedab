"""The model card of a pulled version: what it is, where it comes from, and the command that verifies it.

Whoever pulls the version writes the same bytes: all of it follows from the manifest and the ledger.
"""

from __future__ import annotations

from typing import Any

from dlx.node.home.citation import Citation
from dlx.node.round.challenges.evaluation import is_due
from dlx.node.runs.listing import GGUF, HELD_OUT
from dlx.training.recipe.manifest import Manifest

CARD = "README.md"
_SAID = f"[{HELD_OUT}]({HELD_OUT}): what drawn members had said of it on the ledger when this folder was pulled"

_GGUF = ("Load it with llama.cpp:", "", "    llama-cli -m model.gguf")
_TRANSFORMERS = (
    "Load it (no code comes with it, and no pickle):",
    "",
    "    from transformers import AutoModelForCausalLM, AutoTokenizer",
    "",
    '    model = AutoModelForCausalLM.from_pretrained(".")',
    '    tokenizer = AutoTokenizer.from_pretrained(".")',
)

_PEFT = (
    "Load it (no code comes with it, and no pickle):",
    "",
    "    from peft import PeftModel",
    "    from transformers import AutoModelForCausalLM, AutoTokenizer",
    "",
    '    model = AutoModelForCausalLM.from_pretrained("BASE")',
    '    model = PeftModel.from_pretrained(model, ".")',
    '    tokenizer = AutoTokenizer.from_pretrained(".")',
)


def card(manifest: Manifest, provenance: dict[str, Any]) -> str:
    """As a Hugging Face README.md. `provenance`: what provenance.json says."""
    version, rounds, mean = provenance["version"], provenance["rounds"], provenance["average"]
    cited = citation(provenance)
    loss = "none yet" if provenance["loss"] is None else f"{provenance['loss']:.4f} nats per token"
    licence = manifest.data.licence.replace("`", "'")
    licence = f"`{licence}`, as its creator states" if licence else "not stated"
    adapter, kind, base = manifest.adapter, manifest.model.config["model_type"], ""
    if adapter is not None:
        base = f"`{adapter.base}`, as its creator states" if adapter.base else "no name stated"
        base += f"; weights by stage: {', '.join(f'`{one.sha256}`' for one in manifest.base)}"
        what = "merged into its base" if provenance["merged"] else "an adapter (PEFT)"
        kind = f"{kind}, factors of rank {adapter.rank}, {what}"
    rows = [
        ("model", f"{kind}, {provenance['dtype']}, {provenance['format']}"),
        *([("base", base)] if base else []),
        ("version", f"{version}: the weights after {version} of {rounds} rounds"),
        *([("mean of", f"the versions {', '.join(map(str, mean))}")] if mean else []),
        *([("held-out loss", _SAID)] if is_due(manifest, version) else []),
        ("training loss, as members say", loss),
        ("run", f"`{provenance['run']}`"),
        ("ledger", f"`{provenance['ledger']}` on chain {provenance['chain_id']}"),
        ("manifest", f"`{provenance['manifest']}` (manifest.json)"),
        ("data", f"`{manifest.data.manifest.sha256}`, licence {licence}"),
        ("cite as", f"`{cited}`"),
    ]
    if (parent := manifest.lineage) is not None:
        started = Citation(parent.chain_id, parent.ledger, parent.run, parent.version)
        rows.insert(-5, ("started from", f"`{started}`"))
    alone = adapter is not None and not provenance["merged"]
    stages = [
        f"| {stage['stage']} | `{stage['weights']}` | `{stage['transaction'] or 'genesis'}` |"
        for stage in provenance["stages"]
    ]
    return "\n".join(
        [
            "---",
            f"library_name: {'gguf' if provenance['format'] == GGUF else 'peft' if alone else 'transformers'}",
            "pipeline_tag: text-generation",
            "tags: [dlx, decentralised-training]",
            "---",
            "",
            f"# {manifest.name}, version {version}",
            "",
            "Trained by a decentralised run whose every step is on a ledger. The weights below are those that its",
            "members sealed; how they came about is what `dlx-node audit` checks.",
            *(["The model is the mean of this version and some before it, as the manifest says."] if mean else []),
            "",
            "| | |",
            "|---|---|",
            *(f"| {name} | {value} |" for name, value in rows),
            "",
            "| stage | weights (sha256) | sealed in |",
            "|---|---|---|",
            *stages,
            "",
            "Verify this folder against the ledger, by a chain node that you trust, with dlx-node installed from a",
            "clone (`pip install .` there) or from a wheel's file:",
            "",
            f"    dlx-node verify . --rpc-url URL --chain-id {provenance['chain_id']} --ledger {provenance['ledger']}",
            "",
            *(_GGUF if provenance["format"] == GGUF else _PEFT if alone else _TRANSFORMERS),
            "",
        ]
    )


def citation(provenance: dict[str, Any]) -> Citation:
    """Of a pulled version."""
    at = provenance["version"], provenance.get("average") is not None
    return Citation(provenance["chain_id"], provenance["ledger"], provenance["run"], *at)
