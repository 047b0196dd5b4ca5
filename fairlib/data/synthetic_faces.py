"""Synthetic faces whose groups differ in size, on request in spread, and in nothing else."""

from collections.abc import Sequence

import numpy as np

from fairlib._validation import check_number
from fairlib.data.collection import Collection, Request, table_of
from fairlib.data.face_drawing import FACTORS, draw_faces, draw_poses
from fairlib.data.images import resize
from fairlib.data.splitting import apportion

EXPRESSION_GAP = 3.0
"""Distance between the means of the expressions, in standard deviations of a factor at spread 1."""

SEPARATION = 4.5
"""Distance between the means of two groups."""

NOISE = 0.04
"""Standard deviation of the pixel noise; the distance from black to white is 1."""

DRAWN = 32
"""Least height and width in pixels at which pictures are drawn, before they are scaled down."""


def synthetic_faces(
    request: Request,
    *,
    size: int = 2000,
    shares: Sequence[float] = (0.45, 0.22, 0.15, 0.11, 0.07),
    spreads: float | Sequence[float] = 1.0,
) -> Collection:
    """Draw grey schematic faces from a Gaussian latent space with K = 10 factors.

    A face of group g with expression e (-1 or 1) has the latent code

        z = m_g + e * (gap / 2) * d + s_g * n,    n ~ N(0, I_K),

    where the group means m_g are the corners of a regular simplex with edge 4.5, d is a unit
    vector orthogonal to all of them, and the frame of both is **rotated at random by the seed**
    (Haar). The factors tanh(z / 2) shape the face; position, rotation, scale and light vary at
    random and pixel noise is added, in the same way for all groups. So groups are exchangeable over
    seeds: in expectation none is harder than another except through its size (``shares``) and its
    spread (``spreads``). With equal shares and spreads the data are the null control.

    Attributes: ``group`` (A, B, ...: the default target and group) and ``expression`` (calm,
    lively: equally frequent in every group, up to one face, and independent of the group).

    Args:
        request: Arguments of :func:`fairlib.load`; ``image_size`` defaults to 16. Faces are drawn
            at 32 pixels or ``image_size``, whichever is more, then scaled down.
        size: Number of faces.
        shares: Relative sizes of the groups; two to nine groups.
        spreads: Standard deviation s_g of the latent noise: one number for all groups, or one for
            each.

    Raises:
        ValueError: If a setting is out of its range; says which.
    """
    check_number("size", size, 1, whole=True)
    weights, deviations = _checked_groups(shares, spreads)
    frame_seed, people_seed, pose_seed, noise_seed = request.seed.spawn(4)
    rng = np.random.default_rng(people_seed)
    # A stream for each of the four: with other shares the frame, poses and noise stay the same.
    order = rng.permutation(size)
    sizes = apportion(size, weights)
    groups = np.repeat(np.arange(len(shares)), sizes)[order]
    expressions = np.concatenate([np.arange(n) % 2 for n in sizes])[order]

    means, direction = latent_frame(len(shares), SEPARATION, np.random.default_rng(frame_seed))
    latent = means[groups] + deviations[groups, None] * rng.standard_normal((size, FACTORS))
    latent += (expressions - 0.5)[:, None] * EXPRESSION_GAP * direction
    poses = draw_poses(size, np.random.default_rng(pose_seed))
    image_size = request.image_size or 16
    faces = resize(draw_faces(np.tanh(latent / 2), poses, max(DRAWN, image_size)), image_size)
    faces += NOISE * np.random.default_rng(noise_seed).standard_normal(
        faces.shape, dtype=np.float32
    )
    return Collection(
        table=table_of(
            group=(groups, "ABCDEFGHI"[: len(shares)]), expression=(expressions, ("calm", "lively"))
        ),
        images=np.rint(faces.clip(0, 1) * 255).astype(np.uint8).__getitem__,
        target="group",
        group="group",
        report={"found": size},
    )


def latent_frame(
    groups: int, separation: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw a randomly rotated regular simplex, and a direction orthogonal to it.

    Returns:
        The corners of the simplex ``(groups, K)``, all pairs ``separation`` apart; and a unit
        vector ``(K,)``.
    """
    basis, triangle = np.linalg.qr(rng.standard_normal((FACTORS, FACTORS)))
    # Without the signs, QR of a Gaussian matrix is not uniform over rotations.
    rows = (basis * np.sign(np.diag(triangle))).T
    corners = rows[:groups] * separation / np.sqrt(2)
    return corners - corners.mean(axis=0), rows[groups]


def _checked_groups(
    shares: Sequence[float], spreads: float | Sequence[float]
) -> tuple[np.ndarray, np.ndarray]:
    """Check shares and spreads, and return them as float arrays ``(groups,)``."""
    weights, deviations = np.asarray(shares, dtype=float), np.asarray(spreads, dtype=float)
    if weights.ndim != 1 or not 2 <= len(weights) < FACTORS or not _positive(weights):
        raise ValueError(f"shares must be two to {FACTORS - 1} positive numbers, got {shares!r}")
    if deviations.shape not in ((), weights.shape) or not _positive(deviations):
        raise ValueError(
            f"spreads must be a positive number or one for each of the {len(weights)} groups, "
            f"got {spreads!r}"
        )
    return weights, np.broadcast_to(deviations, weights.shape)


def _positive(values: np.ndarray) -> bool:
    return bool(((values > 0) & (values < np.inf)).all())
