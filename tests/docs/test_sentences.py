"""Sentences of documents and docstrings are found as a reader sees them, and none is too long."""

from __future__ import annotations

from tests.docs import sentences

PAGE = """# A heading

One sentence. Another with `some code` and
a [link that has words](to/a/page.md)! A third.

    code = "is not looked at. At all."

- an item: of a list
  goes on here

| a cell | of two sentences. Here is the second. |
|---|---|

```sh
neither is this
```
"""


def test_a_page_is_cut_into_sentences() -> None:
    found = [(each.line, each.text) for each in sentences.of_markdown(PAGE) if each.words]
    assert found == [
        (3, "One sentence."),
        (3, "Another with `code` and a link that has words!"),
        (3, "A third."),
        (8, "an item: of a list goes on here"),
        (11, "a cell"),
        (11, "of two sentences."),
        (11, "Here is the second."),
    ]


def test_docstrings_are_looked_at_and_code_is_not() -> None:
    function = 'def f():\n    """Of a function.\n\n    >>> f()\n    1\n    """\n    return "not. This."'
    source = f'"""Of a module."""\n\n{function}\n'
    assert [each.text for each in sentences.of_python(source)] == ["Of a module.", "Of a function."]


def test_no_sentence_is_too_long() -> None:
    wrong, vain = sentences.refused()
    assert {name: [each.text for each in long] for name, long in wrong.items()} == {}
    assert vain == []
