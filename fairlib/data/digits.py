"""Handwritten digits that come with scikit-learn, made imbalanced."""

import numpy as np
import pandas as pd

from fairlib.data.collection import Collection, Request
from fairlib.data.images import resize
from fairlib.data.splitting import MINIMUM, apportion


def digits(request: Request, *, imbalance: float = 10.0, size: int = 450) -> Collection:
    """Scikit-learn's 1,797 digits (8 x 8, grey), with class sizes that fall geometrically.

    In train and val the k-th most frequent digit (k = 0..9) has a share proportional to
    ``imbalance ** (-k / 9)``; **which digit is how frequent is drawn from the seed**, so that over seeds size
    has nothing to do with shape. ``imbalance=1`` is the control: the same number of training images, equal
    shares. The test part is balanced: as many images of each digit as are left of the one with the fewest, so
    that accuracy is estimated equally well for all.

    The training part has ``size`` images in all (10.0 and 450 make 110, 85, ..., 11), the validation part
    ``size * val / train`` more by ``fractions``, at least two of each digit; the share of test in
    ``fractions`` has no effect. For one seed the test images of a larger imbalance are among those of a
    smaller one.

    Attributes ``digit`` (0 to 9) and ``parity`` (even, odd); values 0 to 16 become ``round(x * 255 / 16)``.

    Args:
        request: What ``load`` asks for; ``image_size`` defaults to 8, others are scaled from it.
        imbalance: Largest over smallest class, at least 1.
        size: Images in the training part.

    Raises:
        ValueError: If ``imbalance`` is below 1, ``size`` is not a positive integer, or there are too few
            images.

    Source: E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning
        Repository, 1998.
    """
    from sklearn.datasets import load_digits

    if not (np.isfinite(imbalance) and imbalance >= 1):
        raise ValueError(f"imbalance must be at least 1 (largest over smallest class), got {imbalance!r}")
    if not isinstance(size, int | np.integer) or size < 1:
        raise ValueError(f"size must be a positive integer, got {size!r}")
    bunch = load_digits()
    rng = np.random.default_rng(request.seed)
    order = rng.permutation(10)
    draws = [rng.permutation(np.flatnonzero(bunch.target == digit)) for digit in order]

    weights = imbalance ** (-np.arange(10) / 9)
    train = apportion(size, weights)
    val = np.maximum(apportion(round(size * request.fractions[1] / request.fractions[0]), weights), MINIMUM)
    left = np.array([len(draw) for draw in draws]) - train - val
    test = left.min()
    if test < MINIMUM:
        scarce = left.argmin()
        raise ValueError(
            f"size={size} with imbalance={imbalance} takes {train[scarce]} + {val[scarce]} images "
            f"(train + val) of digit {order[scarce]}, which has {len(draws[scarce])}, and leaves fewer than "
            f"{MINIMUM} for the test: lower one of them"
        )

    # The test comes first in each draw, so that test sets of one seed are nested over imbalances.
    counts = [(test, t, v) for t, v in zip(train, val, strict=True)]
    rows = np.concatenate([draw[: sum(count)] for draw, count in zip(draws, counts, strict=True)])
    parts = np.concatenate([np.repeat([2, 0, 1], count) for count in counts])
    images = resize(bunch.images[rows, None] * (255 / 16), request.image_size or 8)
    digit = bunch.target[rows]
    return Collection(
        table=pd.DataFrame(
            {
                "digit": pd.Categorical.from_codes(digit, [str(d) for d in range(10)]),
                "parity": pd.Categorical.from_codes(digit % 2, ["even", "odd"]),
            }
        ),
        images=np.rint(images).astype(np.uint8).__getitem__,
        target="digit",
        group="digit",
        parts=parts,
        report={"found": len(bunch.target), "not_drawn": len(bunch.target) - len(rows)},
    )
