"""Records calibration errors by torchmetrics, for comparison with ours.

Recorded with torchmetrics 1.9.0 on torch 2.13.0 (CPU, float64), seed 20261. The tests need neither; to record anew:

    python3 -m venv /tmp/torchenv
    /tmp/torchenv/bin/pip install torch==2.13.0 torchmetrics==1.9.0 numpy
    /tmp/torchenv/bin/python tests/reference/record_calibration.py

Everything goes to `torchmetrics_calibration.npz` beside this file: `probabilities` [N, 5] and `labels` [N] of an over-confident
classifier, and for each number of bins B in (10, 15) the expected and the largest calibration error, `ece_B` and `mce_B`.
"""

from pathlib import Path

import numpy as np
import torch
from torchmetrics.functional.classification import multiclass_calibration_error

SEED, POINTS, CLASSES = 20261, 2000, 5


def main() -> None:
    """Draw predictions and save them with their errors."""
    rng = np.random.default_rng(SEED)
    logits = rng.normal(0, 1.2, (POINTS, CLASSES))
    true = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (true.cumsum(axis=1) < rng.uniform(size=(POINTS, 1))).sum(axis=1).clip(0, CLASSES - 1)
    said = torch.softmax(torch.tensor(1.7 * logits), dim=1)  # sharper than the truth
    arrays = {"probabilities": said.numpy(), "labels": labels}
    for bins in (10, 15):
        for name, norm in (("ece", "l1"), ("mce", "max")):
            found = multiclass_calibration_error(said, torch.tensor(labels), CLASSES, n_bins=bins, norm=norm)
            arrays[f"{name}_{bins}"] = found.double().numpy()
    path = Path(__file__).with_name("torchmetrics_calibration.npz")
    np.savez_compressed(path, allow_pickle=False, **arrays)
    print(
        f"{path.name}: {path.stat().st_size} bytes; " + ", ".join(f"{k} {v}" for k, v in arrays.items() if v.ndim == 0)
    )


if __name__ == "__main__":
    main()
