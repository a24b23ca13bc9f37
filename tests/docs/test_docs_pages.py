"""Generated pages are fresh, links lead somewhere, and the facts that stand in two places agree."""

import importlib.util
import re
import shlex
import tomllib
from fnmatch import fnmatch

import click
import pytest
import yaml
from docs_pages import DOCS, PAGES, ROOT

from remat_cli.cli.main import _COMMANDS, cli
from remat_cli.errors import ExitCode
from remat_cli.version import __version__

README = (ROOT / "README.md").read_text(encoding="utf-8")
TEXTS = [*PAGES, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]
SOURCES = [
    path.relative_to(ROOT).as_posix()
    for folder in ("remat_cli", "tests", "benchmarks", "docs")
    for path in (ROOT / folder).rglob("*.py")
]
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def _generator():
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = _generator()


@pytest.mark.parametrize("name", GENERATOR.GENERATED)
def test_what_is_generated_is_fresh(name):
    """The figures are those of the matplotlib in constraints.txt."""
    assert GENERATOR.GENERATED[name]() == (DOCS / name).read_bytes(), "run make docs"


@pytest.mark.parametrize("name", _COMMANDS)
def test_the_reference_has_every_option_of_a_command_in_its_section_or_for_all_commands(name):
    page = (DOCS / "commands.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## remat {name}\n")[2].partition("\n## ")[0]
    table = page.partition("\n## Shared options\n")[2].partition("\n## ")[0].splitlines()
    command = cli.get_command(click.Context(cli), name)
    for flag in (max(option.opts, key=len) for option in command.params if isinstance(option, click.Option)):
        rows = [row for row in table if f"{flag} " in row.replace("`", " ")]
        assert re.search(rf"  {flag}\b|, {flag}\b|`{flag}[ `]", section) or "For all commands" in rows[0], flag
        assert rows or f"`{flag}" not in section, flag


def test_nothing_else_lies_among_the_figures():
    drawn = {path.name for path in (DOCS / "figures").iterdir()}
    assert {f"figures/{name}" for name in drawn} == {n for n in GENERATOR.GENERATED if n.startswith("figures/")}


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in _LINK.findall(page.read_text(encoding="utf-8")):
        if link.startswith(("https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in _anchors(target.read_text(encoding="utf-8")), f"{page.name}: {link}"


def _anchors(text: str) -> set[str]:
    """What forges make of the headings."""
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in _HEADING.findall(text))
    return {heading.replace(" ", "-") for heading in words}


def test_every_page_can_be_reached():
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    linked = {(DOCS / link.partition("#")[0]).resolve() for link in _LINK.findall(index)}
    assert set(PAGES) - {DOCS / "README.md"} <= linked
    assert "](docs/README.md)" in README


def test_the_site_has_every_page_in_the_order_of_the_index():
    """`make site`, which needs packages that the tests do not, checks the links again."""
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    listed = [(DOCS / link).resolve() for link in _LINK.findall(index) if not link.startswith("https:")]
    config = tomllib.loads((DOCS / "zensical.toml").read_text(encoding="utf-8"))["project"]
    home, *sections = config["nav"]
    assert list(home.values()) == ["README.md"]
    names = [name for section in sections for name in section]
    assert names == re.findall(r"^## (.*)$", index, re.MULTILINE)
    shown = [
        ROOT / path for section in sections for entries in section.values() for e in entries for path in e.values()
    ]
    assert shown[:-2] == listed
    assert shown[-2:] == [ROOT / "CONTRIBUTING.md", DOCS / "README.md"]


def test_the_site_has_every_file_that_a_page_links_to():
    """`make site` copies what fits one of its patterns, in which a star also stands for slashes."""
    rule = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\nsite:")[2]
    patterns = shlex.split(re.search(r"git ls-files -z (.*?)\|", rule, re.DOTALL)[1].replace("\\\n", ""))
    assert "*.md" in patterns
    for page in [*TEXTS, *(ROOT / "graphs").glob("*.md"), *(ROOT / "benchmarks").rglob("*.md")]:
        for link in _LINK.findall(page.read_text(encoding="utf-8")):
            if link.startswith(("https://", "mailto:", "#")):
                continue
            target = (page.parent / link.partition("#")[0]).resolve()
            assert target.is_file(), f"{page.name}: {link}"
            name = target.relative_to(ROOT).as_posix()
            copied = any(fnmatch(name, pattern) or name.startswith(f"{pattern}/") for pattern in patterns)
            assert copied, f"{page.name}: make site does not copy {name}"


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_are_there(page):
    for name in re.findall(r"`([\w.]+/[\w./]+\.py)`", page.read_text(encoding="utf-8")):
        assert any(f"/{path}".endswith(f"/{name}") for path in SOURCES), f"{page.name}: {name}"


def test_pages_link_to_the_glossary():
    apart = {"README.md", "glossary.md", "commands.md", "campaigns.md", "configuration.md", "plans-from-others.md"}
    apart |= {"notebooks/README.md"}
    for page in set(PAGES) - {DOCS / name for name in apart} - {DOCS / "releasing.md"}:
        assert "](glossary.md" in page.read_text(encoding="utf-8"), f"{page.name} does not say where its words are"


def test_figures_are_shown():
    shown = {link for page in PAGES for link in _LINK.findall(page.read_text(encoding="utf-8"))}
    for name in GENERATOR.GENERATED:
        assert not name.startswith("figures/") or name in shown, f"no page shows {name}"


@pytest.mark.parametrize("code", ExitCode)
def test_every_exit_code_has_its_row(code):
    page = (DOCS / "exit-codes.md").read_text(encoding="utf-8")
    assert re.search(rf"^\| {int(code)} \|", page, re.MULTILINE)
    assert re.search(rf"^\W*{int(code)}\b", README, re.MULTILINE)  # as a row of a table or the head of a list item


def test_the_readme_shows_every_command_and_two_for_those_who_look_around():
    assert [name for name in _COMMANDS if not re.search(rf"\bremat {name}\b", README)] == []
    assert "make demo" in README
    assert "make test" in README


def test_the_changelog_begins_with_the_version_at_hand():
    released = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    if ".dev" in __version__:
        assert released[0] == "Unreleased"
    else:
        assert __version__ in released[:2]


def test_contributing_says_what_every_folder_of_tests_is_for():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.+?) \|", page.partition("## Tests")[2].partition("## ")[0], re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert sorted(named) == sorted(folders)


def test_the_map_has_every_module_of_the_contracts():
    table = GENERATOR.modules_map()
    assert "| 1 | `printable` |" in table
    assert "`cli`" in table.splitlines()[2]
    assert "\n- The judge shares no code with what it judges" in table


def test_hooks_of_this_repository_run_what_make_lint_runs():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    rule = makefile.partition("\nlint:")[2].partition("\n\n")[0]
    lint = re.findall(r"^\t\$\(BIN\)/([\w-]+)(?: (?!--)([\w-]+))?", rule, re.MULTILINE)
    run = [hook["entry"].removeprefix(".venv/bin/").partition(" --")[0] for hook in hooks]
    assert run == [" ".join(filter(None, words)) for words in lint]
    assert {repo["repo"] for repo in config["repos"]} == {"local"}
    assert {hook["language"] for hook in hooks} == {"system"}


def test_the_citation_names_what_there_is_and_leaves_the_version_to_one_place():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors", "type", "license"} <= set(cited)
    assert "version" not in cited
    for path in [*(ROOT / "docs").rglob("*.md"), ROOT / "pyproject.toml", ROOT / "README.md"]:
        assert __version__ not in path.read_text(encoding="utf-8"), f"{path.name} repeats the version"
