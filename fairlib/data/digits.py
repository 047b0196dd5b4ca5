"""The handwritten digits of scikit-learn, made imbalanced."""

import numpy as np

from fairlib._validation import check_number
from fairlib.data.collection import Collection, Request, table_of
from fairlib.data.images import resize
from fairlib.data.splitting import MINIMUM, apportion


def digits(request: Request, *, imbalance: float = 10.0, size: int = 450) -> Collection:
    """Load scikit-learn's 1,797 digits (8 x 8, grey), with class sizes that fall geometrically.

    In train and val the k-th most frequent digit (k = 0..9) has a share proportional to ``imbalance
    ** (-k / 9)``; **which digit is how frequent is drawn from the seed**, so that over seeds the
    size of a class is independent of its shape. ``imbalance=1`` is the control: the same number of
    training images, equal shares. The test part is balanced, so that accuracy is estimated equally
    well for all digits: of each it has as many images as are left of the digit with the fewest.

    The training part has ``size`` images in all (450 with imbalance 10 gives classes of 110, 85,
    ..., 11), the validation part ``size * val / train`` by ``fractions``, at least two of each
    digit; the share of test in ``fractions`` has no effect. For one seed the test images of a
    larger imbalance are among those of a smaller one.

    Attributes: ``digit`` (0 to 9) and ``parity`` (even, odd). Pixel values 0 to 16 become ``round(x
    * 255 / 16)``.

    Args:
        request: Arguments of :func:`fairlib.load`; ``image_size`` defaults to 8, other sizes are
            scaled from it.
        imbalance: Size of the largest class over that of the smallest, at least 1.
        size: Number of images in the training part.

    Raises:
        ValueError: If ``imbalance`` is below 1, ``size`` is not a positive integer, or too few
            images are left for the test part.

    Source: E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning
        Repository, 1998.
    """
    from sklearn.datasets import load_digits

    check_number("imbalance", imbalance, 1)
    check_number("size", size, 1, whole=True)
    if not all(request.fractions[:2]):
        raise ValueError(
            "fractions of data set 'digits' must be positive for train and val, "
            f"got {request.fractions}"
        )
    bunch = load_digits()
    # The order of the classes is drawn too: a digit that were always rare would make its shape, and
    # not its size, the reason of what compression costs it.
    rng = np.random.default_rng(request.seed)
    order = rng.permutation(10)
    draws = [rng.permutation(np.flatnonzero(bunch.target == digit)) for digit in order]

    weights = imbalance ** (-np.arange(10) / 9)
    train = apportion(size, weights)
    val_size = round(size * request.fractions[1] / request.fractions[0])
    val = np.maximum(apportion(val_size, weights), MINIMUM)
    left = np.array([len(draw) for draw in draws]) - train - val
    test = left.min()
    if test < MINIMUM:
        raise ValueError(
            f"size={size} with imbalance={imbalance} leaves fewer than {MINIMUM} images of digit "
            f"{order[left.argmin()]} for the test part: lower size or imbalance"
        )

    # The test part comes first in each draw: the test sets of a seed are nested over imbalances.
    counts = [(test, t, v) for t, v in zip(train, val, strict=True)]
    rows = np.concatenate([draw[: sum(count)] for draw, count in zip(draws, counts, strict=True)])
    parts = np.concatenate([np.repeat([2, 0, 1], count) for count in counts])
    images = resize(bunch.images[rows, None] * (255 / 16), request.image_size or 8)
    digit = bunch.target[rows]
    return Collection(
        table=table_of(digit=(digit, "0123456789"), parity=(digit % 2, ("even", "odd"))),
        images=np.rint(images).astype(np.uint8).__getitem__,
        target="digit",
        group="digit",
        parts=parts,
        report={"found": len(bunch.target), "not_drawn": len(bunch.target) - len(rows)},
    )
