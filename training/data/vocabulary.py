"""A run's `tokenizer.json`: how text becomes token ids, and which token stands between documents."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dlx.ground.untrusted import decode_json
from dlx.training.data.conversations import Rendered
from dlx.training.data.rows import Sample
from dlx.training.data.shards import (
    BYTE_VALUES,
    MAX_TOKENIZER_BYTES,
    MAX_VOCABULARY,
    DataError,
    DataManifest,
    TextError,
)
from dlx.training.recipe.huggingface import read_text
from dlx.training.recipe.strict import ManifestError
from dlx.training.recipe.usage import end_of_text

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# How tokenizers in common use name the end of a document; the first one that a tokenizer has is meant.
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "<｜end▁of▁sentence｜>")


class Vocabulary:
    """Use `read` or `parse`. `separator` is the id of the token after each document."""

    def __init__(self, content: bytes, tokenizer: "Tokenizer", size: int, separator: int) -> None:
        self.content, self.size, self.separator = content, size, separator
        self._tokenizer = tokenizer

    @classmethod
    def read(cls, path: Path, separator: str | int | None = None) -> "Vocabulary":
        """The tokenizer in a file; `separator` is a token's text or id, None the first of ENDS, else what the files
        beside it (tokenizer_config.json, generation_config.json) say ends a text. Raises DataError."""
        try:
            content = read_text(path, MAX_TOKENIZER_BYTES).encode()
        except ManifestError as error:
            raise DataError(str(error)) from None
        tokenizer = _load(content, str(path))
        if separator is None and _first_end(tokenizer) is None:
            separator = _end_beside(path)
        return cls._of(tokenizer, content, separator, str(path))

    @classmethod
    def parse(cls, content: bytes, separator: str | int | None, origin: str) -> "Vocabulary":
        """The same from bytes, which may come from anyone; `origin` names them in errors."""
        return cls._of(_load(content, origin), content, separator, origin)

    @classmethod
    def _of(cls, tokenizer: "Tokenizer", content: bytes, separator: str | int | None, origin: str) -> "Vocabulary":
        ids = tokenizer.get_vocab(with_added_tokens=True).values()
        size = max(ids, default=0) + 1
        if not 2 <= size <= MAX_VOCABULARY:
            raise DataError(f"{origin}: expected a vocabulary of 2 to {MAX_VOCABULARY} tokens, got {size}")
        return cls(content, tokenizer, size, _separator(tokenizer, separator, origin))

    @classmethod
    @cache
    def of_bytes(cls) -> "Vocabulary":
        """That of data without a tokenizer: a byte-level BPE without merges whose ids are the bytes of the text."""
        from tokenizers import Tokenizer, decoders, pre_tokenizers
        from tokenizers.models import BPE
        from transformers.convert_slow_tokenizer import bytes_to_unicode

        tokenizer = Tokenizer(BPE(vocab={letter: byte for byte, letter in bytes_to_unicode().items()}, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        content = json.dumps(json.loads(tokenizer.to_str()), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        return cls(content.encode(), tokenizer, BYTE_VALUES, 0)

    def encode(self, texts: list[str]) -> list[list[int]]:
        """The ids of each text on its own, without special tokens around it: the same for any grouping of texts."""
        with _encoding():
            return [found.ids for found in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    def spoken(self, texts: Sequence[Rendered]) -> list[Sample]:
        """The ids of each text, as `encode` has them; the loss of those counts that have a part of what is spoken."""
        with _encoding():
            found = self._tokenizer.encode_batch([one.text for one in texts], add_special_tokens=False)
        return [Sample(one.ids, _counted(text, one.offsets)) for text, one in zip(texts, found, strict=True)]

    def around(self) -> tuple[list[int], list[int]]:
        """The ids that the tokenizer puts before and behind a text, by what becomes of a letter. Raises TextError, also
        unless the letter stands there once, as one token."""
        with _encoding():
            inner, whole = (self._tokenizer.encode("a", add_special_tokens=around) for around in (False, True))
        places = [place for place, special in enumerate(whole.special_tokens_mask) if not special]
        if len(inner.ids) != 1 or len(places) != 1:
            raise TextError("a letter does not stand once, as one token, in what the tokenizer makes of it")
        return whole.ids[: places[0]], whole.ids[places[0] + 1 :]

    def id_of(self, text: str) -> int | None:
        """Of the token that is spelled so; None where there is none."""
        found = self._tokenizer.token_to_id(text)
        return None if found is None else int(found)

    def text_of(self, token: int) -> str | None:
        """How a token is spelled, by its id; None where there is none."""
        found = self._tokenizer.id_to_token(token)
        return None if found is None else str(found)

    def settings(self) -> dict[str, Any]:
        """The tokenizer.json as it was understood: with every key that the file may leave out, and no unknown one."""
        return dict(json.loads(self._tokenizer.to_str()))

    @property
    def end(self) -> str:
        """The separator as text."""
        return str(self.text_of(self.separator))

    @property
    def added(self) -> dict[int, bool]:
        """Of each token that is found whole in a text, by its id: whether it is special."""
        return {token: bool(one.special) for token, one in self._tokenizer.get_added_tokens_decoder().items()}

    @property
    def has_special(self) -> bool:
        """Whether there are special tokens that count as such where a text spells them out."""
        return any(self.added.values())


def is_bytes(path: Path) -> bool:
    """Whether a file is the tokenizer of `Vocabulary.of_bytes`, in whatever way it is written."""
    try:
        found = json.loads(read_text(path, MAX_TOKENIZER_BYTES))
        return bool(found == json.loads(Vocabulary.of_bytes().content))
    except (ValueError, RecursionError):
        return False


def tokenizer_problem(manifest: DataManifest, blobs: Path) -> str | None:
    """Why the tokenizer in a folder of intact blobs is not the one that the data manifest speaks of."""
    if manifest.tokenizer == "bytes":
        return None
    try:
        found = Vocabulary.read(blobs / manifest.tokenizer.sha256, manifest.separator)
    except DataError as error:
        return str(error)
    if found.size != manifest.vocab_size:
        return f"{manifest.tokenizer.sha256}: a tokenizer of {found.size} tokens, not of {manifest.vocab_size}"
    return None


def _counted(text: Rendered, offsets: Sequence[tuple[int, int]]) -> list[bool]:
    """Of each token. Offsets may leave out spaces: a token begins no later than where the one before ends."""
    before = np.zeros(len(text.text) + 1, np.int64)  # characters spoken before each place
    for low, high in text.spoken:
        before[low + 1 : high + 1] = 1
    before = np.cumsum(before)
    found, ended = list[bool](), 0
    for low, high in offsets:
        low = min(low, ended)
        ended = max(ended, high)
        found.append(bool(before[max(low, high)] > before[low]))
    return found


@contextmanager
def _encoding() -> Iterator[None]:
    """Raises TextError for whatever the Rust code raises."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # plain Exceptions, and panics that are no Exception at all
        raise TextError(f"the tokenizer cannot encode the text ({_line(error)})") from None


def _load(content: bytes, origin: str) -> "Tokenizer":
    from tokenizers import Tokenizer

    if len(content) > MAX_TOKENIZER_BYTES:
        raise DataError(f"{origin}: expected a tokenizer.json of at most {MAX_TOKENIZER_BYTES >> 20} MiB")
    try:
        text = content.decode()
        raw = decode_json(text)
        if (raw.get("model") or {}).get("dropout"):
            raise DataError(f"{origin}: its BPE dropout gives other tokens each time; set model.dropout to null")
        tokenizer = Tokenizer.from_str(text)
    except (DataError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # its Rust code raises plain Exceptions, and panics that are no Exception at all
        raise DataError(f"{origin}: not a tokenizer.json of Hugging Face `tokenizers` ({_line(error)})") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _separator(tokenizer: "Tokenizer", wanted: str | int | None, origin: str) -> int:
    if isinstance(wanted, int):
        if wanted < 0 or wanted >= MAX_VOCABULARY or tokenizer.id_to_token(wanted) is None:
            raise DataError(f"{origin}: has no token of id {wanted} to stand between documents")
        return wanted
    found = _first_end(tokenizer) if wanted is None else tokenizer.token_to_id(wanted)
    if found is not None:
        return int(found)
    if wanted is not None:
        raise DataError(f"{origin}: has no token {wanted!r} to stand between documents")
    raise DataError(
        f"{origin}: which of its tokens ends a document is not clear: name one (data.separator, or --separator)"
    )


def _first_end(tokenizer: "Tokenizer") -> int | None:
    return next((found for text in ENDS if (found := tokenizer.token_to_id(text)) is not None), None)


def _end_beside(path: Path) -> str | int | None:
    try:
        return end_of_text(path.parent)
    except ManifestError as error:
        raise DataError(str(error)) from None


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
