"""UTKFace: faces of people with age, gender and race, in the layout of its authors."""

import re

import numpy as np
import pandas as pd

from fairlib.data.collection import Collection, Request, draw
from fairlib.data.images import decode, find_files

GENDERS = ("male", "female")
RACES = ("White", "Black", "Asian", "Indian", "Others")
AGE9_EDGES = (10, 15, 20, 25, 30, 40, 50, 60)
AGE9 = ("under 10", "10-14", "15-19", "20-24", "25-29", "30-39", "40-49", "50-59", "60 and over")
AGE4_EDGES = (2, 13, 18, 65)
AGE4 = ("2-12", "13-17", "18-64", "65 and over")

# Only the three fields count: usable names may have a space, lack a dot or have a date of the wrong length.
NAME = re.compile(r"(\d{1,3})_([01])_([0-4])_\d")

HOW_TO_GET = (
    "UTKFace (research use only) comes from its project page, 'UTKFace: Large Scale Face Dataset' by Zhang, "
    "Song and Qi: get the part 'Aligned & Cropped Faces' and unpack it, so that root/UTKFace/ holds files "
    "named [age]_[gender]_[race]_[date].jpg.chip.jpg; root is load's argument (default 'data')."
)


def utkface(request: Request, *, limit: int | None = None) -> Collection:
    """23,704 aligned and cropped faces, labelled by file name: ``[age]_[gender]_[race]_[date].jpg.chip.jpg``.

    Files whose name lacks a field are skipped, counted as ``malformed`` and named in the report.

    Attributes:
        ``race`` (White, Black, Asian, Indian, Others), ``gender`` (male, female), ``age9`` (nine bins from
        the edges 10, 15, 20, 25, 30, 40, 50, 60, an edge being the first age of its bin: Balancing Act's,
        since [T] prints none) and ``age4`` ([D]: 2-12, 13-17, 18-64, 65 and over; undefined at ages 0 and 1).

    Args:
        request: What ``load`` asks for; ``image_size`` defaults to 64 (RGB).
        limit: Draw that many of the usable files by the seed, before anything is decoded; None or more than
            there are takes all.

    Raises:
        FileNotFoundError: If there is no such folder or it is empty; says how to get the data.
        ValueError: If no file has a usable name, or ``limit`` is not a positive integer.
        OSError: On decoding, if an image cannot be read; names the file.

    Source: Z. Zhang, Y. Song, H. Qi, Age Progression/Regression by Conditional Adversarial Autoencoder, CVPR
        2017.
    """
    files = find_files(request.root, ["UTKFace"], "*.jpg", HOW_TO_GET)
    matches = [NAME.match(file.name) for file in files]
    malformed = [file.name for file, match in zip(files, matches, strict=True) if match is None]
    usable = [(file, *map(int, match.groups())) for file, match in zip(files, matches, strict=True) if match]
    if not usable:
        raise ValueError(f"none of the {len(files)} files in {str(files[0].parent)!r} has a usable name. {HOW_TO_GET}")
    usable = [usable[i] for i in draw(len(usable), limit, np.random.default_rng(request.seed))]
    paths, ages, genders, races = zip(*usable, strict=True)
    return Collection(
        table=attributes(np.array(ages), np.array(genders), np.array(races)),
        images=lambda index: decode([paths[i] for i in index], request.image_size or 64),
        target="race",
        group="race",
        report={
            "found": len(files),
            "malformed": len(malformed),
            "malformed_names": malformed,
            "not_drawn": len(files) - len(malformed) - len(usable),
        },
    )


def attributes(ages: np.ndarray, genders: np.ndarray, races: np.ndarray) -> pd.DataFrame:
    """The table of attributes from the numbers in the file names, each ``(N,)``."""
    return pd.DataFrame(
        {
            "race": pd.Categorical.from_codes(races, RACES),
            "gender": pd.Categorical.from_codes(genders, GENDERS),
            "age9": pd.Categorical.from_codes(np.digitize(ages, AGE9_EDGES), AGE9),
            "age4": pd.Categorical.from_codes(np.digitize(ages, AGE4_EDGES) - 1, AGE4),
        }
    )
