"""One file per experiment: settings as a frozen dataclass, `run(settings) -> results`, results as JSON under `results/`."""
