"""Figure 2a, challenging setting: random frequency, all phases, noise.

metaprior reproduce sinusoid-challenging --scale full
"""

from experiments import figure_2a, study

TASKS = "sinusoid-challenging"
STUDY, run = study.declare(
    figure_2a.__name__,
    name="sinusoid-challenging",
    title="Sinusoids, challenging setting (Figure 2a)",
    paper=(
        "Bayesian methods (GEM-BML, GEM-BML+, BMAML, Amortized BML) still learn, MAML and Reptile fail to learn, and GEM keeps "
        "improving with more steps; the figure's numbers are not given in the text."
    ),
    full=figure_2a.Settings(TASKS),
    smoke=figure_2a.smoke(TASKS),
)
