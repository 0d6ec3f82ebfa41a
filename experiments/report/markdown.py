"""The report as Markdown, for reading where the source is read."""

import re
from collections.abc import Mapping, Sequence

from experiments.report import paper, words
from experiments.report.layout import Table
from experiments.report.section import Missing, Section
from experiments.report.verdicts import Beside, Paper, counted


def document(sections: Sequence[Section | Missing], of_paper: Paper | None = None) -> str:
    """All of `RESULTS.md`."""
    first = [f"- [{paper.TITLE}](#{paper.ANCHOR})"] if of_paper else []
    contents = "\n".join([*first, *(f"- [{escape(section.title)}](#{section.name})" for section in sections)])
    head = f"# {words.HEADLINE}\n\n{text(words.INTRODUCTION)}\n\n{text(words.summary(sections))}\n\n{contents}"
    return "\n\n".join([head, *_paper(of_paper, sections), *(_section(section) for section in sections)]) + "\n"


def _paper(of_paper: Paper | None, sections: Sequence[Section | Missing]) -> list[str]:
    if not of_paper:
        return []
    head = f'<a id="{paper.ANCHOR}"></a>\n\n## {paper.TITLE}\n\n{text(paper.INTRODUCTION)} {text(of_paper.summary)}'
    lines = [
        f"| [{escape(one.place)}](#{one.name}) | {escape(one.title)} | {escape(counted(one.lines))} |"
        for one in of_paper.items
    ]
    overview = "\n".join([f"| {' | '.join(paper.OVERVIEW)} |", "| --- | --- | --- |", *lines])
    return [head, overview, *(_beside(one, sections) for one in of_paper.items)]


def _beside(one: Beside, sections: Sequence[Section | Missing]) -> str:
    titles = {section.name: section.title for section in sections}
    more = ", ".join(f"[{escape(titles[name])}](#{name})" for name in one.studies if name in titles)
    commands = ", ".join(f"`{command}`" for command in one.commands)
    note = [text(one.note)] if one.note else []
    head = f'<a id="{one.name}"></a>\n\n### {escape(one.place)}: {escape(one.title)}'
    return "\n\n".join([head, *note, table(paper.details(one)), f"{commands} · more: {more}"])


def _section(section: Section | Missing) -> str:
    head = f'<a id="{section.name}"></a>\n\n## {escape(section.title)}'
    if isinstance(section, Missing):
        return f"{head}\n\n{text(words.missing(section))}"
    parts = [head]
    parts += [f"**{words.SMOKE}**"] if section.is_smoke else []
    parts += [f"*The paper:* {text(section.paper)}"] if section.paper else []
    parts += [f"![{escape(words.alternative(section))}]({section.figure})"] if section.figure else []
    parts += map(table, section.tables)
    parts += ["\n".join(f"- {text(remark)}" for remark in section.remarks)] if section.remarks else []
    parts.append(origin(section.origin))
    return "\n\n".join(parts)


def table(shown: Table) -> str:
    """With numbers to the right."""
    line = lambda cells: f"| {' | '.join(cells)} |"
    rule = line("---" if shown.is_words(column) else "--:" for column in range(len(shown.head)))
    return "\n".join([line(map(escape, shown.head)), rule, *(line(map(escape, cells)) for cells in shown.lines)])


def origin(of: Mapping[str, Sequence[str]]) -> str:
    """One line that says where numbers come from."""
    commands = ", ".join(f"`{command}`" for command in of["command"])
    others = (f"{name}: {escape(', '.join(values))}" for name, values in of.items() if name != "command")
    return " · ".join([commands, *others])


def text(sentence: str) -> str:
    """A sentence in which only `code` means anything, also at its start, where a number would begin a list."""
    written = "".join(f"`{piece}`" if code else escape(piece) for piece, code in words.pieces(sentence))
    return re.sub(r"^(\d*)([-+.)>])(?=\s)", r"\1\\\2", written)


def escape(plain: str) -> str:
    """Plain words, into which Markdown shall read nothing."""
    plain = re.sub(r"\s+", " ", plain).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*_\[\]|~$#])", r"\\\1", plain)
