"""What mkdocs is to do besides: pages from elsewhere in the project, links to source files, formulas without JavaScript."""

import html
import logging
import re
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
log = logging.getLogger("mkdocs.hooks")  # a warning fails a strict build

# Path in the project -> page of the site. Links to the former become links to the latter.
PAGES = {"results/RESULTS.md": "results.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
FIGURES = "results/figures/"
LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<path>[^()\s#]*)(?P<anchor>#[^()\s]*)?\)")
INLINE = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.S)


def on_files(files, config):
    """The pages and figures that are made elsewhere."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for figure in sorted((ROOT / FIGURES).glob("*.png")):
        files.append(File.generated(config, f"figures/{figure.name}", abs_src_path=str(figure)))
    return files


def on_page_markdown(markdown, page, **_):
    """Links out of the folder of the documentation: to pages of the site, or else the name of a file that must exist."""
    came_from = {page: source for source, page in PAGES.items()}.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def rewritten(match: re.Match) -> str:
        path, anchor = match["path"], match["anchor"] or ""
        if not path or "://" in path or path.startswith("mailto:"):
            return match[0]
        target = (ROOT / came_from).parent.joinpath(path).resolve()
        inside = target.relative_to(ROOT).as_posix() if target.is_relative_to(ROOT) else None
        if inside in PAGES:
            return f"{match['image']}[{match['text']}]({PAGES[inside]}{anchor})"
        if inside is not None and inside.startswith(FIGURES):
            return f"{match['image']}[{match['text']}](figures/{target.name})"
        if inside is not None and inside.startswith("docs/"):
            return f"{match['image']}[{match['text']}]({inside.removeprefix('docs/')}{anchor})"
        if inside is None or not target.exists():
            log.warning(f"{came_from} links to {path}, which does not exist")
            return match[0]
        named = match["text"].strip("`")
        return f"`{inside}`" if named in inside else f"{match['text']} (`{inside}`)"

    parts = re.split(r"(^```.*?^```$|`[^`\n]*`(?!\]))", markdown, flags=re.S | re.M)  # code is left alone
    return "".join(part if place % 2 else LINK.sub(rewritten, part) for place, part in enumerate(_joined(parts)))


def _joined(parts: list[str]) -> list[str]:
    """Fences alone are kept apart: inline code may be the text of a link."""
    joined = [""]
    for part in parts:
        if part.startswith("```"):
            joined += [part, ""]
        else:
            joined[-1] += part
    return joined


def on_page_content(content, page, **_):
    """TeX to MathML, which browsers know without help."""

    def formula(match: re.Match) -> str:
        text = html.unescape(re.sub(r"<[^>]+>", "", match[2])).strip()
        display, inner = text.startswith(("\\[", "$$")), text[2:-2].strip()
        try:
            return convert(inner, display="block" if display else "inline")
        except Exception as error:  # any of many kinds, from a parser of TeX
            log.warning(f"{page.file.src_uri} has a formula that cannot be read: {inner} ({error!r})")
            return match[0]

    return INLINE.sub(formula, content)
