"""What training in bfloat16 does to what a study measures.

``python benchmarks/precision.py DATA``, where DATA holds the folder of UTKFace. One study of ten
seeds (ResNet-10 of a quarter of its width, 3,000 faces of 32 pixels, race), trained and finetuned
in float32 and in bfloat16: the accuracy of the average and of every group before compression, and
what each loses at 90 % of zeros against its control. ``results/benchmarks/precision.csv`` has both
means, and the difference by seed with its 95 % t interval."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

import fairlib
from fairlib.statistics import t_interval
from fairlib.studies import RunSettings
from fairlib.training.loop import PRECISIONS
from whopays import effects

RESULTS = Path(__file__).parents[1] / "results" / "benchmarks"
ON = ["seed", "group"]


def statistics(root: str, precision: str) -> pd.DataFrame:
    """Accuracies and drops on the test set in one precision, ``(seeds, statistics)``."""
    study = fairlib.study(
        data=("utkface", {"root": root, "image_size": 32, "limit": 3000}),
        model=("resnet10", {"width": 0.25}),
        method="prune:magnitude",
        levels=[0.9],
        seeds=range(10),
        train={
            "epochs": 10,
            "lr": 0.05,
            "batch_size": 128,
            "augment": "flip",
            "precision": precision,
        },
        finetune={"epochs": 5},
        run=RunSettings(cache=None),
        progress=True,
    )
    tested = effects.select(effects.against_control(study, on=ON), split="test")
    found = {}
    for name, stage, column in (("accuracy", "dense", "accuracy"), ("drop", "compressed", "drop")):
        rows = effects.select(tested, stage=stage)
        average = (rows[column] * rows["size"]).groupby(rows["seed"]).sum() / rows.groupby("seed")[
            "size"
        ].sum()
        found[f"{name}, average"] = average
        found |= {
            f"{name}, {group}": part.set_index("seed")[column]
            for group, part in rows.groupby("group")
        }
    drops = effects.select(tested, stage="compressed").groupby("seed")["drop"]
    found["drop, worst group minus best"] = drops.max() - drops.min()
    return pd.DataFrame(found)


def main() -> None:
    plain, half = (statistics(sys.argv[1], precision) for precision in PRECISIONS)
    rows = [
        {
            "statistic": name,
            "seeds": len(plain),
            "float32": plain[name].mean(),
            "bfloat16": half[name].mean(),
        }
        | dict(zip(["estimate", "low", "high"], t_interval(half[name] - plain[name]), strict=True))
        for name in plain
    ]
    table = pd.DataFrame(rows)
    print(table.round(4).to_string(index=False))
    table.to_csv(RESULTS / "precision.csv", index=False, float_format="%.4g")


if __name__ == "__main__":
    main()
