"""Synthetic faces whose groups differ in size and, if asked, in spread, and in nothing else."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from fairlib.data.collection import Collection, Request
from fairlib.data.face_drawing import FACTORS, Pose, draw_faces
from fairlib.data.images import resize
from fairlib.data.splitting import apportion

EXPRESSION_GAP = 3.0
"""Distance between the means of the two expressions, in standard deviations of a factor at spread 1."""

DRAWN = 32
"""Pictures are drawn at this size at least and scaled down."""


def synthetic_faces(
    request: Request,
    *,
    size: int = 2000,
    shares: Sequence[float] = (0.45, 0.22, 0.15, 0.11, 0.07),
    spreads: float | Sequence[float] = 1.0,
    separation: float = 4.5,
    noise: float = 0.04,
) -> Collection:
    """Grey schematic faces from a Gaussian latent space with K = 10 factors.

    A face of group g with expression e (-1 or 1) has the latent code

        z = m_g + e * (gap / 2) * d + s_g * n,    n ~ N(0, I_K),

    where the group means m_g are the corners of a regular simplex with edge ``separation``, d is a unit
    vector orthogonal to all of them, and the frame of both is **rotated at random by the seed** (Haar). The
    factors tanh(z / 2) shape the face; position, rotation, scale and light are jittered and pixel noise is
    added, alike for all. So groups are exchangeable over seeds: none is harder than another in expectation
    but for its size (``shares``) and its spread (``spreads``). With equal shares and spreads the data are the
    null control.

    Attributes ``group`` (A, B, ...: the default target and group) and ``expression`` (calm, lively: as many
    of each in every group, give or take one, and independent of the group).

    Args:
        request: What ``load`` asks for; ``image_size`` defaults to 16. Drawn at 32 pixels or ``image_size``,
            whichever is more, then scaled down.
        size: Number of faces.
        shares: Size of each group, in proportion; two to nine groups.
        spreads: Standard deviation s_g of the latent noise, for all groups or one each.
        separation: Distance between the means of two groups.
        noise: Standard deviation of the pixel noise; 1 is the way from black to white.

    Raises:
        ValueError: If a setting is out of its range.
    """
    shares, spreads = _checked_settings(size, shares, spreads, separation, noise)
    frame_seed, people_seed, pose_seed, noise_seed = request.seed.spawn(4)
    rng = np.random.default_rng(people_seed)
    order = rng.permutation(size)
    sizes = apportion(size, shares)
    groups = np.repeat(np.arange(len(shares)), sizes)[order]
    expressions = np.concatenate([np.arange(n) % 2 for n in sizes])[order]

    means, direction = latent_frame(len(shares), separation, np.random.default_rng(frame_seed))
    latent = means[groups] + spreads[groups, None] * rng.standard_normal((size, len(FACTORS)))
    latent += (expressions - 0.5)[:, None] * EXPRESSION_GAP * direction
    pose = Pose.draw(size, np.random.default_rng(pose_seed))
    image_size = request.image_size or 16
    faces = resize(draw_faces(np.tanh(latent / 2), pose, max(DRAWN, image_size)), image_size)
    faces += noise * np.random.default_rng(noise_seed).standard_normal(faces.shape, dtype=np.float32)
    return Collection(
        table=pd.DataFrame(
            {
                "group": pd.Categorical.from_codes(groups, [chr(ord("A") + g) for g in range(len(shares))]),
                "expression": pd.Categorical.from_codes(expressions, ["calm", "lively"]),
            }
        ),
        images=np.rint(faces.clip(0, 1) * 255).astype(np.uint8).__getitem__,
        target="group",
        group="group",
        report={"found": size},
    )


def latent_frame(groups: int, separation: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A randomly rotated regular simplex around the origin, and a direction orthogonal to it.

    Returns:
        The corners ``(groups, K)``, each two ``separation`` apart, and a unit vector ``(K,)``.
    """
    basis, triangle = np.linalg.qr(rng.standard_normal((len(FACTORS), len(FACTORS))))
    # Without the signs, QR of a Gaussian matrix is not uniform over rotations.
    rows = (basis * np.sign(np.diag(triangle))).T
    corners = rows[:groups] * separation / np.sqrt(2)
    return corners - corners.mean(axis=0), rows[groups]


def _checked_settings(
    size: int, shares: Sequence[float], spreads: float | Sequence[float], separation: float, noise: float
) -> tuple[np.ndarray, np.ndarray]:
    """Shares and spreads as float arrays ``(groups,)``."""
    shares = np.asarray(shares, dtype=float)
    most = len(FACTORS) - 1
    if shares.ndim != 1 or not 2 <= len(shares) <= most or not (np.isfinite(shares) & (shares > 0)).all():
        raise ValueError(f"shares must be two to {most} positive numbers, got {shares.tolist()}")
    each = np.asarray(spreads, dtype=float)
    if each.shape not in ((), shares.shape) or not (np.isfinite(each) & (each > 0)).all():
        raise ValueError(
            f"spreads must be a positive number, or one for each of the {len(shares)} groups, got {each.tolist()}"
        )
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
        raise ValueError(f"size must be a positive integer, got {size!r}")
    for name, value in (("separation", separation), ("noise", noise)):
        if not (np.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be a finite number, 0 or more, got {value!r}")
    return shares, np.broadcast_to(each, shares.shape)
