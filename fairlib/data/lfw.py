"""Labeled Faces in the Wild: faces of people by name, with attributes by other authors."""

from dataclasses import replace
from pathlib import Path

import pandas as pd

from fairlib._validation import lookup
from fairlib.data.collection import Collection, Request
from fairlib.data.face_attributes import faces_with
from fairlib.data.images import find_files

FOLDERS = ("lfw", "lfw-deepfunneled", "lfw_funneled")

_HOW_TO_GET = (
    "LFW (for research): unpack the images of the project page 'Labeled Faces in the Wild' so that "
    "root/lfw/, lfw-deepfunneled/ or lfw_funneled/ (root: argument of load) holds "
    "Person_Name/Person_Name_0001.jpg and so on; into that folder or beside it put "
    "lfw_attributes.txt (Kumar et al., 'Attribute and Simile Classifiers for Face Verification') "
    "or lfw_att_40.mat (LFWA, Liu et al., 'Deep Learning Face Attributes in the Wild')"
)


def lfw(request: Request, *, source: str = "auto") -> Collection:
    """Load the 13,233 pictures (250 x 250) of 5,749 people in LFW, **split by person**.

    No person is in two parts, since a network recognizes a face that it was trained on. People are
    assigned to parts at random, so that the pictures of every group (a person's is that of most of
    their pictures) follow ``fractions`` as closely as people with many pictures allow; the split is
    not stratified by target. 13,143 pictures have attributes. Pictures without (``unlisted``) and
    attributes without a picture (``missing``) are left out and counted.

    Attributes have the values no and yes. Kumar's 73 are real-valued scores of classifiers: above 0
    is yes. LFWA's 40 have the names of CelebA's. Blanks in names become underscores: ``Wavy_Hair``
    (the default target). ``gender`` (female, male) is ``Male`` by another name: the default group.

    Args:
        request: Arguments of :func:`fairlib.load`; ``image_size`` defaults to 64 (RGB).
        source: Authors of the attributes: ``"kumar"`` (``lfw_attributes.txt``), ``"lfwa"``
            (``lfw_att_40.mat``), or ``"auto"`` for the first of the two whose file exists;
            ``attributes`` in the report says which.

    Raises:
        FileNotFoundError: If the pictures or their attributes are missing; says how to get them.
        ValueError: If ``source`` is unknown, its file names no attributes, or no picture has any.
        OSError: If a picture cannot be read, when it is decoded; names the file.

    Source: G. B. Huang, M. Ramesh, T. Berg, E. Learned-Miller, Labeled Faces in the Wild, 2007; N.
        Kumar, A. C. Berg, P. N. Belhumeur, S. K. Nayar, Attribute and Simile Classifiers for Face
        Verification, ICCV 2009; Z. Liu, P. Luo, X. Wang, X. Tang, Deep Learning Face Attributes in
        the Wild, ICCV 2015.
    """
    files = find_files(request.root, FOLDERS, "*/*_[0-9][0-9][0-9][0-9].jpg", _HOW_TO_GET)
    source, file = _find_attributes(files[0].parents[1], source)
    flags = READERS[source][1](file)
    flags.columns = flags.columns.str.strip().str.replace(" ", "_")
    faces = faces_with(request, files, flags, source=file, target="Wavy_Hair")

    # The files are called Person_Name_0001.jpg.
    people = faces.table.index.str.removesuffix(".jpg").str[:-5].to_numpy()
    return replace(faces, people=people, report={**faces.report, "attributes": source})


def _find_attributes(folder: Path, source: str) -> tuple[str, Path]:
    """Find the first file that ``source`` allows: its name in ``READERS``, and its path."""
    names = lookup("source", source, {"auto": tuple(READERS)} | {name: (name,) for name in READERS})
    files = [READERS[name][0] for name in names]
    for name, file in zip(names, files, strict=True):
        for path in (folder / file, folder.parent / file):
            if path.is_file():
                return name, path
    raise FileNotFoundError(
        f"found no {' or '.join(files)} in {str(folder)!r} or {str(folder.parent)!r}. {_HOW_TO_GET}"
    )


def _read_kumar(file: Path) -> pd.DataFrame:
    """Read tab-separated text: comments, ``# person imagenum Male ...``, a row for each picture."""
    lines = file.read_text(encoding="utf-8").split("\n")
    header = next((row for row, line in enumerate(lines) if "imagenum" in line), None)
    if header is None:
        raise ValueError(
            f"{str(file)!r} has no line '# person imagenum Male ...' that names the attributes"
        )
    names = [name.strip() for name in lines[header].lstrip("#").strip().split("\t")]
    scores = pd.read_csv(
        file,
        sep="\t",
        skiprows=header + 1,
        names=names,
        # Rows of the original end in a tab: a column without a name, which must not be the index.
        usecols=range(len(names)),
        index_col=False,
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
"""Sources of attributes: the name of the file, and its reader to bool, a row for each picture."""
