import numpy as np
import pytest
from PIL import Image

from fairlib.data.images import decode, find_files, resize


def test_the_middle_square_is_taken(tmp_path):
    """A picture of 178 x 218 loses 20 rows above and below; one that lies loses columns."""
    rows = np.broadcast_to(np.arange(218, dtype=np.uint8)[:, None, None], (218, 178, 3))
    for name, pixels, axis in (("up.png", rows, 1), ("flat.png", rows.transpose(1, 0, 2), 2)):
        Image.fromarray(np.ascontiguousarray(pixels)).save(tmp_path / name)
        image = decode([tmp_path / name], 178)[0]
        line = image.transpose(0, axis, 3 - axis)[:, :, 0]
        assert (line == np.arange(20, 198)).all()


def test_an_odd_difference_is_halved(tmp_path):
    """Of 4 x 7 pixels the rows 1.5 to 5.5 are taken: two halves of neighbours at the size of the
    square."""
    pixels = np.broadcast_to(np.arange(0, 70, 10, dtype=np.uint8)[:, None, None], (7, 4, 3))
    Image.fromarray(np.ascontiguousarray(pixels)).save(tmp_path / "a.png")
    assert decode([tmp_path / "a.png"], 4)[0, 0, :, 0].tolist() == [15, 25, 35, 45]


def test_jpeg_is_cropped_at_the_scale_it_is_decoded_at(tmp_path):
    grid = np.linspace(0, 255, 128)
    smooth = np.stack(np.broadcast_arrays(grid[:, None], grid[None, :], 90.0), axis=-1).astype(
        np.uint8
    )
    tall = np.concatenate([np.zeros_like(smooth[:32]), smooth, np.zeros_like(smooth[:32])])
    Image.fromarray(tall).save(tmp_path / "a.jpg", quality=95)
    expected = smooth.reshape(16, 8, 16, 8, 3).mean(axis=(1, 3)).transpose(2, 0, 1)
    assert np.abs(decode([tmp_path / "a.jpg"], 16)[0] - expected).max() < 8


TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
"""By value of the EXIF tag Orientation: how an upright picture lies in the file (CIPA DC-008,
4.6.4)."""


@pytest.mark.parametrize(("form", "most"), [("jpg", 8), ("png", 0), ("webp", 0), ("tif", 0)])
def test_pictures_are_turned_upright(tmp_path, form, most):
    """A tall picture, brighter below and greener to the right, cut to its middle square, the JPEG
    at a small scale."""
    down, right = np.linspace(0, 255, 220)[:, None], np.linspace(0, 200, 160)[None] ** 2 / 200
    upright = Image.fromarray(
        np.stack(np.broadcast_arrays(down, right, 90.0), axis=-1).astype(np.uint8)
    )
    files = [tmp_path / f"{turn}.{form}" for turn in range(1, 9)]
    for turn, file in enumerate(files, start=1):
        exif = Image.Exif()
        exif[0x0112] = turn
        lying = upright.transpose(TURNS[turn]) if turn in TURNS else upright
        lying.save(
            file, exif=exif, **{"webp": {"lossless": True}, "jpg": {"quality": 95}}.get(form, {})
        )
    images = decode(files, 16).astype(int)
    assert (
        images[0, 0, -1].min() > images[0, 0, 0].max() + 100
        and images[0, 1, :, -1].min() > images[0, 1, :, 0].max()
    )
    assert np.abs(images - images[0]).max() <= most


def test_a_picture_that_is_too_large_is_named(tmp_path, monkeypatch):
    Image.new("1", (40, 30)).save(tmp_path / "scan.png")
    for most in (1199, 100):  # PIL itself warns of the first, and refuses the second.
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", most)
        with pytest.raises(
            OSError, match=r"image '.*scan.png' is too large .*1200.*: scale it down, or raise PIL"
        ):
            decode([tmp_path / "scan.png"], 4)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert decode([tmp_path / "scan.png"], 4).shape == (1, 3, 4, 4)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_picture_that_pil_only_warns_of_is_refused_too(tmp_path, monkeypatch):
    Image.new("1", (40, 30)).save(tmp_path / "scan.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1199)
    with pytest.raises(
        OSError, match=r"scan.png' is too large \(it has 40 x 30 pixels\): scale it down"
    ):
        decode([tmp_path / "scan.png"], 4)


@pytest.mark.parametrize("form", ["png", "webp", "gif", "jpg", "tif", "bmp"])
@pytest.mark.parametrize("mode", ["RGB", "L", "P", "1", "RGBA", "CMYK"])
def test_every_usual_kind_of_picture_becomes_rgb(tmp_path, form, mode):
    picture = Image.new("RGB", (12, 12), (255, 255, 255)).convert(mode)
    try:
        picture.save(tmp_path / f"größe 写真.{form}")
    except (OSError, ValueError):
        pytest.skip(f"{form} has no {mode}")
    image = decode([tmp_path / f"größe 写真.{form}"], 4)
    assert image.shape == (1, 3, 4, 4) and image.min() >= 250


def test_a_truncated_file_is_named(tmp_path):
    for form in ("jpg", "png", "webp"):
        file = tmp_path / f"half.{form}"
        Image.fromarray(
            np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
        ).save(file)
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        with pytest.raises(
            OSError, match=rf"cannot read the image '.*half.{form}' .*: get it again or remove it"
        ):
            decode([file], 8)


def test_more_than_8_bits_are_refused(tmp_path):
    Image.fromarray(np.full((4, 4), 3000, dtype=np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(
        OSError, match=r"cannot read the image .*deep.png.* more than 8 bits a channel"
    ):
        decode([tmp_path / "deep.png"], 4)


def test_bytes_are_scaled_to_bytes_and_others_to_floats():
    pixels = np.random.default_rng(0).integers(0, 256, (3, 2, 32, 32), dtype=np.uint8)
    small, exact = resize(pixels, 8), resize(pixels.astype(float), 8)
    assert (small.dtype, exact.dtype) == (np.uint8, np.float32)
    assert np.abs(small - exact).max() <= 1.01  # Rounded after each of the two directions.
    assert resize(pixels, 32).tobytes() == pixels.tobytes()


def test_the_first_folder_that_has_files_is_taken_then_the_root(tmp_path):
    for name in ("b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.jpg").touch()
    assert find_files(str(tmp_path), ["a", "b", "c"], "*.jpg", "") == [tmp_path / "b" / "1.jpg"]
    assert find_files(str(tmp_path / "c"), ["a", "b"], "*.jpg", "") == [tmp_path / "c" / "1.jpg"]
    with pytest.raises(
        FileNotFoundError, match=r"found no file in '.*a.*png' and '.*png'\. Ask them\."
    ):
        find_files(str(tmp_path), ["a"], "*.png", "Ask them.")
