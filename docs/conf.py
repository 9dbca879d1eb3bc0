"""The site that `make docs` builds of the pages, the docstrings and the public headers.

The pages are written for whoever reads them in the repository, so links point to files. Here those
to pages stay, those to the README and its siblings lead to the page that includes them, those to
public headers to the reference; what is no page is a link into the repository, or its path where
CIRANDA_DOCS_REPOSITORY (such as https://host/owner/ciranda/blob/main) is not given.
"""

from __future__ import annotations

import os
import re
from importlib import import_module
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
from sphinx.util import logging

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
REPOSITORY = os.environ.get("CIRANDA_DOCS_REPOSITORY", "").rstrip("/")

project = "ciranda"
author = "the authors of ciranda"
copyright = author
version = release = version_of("ciranda")
root_doc = "index"
exclude_patterns = ["doxygen"]
smartquotes = False  # they make one dash of two
html_theme = "furo"
html_title = f"ciranda {release}"
html_copy_source = False
extensions = ["myst_parser", "sphinx.ext.autodoc", "breathe", "sphinx_click"]

nitpicky = True
nitpick_ignore_regex = [
    # Of others: nothing is fetched while the site is built, so there is nothing to link to.
    ("py:.*", r"(torch|collections|os|pathlib|types|typing)\..*"),
    ("py:.*", r"(.*\.)?(_\w+|P|R)"),  # private, and variables of types
    ("cpp:identifier", r"(std|torch|c10)(::.*)?"),
    (
        "cpp:identifier",
        r"(ciranda::)?(ps|elastic)|ciranda",
    ),  # a namespace, which has no page of its own
    ("cpp:identifier", r"Impl|Group|LossClosure|Op::k\w+"),  # private, torch's, an alias
]

# --- Markdown ----------------------------------------------------------------------------------

myst_heading_anchors = 4  # as in the repository, `page.md#a-heading`

_PAGE_OF = {ROOT / "README.md": DOCS / "index.md"} | {
    ROOT / f"{name}.md": DOCS / "project" / f"{name.lower()}.md"
    for name in ("ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "SECURITY")
}
_CODE = re.compile(r"(?ms)^ *```.*?^ *```$|(`+)(?!`).+?(?<!`)\1(?!`)")
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\((?![a-z]+:|#)([^()\s]+)\)")


def _resolve_links(text: str, folder: Path, page: Path) -> str:
    """`text` of a file in `folder`, with links as `page` in the site needs them."""

    def resolve(link: re.Match[str]) -> str:
        bang, shown, target = link.groups()
        path, _, anchor = target.partition("#")
        file = Path(os.path.normpath(folder / path))
        file = _PAGE_OF.get(file, file)
        if file.parent == ROOT / "csrc/include/ciranda":
            file = DOCS / "api/cpp.md"
        if bang or (file.is_relative_to(DOCS) and file.suffix == ".md"):
            path = os.path.relpath(file, page.parent)
            return f"{bang}[{shown}]({path}{'#' * bool(anchor)}{anchor})"
        name = file.relative_to(ROOT).as_posix()
        if REPOSITORY:
            return f"{bang}[{shown}]({REPOSITORY}/{name}{'#' * bool(anchor)}{anchor})"
        return f"`{name}`" if shown.strip("`") == name else f"{shown} (`{name}`)"

    # Code is not looked into, but a link may show code: blocks are set aside, spans are not.
    kept: list[str] = []

    def set_aside(code: re.Match[str]) -> str:
        kept.append(code[0])
        return f"\0{len(kept) - 1}\0"

    text = _LINK.sub(resolve, _CODE.sub(set_aside, text))
    while "\0" in text:
        text = re.sub(r"\0(\d+)\0", lambda number: kept[int(number[1])], text)
    return text


def _on_page(app: Any, name: str, content: list[str]) -> None:
    page = Path(app.env.doc2path(name))
    if page.suffix == ".md":
        content[0] = _resolve_links(content[0], page.parent, page)


def _on_include(app: Any, file: Path, _parent: str, content: list[str]) -> None:
    path = Path(os.path.normpath(DOCS / file))
    page = Path(app.env.doc2path(app.env.current_document.docname))
    content[0] = _resolve_links(content[0], path.parent, page)


# --- Python ------------------------------------------------------------------------------------

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
autodoc_default_options = {"exclude-members": "__init__, __new__"}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
add_module_names = False

# Whose public names must each be on a page.
_MODULES = (
    "ciranda",
    "ciranda.errors",
    "ciranda.sweep",
    "ciranda.torch",
    "ciranda.torch.data",
    "ciranda.torch.metrics",
    "ciranda.torch.optim",
    "ciranda.torch.progress",
    "ciranda.torch.ps",
    "ciranda.torch.schedules",
)
# In words, as a module, or not for users.
_NOT_OBJECTS = {"ciranda.__version__", "ciranda.sweep.REPORT_FILE", "ciranda.torch.ps"}


def _on_docstring(
    _app: Any, _what: str, _name: str, _obj: object, _options: object, lines: list[str]
) -> None:
    _as_prose(lines)


def _as_prose(lines: list[str]) -> None:
    """Docstrings and help are plain prose with `code` in it; the rest is no mark-up."""
    parts = re.split(r"(`[^`]+`)", "\n".join(lines))
    parts[::2] = [re.sub(r"([*|\\]|(?<=\w)_(?!\w))", r"\\\1", part) for part in parts[::2]]
    parts[1::2] = [f"`{code}`" for code in parts[1::2]]
    lines[:] = "".join(parts).split("\n")


def _missing_in_python(documented: set[str]) -> list[str]:
    """Public names that no page has; a class may stand under another of its names."""
    missing = []
    for module in _MODULES:
        loaded = import_module(module)
        for name in loaded.__all__:
            value = getattr(loaded, name)
            names = {
                f"{module}.{name}",
                f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}",
            }
            if not names & (documented | _NOT_OBJECTS):
                missing.append(f"{module}.{name}")
    return missing


# --- commands ------------------------------------------------------------------------------------


def _on_description(_app: Any, _context: click.Context, lines: list[str]) -> None:
    _as_prose(lines)


def _on_epilog(_app: Any, _context: click.Context, lines: list[str]) -> None:
    """Examples, as they are typed."""
    if lines:
        examples = [f"   {line.removeprefix('| ')}" for line in lines]
        lines[:] = [".. code-block:: text", "", *examples, ""]


def _missing_commands(documented: set[str]) -> list[str]:
    """`documented`: programs that have an option or an argument on a page."""
    from ciranda.launch.cli.commands import ciranda

    names = [f"ciranda {name}" for name in ciranda.list_commands(click.Context(ciranda))]
    return [name for name in names if name.replace(" ", "-") not in documented]


# --- C++ ---------------------------------------------------------------------------------------

breathe_projects = {"ciranda": str(ROOT / "build/docs/doxygen/xml")}
breathe_default_project = "ciranda"
breathe_domain_by_extension = {"h": "cpp"}
breathe_show_include = False
cpp_index_common_prefix = ["ciranda::"]


def _missing_in_cpp(documented: set[str]) -> set[str]:
    """Names of the headers that no page has. Overloads have one."""
    names = set()
    for file in Path(breathe_projects["ciranda"]).glob("namespace*.xml"):
        namespace = ElementTree.parse(file).getroot()[0]  # noqa: S314 - of our own headers
        members = namespace.iterfind("sectiondef/memberdef/qualifiedname")
        names |= {each.text or "" for each in [*namespace.iter("innerclass"), *members]}
    return {name for name in names if "::detail::" not in name} - documented


def _on_check(_app: Any, env: Any) -> None:
    missing = [
        *_missing_in_python(set(env.domains["py"].objects)),
        *_missing_in_cpp({name for name, *_ in env.domains["cpp"].get_objects()}),
        *_missing_commands({program for program, _ in env.domains["std"].progoptions if program}),
    ]
    for name in missing:
        logging.getLogger(__name__).warning("%s is on no page of docs/api", name)


def setup(app: Any) -> None:
    app.connect("source-read", _on_page)
    app.connect("include-read", _on_include)
    app.connect("autodoc-process-docstring", _on_docstring)
    app.connect("sphinx-click-process-description", _on_description)
    app.connect("sphinx-click-process-epilog", _on_epilog)
    app.connect("env-check-consistency", _on_check)
