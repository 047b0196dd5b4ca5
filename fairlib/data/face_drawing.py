"""Schematic faces from ten numbers each: smooth ellipses and strokes, drawn many at once."""

import numpy as np

FACTORS = 10
"""Numbers that shape a face, the columns of ``factors``."""

DRAWN_AT_ONCE = 256
"""Faces drawn at once: few enough to keep the intermediate arrays in the CPU's cache."""

Length = np.ndarray | float


def draw_poses(count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw independent, uniform poses: position, size and light of faces in their pictures.

    Returns:
        Float64 ``(count, 7)``: displacement to the right and down, in half pictures; rotation in
        radians; size and brightness relative to the ordinary ones; relative change of brightness
        from the middle to the right and to the lower edge.
    """
    return np.column_stack(
        [
            rng.uniform(-0.06, 0.06, (count, 2)),
            rng.uniform(-0.1, 0.1, count),
            rng.uniform(0.95, 1.05, count),
            rng.uniform(0.9, 1.1, count),
            rng.uniform(-0.1, 0.1, (count, 2)),
        ]
    )


def draw_faces(factors: np.ndarray, poses: np.ndarray, size: int) -> np.ndarray:
    """Paint grey faces.

    Args:
        factors: The numbers that shape each face, ``(n, 10)``, in [-1, 1]: width and length of the
            face, shade of the hair, height of the hairline, distance and size of the eyes, tilt of
            the brows, length of the nose, width and curve of the mouth.
        poses: Position, size and light of the faces, ``(n, 7)``, as :func:`draw_poses` returns.
        size: Height and width of the pictures in pixels.

    Returns:
        Pictures, float32 ``(n, 1, size, size)`` in [0, 1].
    """
    images = np.empty((len(factors), 1, size, size), dtype=np.float32)
    for start in range(0, len(factors), DRAWN_AT_ONCE):
        rows = slice(start, start + DRAWN_AT_ONCE)
        images[rows, 0] = _draw(factors[rows], poses[rows], size)
    return images


def _draw(factors: np.ndarray, poses: np.ndarray, size: int) -> np.ndarray:
    """Paint layer over layer, in coordinates in which the upright face fills [-1, 1]."""
    width, length, shade, hairline, spacing, eye, tilt, nose, mouth, curve = _columns(factors)
    dx, dy, angle, scale, light, slope_x, slope_y = _columns(poses)

    # The picture stays, and its pixels are turned back into the coordinates of the face: so every
    # shape below is a formula of x and y, whatever the pose.
    axis = ((np.arange(size, dtype=np.float32) + 0.5) * 2 / size - 1)[None]
    right, down = axis[:, None, :], axis[:, :, None]
    sine, cosine = np.sin(angle) / scale, np.cos(angle) / scale
    x = cosine * (right - dx) + sine * (down - dy)
    y = cosine * (down - dy) - sine * (right - dx)

    hair = 0.25 + 0.25 * shade
    half_width, half_length = 0.6 + 0.15 * width, 0.75 + 0.13 * length
    eye_x, eye_width = 0.28 + 0.09 * spacing, 0.14 + 0.06 * eye
    nose_length, mouth_width = 0.14 + 0.08 * nose, 0.26 + 0.12 * mouth
    beside_eye = np.abs(x) - eye_x  # One formula for both eyes: the face is symmetric.
    bend = 0.15 * curve * (1 - 2 * (x / mouth_width) ** 2)
    head = _ellipse(x, y + 0.08, half_width + 0.1, half_length + 0.02)
    fringe = np.maximum(head, y + 0.45 - 0.2 * hairline + 0.2 * x**2)
    layers = [
        (hair, head),
        (0.75, _ellipse(x, y - 0.08, half_width, half_length)),
        (hair, fringe),
        (1.0, _ellipse(beside_eye, y + 0.05, eye_width, 0.6 * eye_width)),
        (0.05, _ellipse(beside_eye, y + 0.05, 0.06, 0.06)),
        (hair, _stroke(beside_eye, y + 0.26 + 0.7 * tilt * beside_eye, 0.18, 0.045)),
        (0.45, _stroke(y - 0.05 - nose_length, x, nose_length, 0.05)),
        (0.2, _stroke(x, y - 0.47 - bend, mouth_width, 0.06)),
    ]
    pixel = 2 / size
    canvas = np.full_like(x, 0.5)
    for tone, distance in layers:
        # The share of a pixel that a shape covers, from the signed distance of the pixel's centre.
        # A sharp edge instead would make the smallest factors jump from pixel to pixel.
        canvas += (tone - canvas) * np.clip(0.5 - distance / pixel, 0, 1)
    return np.clip(canvas * light * (1 + slope_x * right + slope_y * down), 0, 1)


def _columns(values: np.ndarray) -> np.ndarray:
    """Turn ``(n, k)`` into k arrays ``(n, 1, 1)``, which combine with the pixels of n pictures."""
    return values.T[:, :, None, None].astype(np.float32)


def _ellipse(x: np.ndarray, y: np.ndarray, half_width: Length, half_height: Length) -> np.ndarray:
    """Signed distance to an ellipse around the origin (negative inside), to first order."""
    return (np.hypot(x / half_width, y / half_height) - 1) * np.minimum(half_width, half_height)


def _stroke(
    along: np.ndarray, across: np.ndarray, half_length: Length, half_width: Length
) -> np.ndarray:
    """Signed distance to a bar around the origin; at its corners the larger of two distances."""
    return np.maximum(np.abs(along) - half_length, np.abs(across) - half_width)
