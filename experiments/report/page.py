"""The report as one static page: no script, nothing from elsewhere, light or dark as the reader likes it."""

import re
from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from pathlib import Path

from experiments.report import paper, words
from experiments.report.layout import Table
from experiments.report.section import Missing, Section
from experiments.report.verdicts import Beside, Paper, counts, kind

STYLE = Path(__file__).with_name("page.css")


def document(sections: Sequence[Section | Missing], of_paper: Paper | None = None) -> str:
    """All of `index.html`."""
    first = [f'<li><a href="#{paper.ANCHOR}">{escape(paper.TITLE)}</a></li>'] if of_paper else []
    contents = "\n".join([*first, *(_entry(section) for section in sections)])
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(words.HEADLINE)}</title>
<style>
{STYLE.read_text().strip()}
</style>
</head>
<body>
<a class="skip" href="#results">Skip to the results</a>
<header>
<h1>{escape(words.HEADLINE)}</h1>
<p class="lead">{text(words.INTRODUCTION)}</p>
<p>{text(words.summary(sections))}</p>
</header>
<nav aria-label="Contents">
<h2>Contents</h2>
<ol>
{contents}
</ol>
</nav>
<main id="results">
{chr(10).join([*_paper(of_paper, sections), *(_section(section) for section in sections)])}
</main>
</body>
</html>
"""


def _paper(of_paper: Paper | None, sections: Sequence[Section | Missing]) -> list[str]:
    if not of_paper:
        return []
    name, titles = paper.ANCHOR, {section.name: section.title for section in sections}
    head = f'<h2 id="{name}-title">{escape(paper.TITLE)} {_anchor(name)}</h2>'
    lines = "\n".join(
        f'<tr><th scope="row"><a href="#{one.name}">{escape(one.place)}</a></th><td>{escape(one.title)}</td>'
        f"<td>{_verdicts(one)}</td></tr>"
        for one in of_paper.items
    )
    columns = "".join(f'<th scope="col">{column}</th>' for column in paper.OVERVIEW)
    overview = (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(paper.TITLE)}">\n<table class="overview">\n'
        f"<thead>\n<tr>{columns}</tr>\n</thead>\n"
        f"<tbody>\n{lines}\n</tbody>\n</table>\n</div>"
    )
    said = f"<p>{text(paper.INTRODUCTION)}</p>\n<p>{text(of_paper.summary)}</p>"
    parts = [f'<section id="{name}" aria-labelledby="{name}-title">', head, said, overview]
    return ["\n".join([*parts, *(_beside(one, titles) for one in of_paper.items), "</section>"])]


def _verdicts(one: Beside) -> str:
    each = (f"{_chip(verdict)}\u202f×\u202f{count}" for verdict, count in counts(one.lines).items())
    return " ".join(f'<span class="count">{words}</span>' for words in each)


def _beside(one: Beside, titles: Mapping[str, str]) -> str:
    links = (f'<a href="#{name}">{escape(titles[name])}</a>' for name in one.studies if name in titles)
    commands = "<br>".join(f"<code>{escape(command)}</code>" for command in one.commands)
    note = [f"<p>{text(one.note)}</p>"] if one.note else []
    shown = table(paper.details(one), f"{one.place}: {one.title}").replace("<table>", '<table class="beside">', 1)
    origin = (
        f'<dl class="origin">\n<div><dt>command</dt><dd>{commands}</dd></div>\n'
        f"<div><dt>more</dt><dd>{'<br>'.join(links)}</dd></div>\n</dl>"
    )
    head = f'<h3 id="{one.name}">{escape(one.place)}: {escape(one.title)} {_anchor(one.name)}</h3>'
    return "\n".join([head, *note, shown, origin])


def _chip(verdict: str) -> str:
    return f'<span class="verdict {kind(verdict)}">{escape(verdict)}</span>'


def _anchor(name: str) -> str:
    return f'<a class="anchor" href="#{escape(name)}" aria-label="Link to this section">#</a>'


def _entry(section: Section | Missing) -> str:
    gap = ' class="gap"' if isinstance(section, Missing) else ""
    return f'<li{gap}><a href="#{escape(section.name)}">{escape(section.title)}</a></li>'


def _section(section: Section | Missing) -> str:
    name = escape(section.name)
    if isinstance(section, Missing):
        body = [f"<p>{text(words.missing(section))}</p>"]
    else:
        body = [
            *_claim(section),
            *_figure(section),
            *_tables(section),
            *_remarks(section),
            origin(section),
        ]
    kind = ' class="gap"' if isinstance(section, Missing) else ""
    head = f'<h2 id="{name}-title">{escape(section.title)} {_anchor(section.name)}</h2>'
    return "\n".join([f'<section id="{name}" aria-labelledby="{name}-title"{kind}>', head, *body, "</section>"])


def _claim(section: Section) -> list[str]:
    smoke = [f'<p class="smoke">{text(words.SMOKE)}</p>'] if section.is_smoke else []
    paper = [f'<p class="paper"><b>The paper:</b> {text(section.paper)}</p>'] if section.paper else []
    return smoke + paper


def _figure(section: Section) -> list[str]:
    if section.figure is None:
        return []
    link, alt = escape(section.figure), escape(words.alternative(section))
    return [f'<figure><a href="{link}"><img src="{link}" alt="{alt}" loading="lazy"></a></figure>']


def _remarks(section: Section) -> list[str]:
    items = "\n".join(f"<li>{text(remark)}</li>" for remark in section.remarks)
    return [f"<h3>Remarks</h3>\n<ul>\n{items}\n</ul>"] if section.remarks else []


def _tables(section: Section) -> list[str]:
    label = lambda place: f", table {place}" if len(section.tables) > 1 else ""
    return [table(one, f"Numbers: {section.title}{label(place)}") for place, one in enumerate(section.tables, start=1)]


def table(shown: Table, label: str) -> str:
    """In a frame of its own that scrolls where the screen is narrow; a setting is named once for all its lines."""
    head = "".join(
        f'<th scope="col"{_kind(shown, column)}>{escape(name)}</th>' for column, name in enumerate(shown.head)
    )
    groups = [list(lines) for _, lines in groupby(shown.lines, key=lambda cells: cells[0])]
    bodies = "\n".join(f"<tbody>\n{_group(shown, lines)}\n</tbody>" for lines in groups)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">\n'
        f"<table>\n<thead>\n<tr>{head}</tr>\n</thead>\n{bodies}\n</table>\n</div>"
    )


def _group(shown: Table, lines: Sequence[tuple[str, ...]]) -> str:
    setting = f'<th scope="rowgroup" rowspan="{len(lines)}">{escape(lines[0][0])}</th>'
    rows = []
    for place, (_, method, *cells) in enumerate(lines):
        values = "".join(_cell(shown, column, cell) for column, cell in enumerate(cells, start=2))
        rows.append(f'<tr>{setting if place == 0 else ""}<th scope="row">{escape(method)}</th>{values}</tr>')
    return "\n".join(rows)


def _cell(shown: Table, column: int, cell: str) -> str:
    """Cells of words carry the name of their column: where the screen is narrow they stand one beneath the other."""
    name = shown.head[column]
    if not shown.is_words(column):
        return f'<td class="number">{_value(cell)}</td>'
    return f'<td data-name="{escape(name)}">{_chip(cell) if name == "verdict" else _value(cell)}</td>'


def _kind(shown: Table, column: int) -> str:
    return "" if shown.is_words(column) else ' class="number"'


def _value(cell: str) -> str:
    """Spreads are paler than their numbers, and no sign of per cent stands alone on a line."""
    pale = re.sub(r" (± [−<]?[0-9.,]*[0-9](?:e−?[0-9]+)?)", r' <span class="spread">\1</span>', escape(cell))
    return pale.replace(" %", "\u00a0%")


def origin(section: Section) -> str:
    """Where the numbers come from."""
    write = lambda name, value: f"<code>{escape(value)}</code>" if name in ("command", "commit") else escape(value)
    entries = "\n".join(
        f"<div><dt>{escape(name)}</dt><dd>{'<br>'.join(write(name, value) for value in values)}</dd></div>"
        for name, values in section.origin.items()
    )
    return f'<dl class="origin">\n{entries}\n</dl>'


def text(sentence: str) -> str:
    """A sentence in which only `code` means anything."""
    return "".join(f"<code>{escape(piece)}</code>" if code else escape(piece) for piece, code in words.pieces(sentence))
