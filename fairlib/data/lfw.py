"""Labeled Faces in the Wild: faces of people by name, with the attributes of two other groups of
authors."""

from dataclasses import replace
from pathlib import Path

import pandas as pd

from fairlib._validation import lookup
from fairlib.data.collection import Collection, Request
from fairlib.data.face_attributes import faces_with
from fairlib.data.images import find_files

FOLDERS = ("lfw", "lfw-deepfunneled", "lfw_funneled")

HOW_TO_GET = (
    "LFW (for research): unpack the images of the project page 'Labeled Faces in the Wild' so that root/lfw/, "
    "lfw-deepfunneled/ or lfw_funneled/ (root: argument of load) holds Person_Name/Person_Name_0001.jpg and so on; "
    "into that folder or beside it put lfw_attributes.txt (Kumar et al., 'Attribute and Simile Classifiers for Face "
    "Verification') or lfw_att_40.mat (LFWA, Liu et al., 'Deep Learning Face Attributes in the Wild')"
)


def lfw(request: Request, *, source: str = "auto", limit: int | None = None) -> Collection:
    """Load 13,233 pictures (250 x 250) of 5,749 people, of which 13,143 have attributes; **split by
    person**.

    No person is in two parts, since a network recognizes a face that it was trained on. People are
    assigned to parts at random, so that the pictures of every group (a person's is that of most of
    their pictures) follow ``fractions`` as closely as people with many pictures allow; the split is
    not stratified by target. Pictures without attributes (``unlisted``) and attributes without a
    picture (``missing``) are left out and counted.

    Attributes have the values no and yes. Kumar's 73 are real-valued scores of classifiers: above 0
    is yes. LFWA's 40 have the names of CelebA's. Blanks in names become underscores: ``Wavy_Hair``
    (the default target). ``gender`` (female, male) is ``Male`` by another name: the default group.

    Args:
        request: Arguments of :func:`fairlib.load`; ``image_size`` defaults to 64 (RGB).
        source: Authors of the attributes: ``"kumar"`` (``lfw_attributes.txt``), ``"lfwa"``
            (``lfw_att_40.mat``), or ``"auto"`` for the first of the two whose file exists;
            ``attributes`` in the report says which.
        limit: Number of pictures to draw by the seed, before any is decoded; None, or more than
            there are, for all.

    Raises:
        FileNotFoundError: If the pictures or their attributes are missing; says how to get them.
        ValueError: If ``source`` is unknown, its file names no attributes, no picture has any, or
            ``limit`` is not a positive integer.
        OSError: If a picture cannot be read, when it is decoded; names the file.

    Source: G. B. Huang, M. Ramesh, T. Berg, E. Learned-Miller, Labeled Faces in the Wild, 2007; N.
    Kumar,
        A. C. Berg, P. N. Belhumeur, S. K. Nayar, Attribute and Simile Classifiers for Face
        Verification, ICCV 2009; Z. Liu, P. Luo, X. Wang, X. Tang, Deep Learning Face Attributes in
        the Wild, ICCV 2015.
    """
    files = find_files(request.root, FOLDERS, "*/*_[0-9][0-9][0-9][0-9].jpg", HOW_TO_GET)
    source, file = _find_attributes(files[0].parents[1], source)
    flags = READERS[source][1](file)
    flags.columns = flags.columns.str.strip().str.replace(" ", "_")
    faces = faces_with(request, files, flags, source=file, target="Wavy_Hair", limit=limit)

    people = faces.table.index.str.removesuffix(".jpg").str[:-5].to_numpy()
    return replace(faces, people=people, report={**faces.report, "attributes": source})


def _find_attributes(folder: Path, source: str) -> tuple[str, Path]:
    """Find the first file of attributes among those that ``source`` means: its name in ``READERS``,
    and its path."""
    names = lookup("source", source, {"auto": list(READERS), **{name: [name] for name in READERS}})
    for name in names:
        for place in (folder, folder.parent):
            if (file := place / READERS[name][0]).is_file():
                return name, file
    wanted = " or ".join(READERS[name][0] for name in names)
    raise FileNotFoundError(
        f"found no {wanted} in {str(folder)!r} or {str(folder.parent)!r}. {HOW_TO_GET}"
    )


def _read_kumar(file: Path) -> pd.DataFrame:
    """Read tab-separated text: comments, then ``# person imagenum Male ...``, then a row for each
    picture."""
    with open(file, encoding="utf-8") as lines:
        above, header = next(
            ((i, line) for i, line in enumerate(lines) if "imagenum" in line), (0, "")
        )
    if not header:
        raise ValueError(
            f"{str(file)!r} has no line '# person imagenum Male ...' that names the attributes"
        )
    names = [name.strip() for name in header.lstrip("#").strip().split("\t")]
    columns = range(len(names))
    scores = pd.read_csv(
        file, sep="\t", skiprows=above + 1, names=names, usecols=columns, index_col=False
    )
    person = scores.pop("person").str.strip().str.replace(" ", "_")
    scores.index = person + scores.pop("imagenum").map("_{:04d}.jpg".format)
    return scores > 0


def _read_lfwa(file: Path) -> pd.DataFrame:
    r"""Read a MATLAB file of ``name`` (person\picture), ``AttrName`` and ``label`` (0 or 1)."""
    from scipy.io import loadmat

    mat = loadmat(file, squeeze_me=True)
    pictures = [name.replace("\\", "/").split("/")[-1] for name in mat["name"]]
    return pd.DataFrame(mat["label"] > 0, index=pictures, columns=list(mat["AttrName"]))


READERS = {"kumar": ("lfw_attributes.txt", _read_kumar), "lfwa": ("lfw_att_40.mat", _read_lfwa)}
"""Sources of attributes: the name of the file, and the function that reads it to bool, a row for
each picture."""
