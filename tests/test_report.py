"""The report: its words come from the results files, the same files give the same words, and what is committed is up to date."""

import json
import re
from html.parser import HTMLParser

import pytest
import tiny_study

import experiments
from experiments import report, study
from experiments.report import markdown, page
from experiments.report.numbers import duration
from experiments.report.section import seconds
from metaprior.cli import main

TINY = tiny_study.STUDY
NASTY = "<script>alert('x')</script> & \"a|b\" *c* _d_ [e](f) `g`"


def row(setting="s", method="m", metric="x", mean=1.0, **changes):
    plain = {
        "experiment": "tiny",
        "seeds": 3,
        "command": "metaprior reproduce tiny",
        "hardware": "an abacus",
        "seconds": 1.0,
    }
    return plain | {"commit": "abc"} | study.row(setting=setting, method=method, metric=metric, mean=mean) | changes


def studies(tiny):
    return {"gap": TINY._replace(name="gap", title="A gap"), "tiny": tiny}.__getitem__


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Results of the tiny study; another study has none."""
    names = ("gap", "tiny")
    monkeypatch.setattr(experiments, "NAMES", names)
    monkeypatch.setattr(experiments, "find", studies(TINY))
    study.save(TINY, study.run(TINY, TINY.scales["full"]), tmp_path)
    return tmp_path


class Page(HTMLParser):
    """What a browser would see: tags that match, words by tag, attributes."""

    EMPTY = ("meta", "img", "br")

    def __init__(self, html):
        super().__init__()
        self.open, self.words, self.tags = [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open += [tag] if tag not in self.EMPTY else []

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if data.strip():
            self.words.append((self.open[-1] if self.open else "", data.strip()))

    def named(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


# --- documents --------------------------------------------------------------------------------------------------------


def test_markdown_of_a_study(folder):
    text = markdown.document(report.sections(folder))
    assert (
        "\n## A tiny study\n\n*The paper:* The paper is silent.\n\n![Figure: A tiny study](figures/tiny.png)\n" in text
    )
    assert "| setting | method | MSE, paper | MSE | NLL | seeds |\n| --- | --- | --: | --: | --: | --: |\n" in text
    assert "\n| hard | gem-bml+ | 1.5 | 12.5 ± 2.8 | – | 3 |\n" in text
    assert "\n- The first mean is 2.5 by `maml`.\n" in text
    took = duration(seconds(study.load("tiny", folder)["rows"]))
    source = (
        f"hardware: {markdown.escape(study.hardware())} · time: {took}, all cells together · commit: {study.commit()}\n"
    )
    assert f"`metaprior reproduce tiny --scale full --seeds 3` · seeds: 3 · {source}" in text


def test_the_page_of_a_study(folder):
    seen = Page(page.document(report.sections(folder)))
    assert [word for tag, word in seen.words if tag in ("h1", "h2", "h3")] == [
        "metaprior: results", "Contents", "A gap", "A tiny study", "Remarks",
    ]  # fmt: skip
    assert seen.named("img") == [{"src": "figures/tiny.png", "alt": "Figure: A tiny study", "loading": "lazy"}]
    words = [word for _, word in seen.words]
    for word in (
        "The paper is silent.",
        "12.5",
        "± 2.8",
        "maml",
        "metaprior reproduce tiny --scale full --seeds 3",
        study.hardware(),
    ):
        assert word in words
    targets = {attributes["id"] for _, attributes in seen.tags if "id" in attributes}
    links = [attributes["href"] for attributes in seen.named("a")]
    assert {"#gap", "#tiny", "#results"} <= set(links)
    assert all(link[1:] in targets for link in links if link.startswith("#"))
    assert [attributes["rowspan"] for attributes in seen.named("th") if "rowspan" in attributes] == ["2", "2"]


def test_the_page_needs_nothing_from_elsewhere(folder):
    html = page.document(report.sections(folder))
    assert not re.search(r"https?:|//|<script|<link|@import|url\(", html)
    assert "prefers-color-scheme: dark" in html and 'name="viewport"' in html


def test_gaps_are_named_with_the_way_to_fill_them(folder):
    for document in report.DOCUMENTS.values():
        text = document(report.sections(folder))
        assert "Without results: gap." in text
        assert "metaprior reproduce gap --scale full" in text


def test_same_files_same_words(folder):
    first = [document(report.sections(folder)) for document in report.DOCUMENTS.values()]
    written = report.write(report.sections(folder), folder)
    again = [document(report.sections(folder)) for document in report.DOCUMENTS.values()]
    assert again == first == [path.read_text() for path in written[1:]]
    assert [path.relative_to(folder).as_posix() for path in written] == ["figures/tiny.png", "RESULTS.md", "index.html"]
    drawn = written[0].read_bytes()
    report.draw("tiny", folder)
    assert written[0].read_bytes() == drawn


def test_smoke_scale_is_marked(folder):
    assert not any("Smoke scale" in document(report.sections(folder)) for document in report.DOCUMENTS.values())
    study.save(TINY, study.run(TINY, tiny_study.SMOKE, scale="smoke"), folder)
    assert all("Smoke scale" in document(report.sections(folder)) for document in report.DOCUMENTS.values())


def test_words_mean_nothing_but_themselves(folder, monkeypatch):
    nasty = TINY._replace(title=NASTY, paper=NASTY, remarks=lambda results: [NASTY, "1. not a list\n\n# nor a heading"])
    monkeypatch.setattr(experiments, "find", studies(nasty))
    results = {"rows": [row(setting=NASTY, method=NASTY, metric=NASTY, hardware=NASTY, commit=NASTY, command="a <b>")]}
    (folder / "tiny.json").write_text(json.dumps(results))
    seen = Page(page.document(report.sections(folder)))
    assert "script" not in [tag for tag, _ in seen.tags]
    assert [word for tag, word in seen.words if tag == "th" and word == NASTY] == [NASTY] * 3  # metric, setting, method
    assert ("code", "g") in seen.words and ("code", "a <b>") in seen.words
    text = markdown.document(report.sections(folder))
    assert "<script" not in text
    assert (
        "&lt;script>alert('x')&lt;/script> &amp; \"a\\|b\" \\*c\\* \\_d\\_ \\[e\\](f) `g`\n" in text
    )  # a sentence: code stays
    assert "\n- 1\\. not a list \\# nor a heading\n" in text
    line = next(line for line in text.splitlines() if line.startswith("| &lt;script"))
    assert len(re.findall(r"(?<!\\)\|", line)) == 5


def test_other_files_of_rows_come_last_and_others_are_left_alone(folder):
    rows = [row(setting="torch", method="MAML", metric="iterations/s", mean=5250.0, experiment="bench-sinusoid")]
    (folder / "bench-sinusoid.json").write_text(json.dumps({"rows": rows, "curves": {}}))
    (folder / "notes.json").write_text(json.dumps({"rows": [{"tasks": "sinusoid"}]}))
    (folder / "list.json").write_text("[1, 2]")
    found = report.sections(folder)
    assert [section.name for section in found] == ["gap", "tiny", "bench-sinusoid"]
    last = found[-1]
    assert isinstance(last, report.Section)
    assert (last.title, last.paper, last.figure) == ("Benchmark: sinusoid", "", None)
    assert (
        "| setting | method | iterations/s | seeds |\n| --- | --- | --: | --: |\n| torch | MAML | 5,250 | 3 |"
        in markdown.document(found)
    )
    (folder / "figures").mkdir()
    (folder / "figures" / "bench-sinusoid.png").touch()
    assert "figures/bench-sinusoid.png" in markdown.document(report.sections(folder))
    report.write(report.sections(folder), folder)
    assert (folder / "figures" / "bench-sinusoid.png").read_bytes() == b""  # not ours to draw


def test_results_older_than_their_study_are_named(folder, monkeypatch, capsys):
    newer = TINY._replace(remarks=lambda results: [results["curves"]["medium maml"]])
    monkeypatch.setattr(experiments, "find", studies(newer))
    assert main(["report", "--results", str(folder)]) == 2
    err = capsys.readouterr().err
    assert f"the results of tiny in {folder} lack 'medium maml'" in err and "metaprior reproduce tiny --fresh" in err


def test_only_rows_that_are_shown_are_in_the_table_and_all_count_for_time(folder, monkeypatch):
    short = TINY._replace(shown=lambda results: results["rows"][:2])
    monkeypatch.setattr(experiments, "find", studies(short))
    results = study.load("tiny", folder)
    for place, one in enumerate(results["rows"]):
        one["seconds"] = float(place // 2)
    study.save(TINY, results, folder)
    section = report.of_study("tiny", folder)
    assert [line[:2] for one in section.tables for line in one.lines] == [("easy", "maml")]
    assert section.seconds == 0 + 1 + 2 + 3


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_writes_and_names_gaps(folder, capsys):
    assert main(["report", "--results", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert out.split() == [str(folder / name) for name in ("figures/tiny.png", "RESULTS.md", "index.html")]
    assert err == "note: without results: gap\n"


def test_the_command_refuses_a_folder_that_is_not_there(tmp_path, capsys):
    assert main(["report", "--results", str(tmp_path / "nothing")]) == 2
    assert "there is no folder" in capsys.readouterr().err


@pytest.mark.parametrize("name", report.DOCUMENTS)
def test_the_report_is_up_to_date(name):
    texts = report.documents(report.sections())
    assert (report.RESULTS / name).read_text() == texts[name], "the report is not up to date: run metaprior report"


def test_every_figure_of_the_report_is_there():
    figures = [
        section.figure for section in report.sections() if isinstance(section, report.Section) and section.figure
    ]
    missing = [figure for figure in figures if not (report.RESULTS / figure).exists()]
    assert not missing, "run metaprior report"
