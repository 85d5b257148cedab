"""For MkDocs: pages made of what the repository has already, and links as they lead inside the site.

README.md and its like, the man pages, the settings and the notebooks are read where they lie, so that nothing is
written twice. A link to what is no page of the site (a folder, the licence) becomes its name.
"""

from __future__ import annotations

import json
import posixpath
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
MERMAID = ROOT / "build" / "mermaid" / "package" / "dist" / "mermaid.min.js"  # as `make docs` had it
SCRIPT = "site/mermaid.min.js"
TOP = {"README.md": "index.md"} | {
    name: name for name in ("AGENTS.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
}
_LINK = re.compile(r'(\]\(|src="|href=")([^)"\s#]+)((?:#[^)"\s]*)?)([)"])')
_LIST = re.compile(r"^([^\s|#>`-].*\n)(?=- )", re.MULTILINE)  # after a paragraph, where GitHub begins one


def on_files(files: Files, config: Any) -> Files:
    made = {page: (ROOT / name).read_text() for name, page in TOP.items()}
    made["index.md"] = f"---\nhide: [navigation]\n---\n{made['index.md']}"
    made |= {"commands.md": "\n".join(commands(ROOT / "docs" / "man")), "configuration.md": configuration()}
    for file in list(files):
        if file.src_uri.endswith(".ipynb"):
            book = json.loads(Path(str(file.abs_src_path)).read_text())
            made[file.src_uri.replace(".ipynb", ".md")] = notebook(book, posixpath.basename(file.src_uri))
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, SCRIPT, abs_src_path=str(MERMAID)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    here = page.file.src_uri
    # Where the source lies in the repository.
    source = next((name for name, made in TOP.items() if made == here), f"docs/{here}")

    def led(found: re.Match[str]) -> str:
        before, target, anchor, end = found.groups()
        if re.match("[a-z]+:", target):
            return found[0]
        there = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        inside = TOP.get(there, there.removeprefix("docs/"))
        if inside.endswith(".ipynb") and inside.replace(".ipynb", ".md") != here:
            inside = inside.replace(".ipynb", ".md")
        if files.get_file_from_path(inside) is not None:
            target = posixpath.relpath(inside, posixpath.dirname(here) or ".")
        elif before == "](" and there.startswith("docs/") and (ROOT / there).is_file():
            return f"{before}{target}{anchor}{end}"  # named, so that --strict complains
        elif before == "](":
            return f"]{{{there}}}"  # not a page: named below
        return f"{before}{target}{anchor}{end}"

    text = _LIST.sub(r"\1\n", _LINK.sub(led, markdown))
    text = re.sub(r"\[([^]\[]*)\]\{[^}]*\}", r"\1", text)
    if "\n```mermaid\n" in text:  # the theme would have each reader fetch the script from another host
        text += f'\n\n<script src="{"../" * here.count("/")}{SCRIPT}"></script>\n'
    return text


def commands(folder: Path) -> Iterator[str]:
    """The man pages as one page: of their few macros, those that `dlx.node.cli.manual` writes."""
    yield "# Commands\n"
    yield "What `dlx-node COMMAND --help` and `man dlx-node-COMMAND` say. Exit codes: 0 fine, 1 failed, 2 wrong usage, "
    yield "3 not ready, 130 interrupted.\n"
    for path in sorted(folder.glob("dlx-node-*.1")):
        yield f"\n## {path.stem.removeprefix('dlx-node-')}\n"
        yield from _manual(path.read_text())


def _manual(page: str) -> Iterator[str]:
    lines, rows, synopsis = iter(page.splitlines()), False, ""
    for line in lines:
        macro, _, rest = line.partition(" ")
        if macro == ".SH" and rest in ("NAME", "SEE ALSO", "EXIT STATUS"):
            if rest != "NAME":
                return
            next(lines)
        elif macro == ".SH" and rest.startswith('"'):
            rows = False
            yield f"\n### {_plain(rest.strip(chr(34))).removeprefix('dlx-node ')}\n"
        elif macro == ".B":
            synopsis = f"{_plain(rest)} {_plain(next(lines))}"
            yield f"```console\n{synopsis}\n```\n"
        elif macro == ".TP":
            name = _plain(next(lines).removeprefix(".B "))
            if name == "-h, --help":
                next(lines)
                continue
            if not rows:
                yield "| option | meaning |\n|---|---|"
            rows = True
            yield f"| `{name.replace('|', chr(92) + '|')}` | {_cell(_plain(next(lines)))} |"
        elif macro in (".SH", ".TH", ".PP"):
            rows = False
            yield ""
        else:
            yield _cell(_plain(line))


def _plain(roff: str) -> str:
    return roff.removeprefix("\\&").replace("\\-", "-").replace("\\e", "\\")


def _cell(text: str) -> str:
    """As Markdown shows it."""
    return re.sub(r"([|*_\[])", r"\\\1", text.replace("<", "&lt;"))


def configuration() -> str:
    """The two files that people write, as the commands write them, with every key's meaning."""
    from dlx.node.home import config as settings

    with tempfile.TemporaryDirectory() as folder:
        settings.write(Path(folder) / "config.toml", {})
        text = (Path(folder) / "config.toml").read_text()
    return "\n".join(
        [
            "# Configuration\n",
            "## config.toml\n",
            "What a node is set to: `dlx-node init` writes this file into the data folder, every key with its meaning "
            "and its default. A flag (`--rpc-url`) goes before an environment variable (`DLX_RPC_URL`), that before "
            "the file; `dlx-node config show` says where each value came from. "
            "[The operator's guide](operator.md#11-settings) has the units and limits.\n",
            f"```toml\n{text}```\n",
            "## run.toml\n",
            "What a run is, for `dlx-node run create`: `dlx-node run new` asks and writes one. This one is in the "
            "tutorials' network; [the operator's guide](operator.md#7-create-a-run) has every key.\n",
            f"```toml\n{(ROOT / 'deploy' / 'docker' / 'run.toml').read_text()}```\n",
        ]
    )


def notebook(book: dict[str, Any], name: str) -> str:
    """Its cells as Markdown, with what they printed when it was written."""
    parts = []
    for cell in book["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            text = "".join(output.get("text") or output.get("data", {}).get("text/plain", ""))
            parts.append(f"```text\n{text.rstrip()}\n```" if text else "")
    head, *rest = parts
    return "\n\n".join([head, f"[As a notebook]({name}), run by a test with every change.", *rest])
