"""A study that takes no time, for the tests of what runs and shows studies. Its cells can be told to fail."""

from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from experiments import study


@dataclass(frozen=True)
class Settings:
    seeds: tuple[int, ...] = (0, 1, 2)
    tasks: int = 4
    folder: Path = Path("nowhere")
    fail: str = ""  # of settings like any other, so that the tests of other processes can set it


SMOKE = Settings(seeds=(0,), tasks=2)


def cells(settings):
    return [(setting, method) for setting in ("easy", "hard") for method in ("maml", "gem-bml+")]


def measure(settings, cell):
    setting, method = cell
    if settings.fail == method:
        raise ValueError(f"{method} failed in {setting}")
    scores = [[seed + task + 10.0 * (setting == "hard") for task in range(settings.tasks)] for seed in settings.seeds]
    mean, ci95 = study.mean_and_ci(scores)
    rows = [
        study.row(setting=setting, method=method, metric="MSE", mean=mean, ci95=ci95, paper=1.5),
        study.row(setting=setting, method=method, metric="NLL", mean=float("nan")),
    ]
    return {"rows": rows, "curves": {f"{setting} {method}": scores}}


def figure(results):
    drawn = Figure(figsize=(2, 2))
    axes = drawn.add_subplot()
    for curve in results["curves"].values():
        axes.plot(curve[0])
    return drawn


def remarks(results):
    return [f"The first mean is {results['rows'][0]['mean']:.3g} by `maml`."]


STUDY = study.Study(
    name="tiny",
    title="A tiny study",
    paper="The paper is silent.",
    scales={"smoke": SMOKE, "full": Settings()},
    cells=cells,
    measure=measure,
    figure=figure,
    remarks=remarks,
)
