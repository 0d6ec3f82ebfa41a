"""Rebuild the tables of README.md and docs/ from results and cards: `python -m experiments.tables`. No number there is typed."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments import (
    federated,
    few_shot,
    leakage_images_report,
    leakage_report,
    page_report,
    paper,
    protection,
    study,
)
from experiments.report import layout, markdown, section
from experiments.rl_settings import RETURNS
from metaprior import estimates
from metaprior.cli.plan import short

Load = Callable[[str], dict[str, Any]]  # name of a results file -> what it holds
SHOWN = tuple(f"{word} after 10" for word in ("MSE", "NLL", "CRPS", "coverage near", "coverage far"))
SINUSOIDS = {"sinusoid-default": "default", "sinusoid-challenging": "challenging"}  # results file -> what it is called


def sinusoids(load: Load) -> str:
    """Every method of Figure 2a at its best, on both settings."""
    parts = []
    for name, title in SINUSOIDS.items():
        rows = [row for row in load(name)["rows"] if row["setting"] == "best" and row["metric"] in SHOWN]
        parts.append(_tables([{**row, "setting": title} for row in rows]))
    return "\n\n".join(parts)


def rates(load: Load) -> str:
    """Rates that are learned beside those that are not."""
    metrics = ("MSE after 10", "NLL after 10")
    methods = ("gem-bml+", "gem-bml+, rates frozen", "maml, rates learned", "maml")
    return _tables(
        [
            {**row, "setting": title}
            for name, title in SINUSOIDS.items()
            for row in load(name)["rows"]
            if row["setting"] == "best" and row["metric"] in metrics and row["method"] in methods
        ]
    )


def whole(name: str) -> Callable[[Load], str]:
    """All rows of a study."""
    return lambda load: _tables(load(name)["rows"])


def shipped(load: Load) -> str:
    """What the priors of the page reach, from their cards."""
    del load
    return "\n\n".join([page_report.characters(), page_report.curves()])


def _tables(rows: list[dict[str, Any]]) -> str:
    return "\n\n".join([*(markdown.table(each) for each in layout.tables(rows)), markdown.origin(section.origin(rows))])


def leakage(load: Load) -> str:
    """What attacks on messages of clients recovered."""
    results = load("leakage")
    return "\n\n".join([leakage_report.compact(results), markdown.origin(section.origin(results["rows"]))])


def leakage_images(load: Load) -> str:
    """The same for drawings."""
    results = load("leakage-images")
    return "\n\n".join([leakage_images_report.compact(results), markdown.origin(section.origin(results["rows"]))])


def plan(load: Load) -> str:
    """What many devices and phones would take."""
    results = load("bench-plan")
    found: dict[str, dict[str, float]] = {}
    for row in results["rows"]:
        found.setdefault(row["method"], {})[row["metric"]] = row["mean"]
    head = ("who", "tasks a step", "each sends", "all send", "communication", "a step in all", "tasks / s")
    lines = [head, ("---", *("---:" for _ in head[1:]))]
    for who, of in found.items():
        sizes = (estimates.size(round(of[name])) for name in ("sent", "in_all"))
        times = (short(of[name]) for name in ("communication", "seconds"))
        lines.append((who, f"{of['tasks']:,.0f}", *sizes, *times, f"{of['tasks_per_second']:,.0f}"))
    return "\n\n".join([_piped(lines), markdown.origin(section.origin(results["rows"]))])


def _piped(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# Rows of results -> what they are called in the README.
PICTURES = {"omniglot": "Omniglot", "miniimagenet": "miniImageNet"}
ASKED = {"accuracy, paper": "the paper’s protocol", "accuracy, views": "averaged over views"}
TRAINED = {
    "best": "", "trained 20-way": ", trained 20-way", "longer": ", trained longer", "longer 20-way": ", trained 20-way longer",
    few_shot.ONE_PRIOR: ", one prior for all settings",
    few_shot.MORE_STEPS: f", one prior for all settings, {few_shot.STEPS[few_shot.MORE_STEPS]} steps",
    few_shot.DEEP: ", ResNet-12",
    "its authors’ settings": " at its authors’ settings",
}  # fmt: skip


PICTURED = ("gem-bml+last-layer", "gem-bml+", "maml")
KINDS = {words: kind for kind, words in few_shot.WORDS.items()}  # of cells, by what rows call them


def pictures(load: Load) -> str:
    """Accuracy on few-shot images in per cent, ours and what the paper prints of itself; and how long each was trained."""
    rows, lengths = [], []
    for tasks, called in PICTURES.items():
        results = load(tasks)
        for row in results["rows"]:
            setting, how = row["setting"].split(", ")[:2]
            if row["metric"] not in ASKED or how not in TRAINED or row["method"] not in PICTURED:
                continue
            named = {"method": row["method"] + TRAINED[how], "metric": f"{called} {setting}", "paper": None}
            rows.append({**row, **named, "setting": ASKED[row["metric"]]})
            if row["metric"] == next(iter(ASKED)):
                trained = results["curves"][f"{setting}/{KINDS.get(how, how)}/{row['method']}"]
                length = {
                    "setting": "iterations of training",
                    "mean": trained["iterations"],
                    "ci95": None,
                    "seeds": "–",
                }
                lengths.append({**rows[-1], **length})
    rows.sort(key=lambda row: list(ASKED.values()).index(row["setting"]))
    printed = [
        {"setting": "printed in the paper", "method": method, "metric": f"{called} {setting}", "paper": None, "mean": number.mean,
         "ci95": number.ci95, "seeds": "–"}
        for method in ("gem-bml+", "maml")
        for tasks, called in PICTURES.items()
        for setting, number in paper.ACCURACY[tasks][method].items()
    ]  # fmt: skip
    (made,) = layout.tables([*rows, *printed, *lengths])
    return "\n\n".join([markdown.table(made), markdown.origin(section.origin(rows))])


WORLDS = {
    "rl-navigation": "navigation",
    "rl-cheetah-velocity": "half-cheetah, speed",
    "rl-cheetah-direction": "half-cheetah, direction",
}


def returns(load: Load) -> str:
    """Returns of agents in new tasks, before and after updates of the inner loop."""
    wanted = [f"return after {updates}" for updates in (0, 1, 3)]
    rows = [
        {**row, "setting": called}
        for name, called in WORLDS.items()
        for row in load(name)["rows"]
        if row["setting"] == RETURNS
        and row["metric"] in wanted
        and row["method"]
        in ("gem-bml+", "gem-bml+two", "gem-bml+queries", "gem-bml", "reptile", "maml", "maml-trpo", "pretrain")
    ]
    return _tables(rows)


def agents(load: Load) -> str:
    """How fast agents live, on which machine."""
    rows = load("bench-rl")["rows"]
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in rows:
        found.setdefault((row["method"], row["setting"], row["hardware"]), {})[row["metric"]] = row["mean"]
    lines = [("what", "batch", "environment steps / s", "s", "on"), ("---", "---", "---:", "---:", "---")]
    apart = [("engine", "compared", "largest difference", "median", "on"), ("---", "---", "---:", "---:", "---")]
    for (what, batch, hardware), of in found.items():
        if "s" in of:
            lines.append((what, batch, f"{of['environment steps / s']:,.0f}", f"{of['s']:.3g}", hardware.split(";")[0]))
        else:
            largest, median = (f"{of[f'{word} difference']:.2g}" for word in ("largest", "median"))
            apart.append((what.rpartition(" ")[2], batch, largest, median, hardware.split(";")[0]))
    both = [_piped(table) for table in (lines, apart) if len(table) > 2]
    return "\n\n".join([*both, markdown.origin(section.origin(rows))])


def told(name: str, remarks: Callable[[dict[str, Any]], list[str]]) -> Callable[[Load], str]:
    """All rows of a study, with what it says of them."""

    def block(load: Load) -> str:
        return f"{whole(name)(load)}\n\n" + "\n".join(f"- {line}" for line in remarks(load(name)))

    return block


# Name of a block -> what stands in it, made from as many results files as it needs.
TABLES: Mapping[str, Callable[[Load], str]] = {
    "sinusoids": sinusoids,
    "pictures": pictures,
    "returns": returns,
    "speed": whole("bench-sinusoid"),
    "births": whole("fertility"),
    "mixed-model": whole("mixed-model"),
    "leakage": leakage,
    "memory": whole("bench-memory"),
    "rates": rates,
    "page": shipped,
    "latency": whole("bench-page"),
    "leakage-images": leakage_images,
    "protection": told("protection", protection.remarks),
    "federated": told("federated", federated.remarks),
    "plan": plan,
    "scaling": whole("bench-scaling"),
    "agents": agents,
}
PAGES = {
    "README.md": ("sinusoids", "pictures", "returns", "speed"),
    "docs/tables.md": ("births",),
    "docs/choosing-a-family.md": ("mixed-model",),
    "docs/choosing.md": ("memory",),
    "docs/tuning.md": ("rates",),
    "docs/page.md": ("page", "latency"),
    "docs/federated.md": ("leakage", "leakage-images", "protection", "federated"),
    "docs/scale.md": ("plan", "scaling"),
    "docs/rl.md": ("agents",),
}


def filled(text: str, load: Load = study.load, *, page: str = "README.md") -> str:
    """The text of a page with every marked block replaced by what the results say."""
    return with_blocks(text, {name: TABLES[name] for name in PAGES[page]}, load, page)


def with_blocks(text: str, blocks: Mapping[str, Callable[[Load], str]], load: Load, page: str) -> str:
    """The text with what stands between `<!-- name -->` and `<!-- /name -->` made anew, for each block."""
    for name, made in blocks.items():
        block = f"<!-- {name} -->\n{made(load)}\n<!-- /{name} -->"
        text, count = re.subn(rf"<!-- {name} -->.*?<!-- /{name} -->", lambda _, block=block: block, text, flags=re.S)
        if count != 1:
            raise ValueError(f"{page} needs exactly one block <!-- {name} --> … <!-- /{name} -->, found {count}")
    return text


if __name__ == "__main__":
    for page in PAGES:
        path = study.ROOT / page
        path.write_text(filled(path.read_text(), page=page))
