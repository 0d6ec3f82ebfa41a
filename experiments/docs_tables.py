"""Rebuild the tables of docs from results and cards: `python -m experiments.docs_tables`. No number there is typed."""

import json
from collections.abc import Callable, Mapping

from experiments import study
from experiments.report import layout, markdown, section
from experiments.tables import Load, with_blocks
from metaprior.page import priors

DOCS = study.ROOT / "docs"


def memory(load: Load) -> str:
    """`choosing.md`: what a meta-step keeps."""
    return _whole(load("bench-memory")["rows"])


def rates(load: Load) -> str:
    """`tuning.md`: rates that are learned beside those that are not."""
    metrics, methods = (
        ("MSE after 10", "NLL after 10"),
        ("gem-bml+", "gem-bml+, rates frozen", "maml, rates learned", "maml"),
    )
    found = [
        {**row, "setting": title}
        for name, title in (("sinusoid-default", "default"), ("sinusoid-challenging", "challenging"))
        for row in load(name)["rows"]
        if row["setting"] == "best" and row["metric"] in metrics and row["method"] in methods
    ]
    return _whole(found)


def latency(load: Load) -> str:
    """`page.md`: how quickly the page answers."""
    return _whole(load("bench-page")["rows"])


def page(load: Load) -> str:
    """`page.md`: what the priors of the page reach, from their cards."""
    del load
    return "\n\n".join([_characters(), _curves()])


def _characters() -> str:
    classes = _card(priors.CHARACTERS)["classes"]
    head = (
        "characters",
        "accuracy",
        "ECE",
        "sure from",
        "answers that are sure",
        "right where sure",
        "strangers called sure",
    )
    lines = []
    for number, known in classes.items():
        test = known["test"]
        accuracy = f"{100 * test['accuracy']:.1f} ± {100 * test['accuracy_ci95']:.1f} %"
        shares = [_percent(test[name]) for name in ("share_sure", "accuracy_where_sure", "strangers_called_sure")]
        lines.append((number, accuracy, _percent(test["ece"]), f"{100 * known['sure_from']:.0f} %", *shares))
    return _table(head, lines)


def _curves() -> str:
    lines = []
    for tasks in priors.CURVES:
        for method in priors.METHODS:
            scores = _card(priors.curve_name(tasks, method))["scores"]
            values = (
                f"{scores['mse'][-1]:.4f} ± {scores['mse_ci95'][-1]:.4f}",
                f"{scores['nll'][-1]:.2f}".replace("-", "−"),
            )
            lines.append((tasks, method, *values, _percent(scores["coverage90"][-1])))
    return _table(("curves", "prior", "MSE", "NLL", "coverage of 90 % band"), lines)


def _card(name: str) -> dict:
    return json.loads((priors.FOLDER / f"{name}.json").read_bytes())


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def _table(head, lines) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _whole(rows) -> str:
    return "\n\n".join([*(markdown.table(each) for each in layout.tables(rows)), markdown.origin(section.origin(rows))])


# File -> name of a block in it -> what stands there.
BLOCKS: Mapping[str, Mapping[str, Callable[[Load], str]]] = {
    "choosing.md": {"memory": memory},
    "tuning.md": {"rates": rates},
    "page.md": {"page": page, "latency": latency},
}


def filled(name: str, text: str, load: Load = study.load) -> str:
    """The text of a file with its blocks as the results say."""
    return with_blocks(text, BLOCKS[name], load, f"docs/{name}")


if __name__ == "__main__":
    for file in BLOCKS:
        (DOCS / file).write_text(filled(file, (DOCS / file).read_text()))
