"""Figure 2a, default setting: y = A sin(x + b), ten points. `metaprior reproduce sinusoid-default --scale full`."""

from experiments import figure_2a, study

STUDY = figure_2a.make(
    "sinusoid-default",
    "sinusoid",
    "Sinusoids, default setting (Figure 2a)",
    "All methods adapt about equally fast; the figure's numbers are not given in the text.",
)


def run(settings: figure_2a.Settings) -> study.Results:
    """The whole study."""
    return study.run(STUDY, settings)
