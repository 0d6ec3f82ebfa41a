"""Figure 2a, default setting: y = A sin(x + b), ten points. `metaprior reproduce sinusoid-default --scale full`."""

from experiments import figure_2a, study

TASKS = "sinusoid"
STUDY, run = study.declare(
    figure_2a.__name__,
    name="sinusoid-default",
    title="Sinusoids, default setting (Figure 2a)",
    paper="All methods adapt about equally fast; the figure's numbers are not given in the text.",
    full=figure_2a.Settings(TASKS),
    smoke=figure_2a.smoke(TASKS),
)
