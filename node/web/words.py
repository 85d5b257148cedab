"""Words of the page that need saying, in sentences of docs/glossary.md; a test compares them."""

WORDS = {
    "run": "One training job.",
    "round": "Some inner steps of every replica, then one exchange per stage.",
    "inner step": "An inner step is one optimiser step of a replica on its own data.",
    "stage": "A slice of consecutive layers of the model, numbered from 0.",
    "replica": "One complete pipeline: one member for each stage.",
    "slot": "One stage of one replica.",
    "member": "An account that holds a slot in the run.",
    "payload": "A pseudo-gradient (weights at the start of a round minus weights at its end) as bytes and nothing "
    "else, named by their sha256.",
    "codec": "The codec makes payloads: int4, ternary, lowrank or topk.",
    "contribution": "What one slot did in a round: a payload and its signed statement.",
    "seal": "The ledger's entry that closes a round of a stage: the records, the hashes of the next version, the "
    "signatures of a quorum.",
    "drawn": "Chosen by the hash of a later block to be trained again: a segment, some steps of a replica's round.",
    "weight": "A member's part of all power in its stage: recent work that seals counted.",
    "quorum": "The manifest's fraction of the stage's weight (by default 5/8), rounded up.",
    "founder": "An account that the run was created with, by default its creator.",
    "version": "The shared weights of a stage after some sealed rounds.",
    "held-out loss": "The held-out loss of a version is its loss on text that nobody trains on. The ledger has it of a "
    "few drawn samples of that text.",
    "manifest": "The run's full, immutable description: model, stages, data, optimisers, codec, timing, quorum, audit.",
    "campaign": "Money for some epochs of a run, 16 rounds each.",
}
