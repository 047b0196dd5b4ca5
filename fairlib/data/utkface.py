"""UTKFace: faces of people with age, gender and race, in the layout of its authors."""

import numpy as np
import pandas as pd

from fairlib.data.collection import Collection, Request, table_of
from fairlib.data.images import decoder, find_files

GENDERS = ("male", "female")
RACES = ("White", "Black", "Asian", "Indian", "Others")
AGE9_EDGES = (10, 15, 20, 25, 30, 40, 50, 60)
AGE9 = ("under 10", "10-14", "15-19", "20-24", "25-29", "30-39", "40-49", "50-59", "60 and over")
AGE4_EDGES = (2, 13, 18, 65)
AGE4 = ("2-12", "13-17", "18-64", "65 and over")
ADULT = ("under 18", "18 and over")

# Only the three fields count: usable names may have a space, lack a dot or have a date of the wrong
# length.
NAME = r"^(\d{1,3})_([01])_([0-4])_\d"

_HOW_TO_GET = (
    "UTKFace (research use only): from the project page 'UTKFace: Large Scale Face Dataset' get "
    "'Aligned & Cropped Faces' and unpack it: root/UTKFace/ (root: argument of load) must hold "
    "[age]_[gender]_[race]_[date].jpg.chip.jpg"
)


def utkface(request: Request) -> Collection:
    """Load the 23,704 aligned and cropped faces of UTKFace, labelled by file name.

    The names are ``[age]_[gender]_[race]_[date].jpg.chip.jpg``. Files whose name lacks a field are
    skipped; the report counts them as ``malformed`` and names them.

    Attributes: ``race`` (White, Black, Asian, Indian, Others), ``gender`` (male, female), ``age9``
    (nine bins that begin at the ages 0, 10, 15, 20, 25, 30, 40, 50, 60, as in Balancing Act, since
    [T] prints none), ``age4`` (the bins of [D]: 2-12, 13-17, 18-64, 65 and over; undefined at ages
    0 and 1) and ``adult`` (under 18, 18 and over).

    Args:
        request: Arguments of :func:`fairlib.load`; ``image_size`` defaults to 64 (RGB).

    Raises:
        FileNotFoundError: If the folder is missing or empty; says how to get the data.
        ValueError: If no file has a usable name.
        OSError: If a picture cannot be read, when it is decoded; names the file.

    Source: Z. Zhang, Y. Song, H. Qi, Age Progression/Regression by Conditional Adversarial
        Autoencoder, CVPR 2017.
    """
    files = find_files(request.root, ["UTKFace"], "*.jpg", _HOW_TO_GET)
    names = pd.Series([file.name for file in files], files)
    labels = names.str.extract(NAME).dropna().astype(int)
    malformed = names.drop(labels.index).tolist()
    if labels.empty:
        raise ValueError(
            f"none of the {len(files)} files in {str(files[0].parent)!r} has a usable name. "
            f"{_HOW_TO_GET}"
        )
    return Collection(
        table=attributes(*labels.to_numpy().T),
        images=decoder(labels.index, request.image_size or 64),
        target="race",
        group="race",
        photographs=True,
        report={
            "found": len(files),
            "malformed": len(malformed),
            "malformed_names": malformed,
        },
    )


def attributes(ages: np.ndarray, genders: np.ndarray, races: np.ndarray) -> pd.DataFrame:
    """Make the table of attributes from the numbers in the file names, each ``(N,)``."""
    ages9, ages4 = np.digitize(ages, AGE9_EDGES), np.digitize(ages, AGE4_EDGES) - 1
    return table_of(
        race=(races, RACES),
        gender=(genders, GENDERS),
        age9=(ages9, AGE9),
        age4=(ages4, AGE4),
        adult=((ages >= 18).astype(int), ADULT),
    )
