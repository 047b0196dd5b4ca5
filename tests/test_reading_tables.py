import datetime
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from fairlib._tables import read_text_table


def write(folder, content, name="people.csv"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def cells(table):
    return table.astype(object).where(table.notna(), None).to_numpy().tolist()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "cp1252"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r", "\n\n"])
def test_a_csv_of_any_spreadsheet_is_the_same_table(tmp_path, encoding, separator, newline):
    rows = [
        ["file", 'Größe, cm; in\t"Ur"', "town"],
        [" 1.jpg ", "1,5;", "Ur"],
        ["2.jpg", "NA", "Köln"],
    ]
    quoted = [
        [f'"{cell.replace(chr(34), chr(34) * 2)}"' if len(cell) != 5 else cell for cell in row]
        for row in rows
    ]
    text = newline + newline.join(map(separator.join, quoted)) + newline
    mark = b"\xfe\xff" if encoding == "utf-16-be" else b""
    table = read_text_table(write(tmp_path, mark + text.encode(encoding)))
    assert (list(table), cells(table)) == (
        rows[0],
        [["1.jpg", "1,5;", "Ur"], ["2.jpg", None, "Köln"]],
    )
    assert table.index.tolist() == [1, 2]


def test_a_separator_in_the_quotes_of_the_header_is_none(tmp_path):
    assert list(read_text_table(write(tmp_path, '"a;b;c",d\n1,2\n'))) == ["a;b;c", "d"]
    assert list(read_text_table(write(tmp_path, '"a\nb, c, d";e\n1;2\n'))) == ["a\nb, c, d", "e"]
    assert cells(read_text_table(write(tmp_path, "file\n1.jpg\n"))) == [["1.jpg"]]


def test_cells_that_say_that_a_value_is_missing(tmp_path):
    missing = ["", " ", "NA", " NA ", "N/A", "nan", "NaN", "null", "None"]
    path = write(
        tmp_path,
        "a,b\n" + "".join(f"{value},x\n" for value in missing) + "Nan,y\nNancy,z\nna,none\n",
    )
    assert cells(read_text_table(path)) == [
        *([None, "x"] for _ in missing),
        ["Nan", "y"],
        ["Nancy", "z"],
        ["na", "none"],
    ]


def test_text_is_not_a_number(tmp_path):
    path = write(tmp_path, 'zip,inch,long\n00501,5" tall,12345678901234567890\n1e5,6,1.0\n')
    assert cells(read_text_table(path)) == [
        ["00501", '5" tall', "12345678901234567890"],
        ["1e5", "6", "1.0"],
    ]


def test_some_columns_in_the_order_asked_for(tmp_path):
    path = write(tmp_path, "a,b ,c\n1,2,3\n")
    table = read_text_table(path, columns=["c", "b"])
    assert (list(table), cells(table)) == (["c", "b"], [["3", "2"]])
    with pytest.raises(ValueError, match=r"unknown column of '.*people.csv' 'd'; known: a, b, c"):
        read_text_table(path, columns=["d"])


NUMBERS = {
    "whole": [1, 2, 3],
    "gap": [1.0, None, 3.0],
    "half": [0.5, 2.0, 1e-7],
    "text": ["a", " b ", "NA"],
    "flag": [True, False, True],
    "day": [datetime.date(2024, 1, day) for day in (1, 2, 3)],
}
AS_TEXT = {
    "whole": ["1", "2", "3"],
    "gap": ["1", None, "3"],
    "text": ["a", "b", None],
    "flag": ["True", "False", "True"],
}


def columns(table):
    return {
        name: [value if isinstance(value, str) else None for value in table[name]] for name in table
    }


def test_parquet_as_text(tmp_path):
    frame = pd.DataFrame(NUMBERS).assign(kind=pd.Categorical(["x", "y", "x"]))
    frame.to_parquet(tmp_path / "people.parquet")
    read = columns(read_text_table(tmp_path / "people.parquet"))
    assert {name: read[name] for name in AS_TEXT} == AS_TEXT
    assert read["kind"] == ["x", "y", "x"] and read["day"][0] == "2024-01-01"
    assert list(map(float, read["half"])) == NUMBERS["half"]
    pd.DataFrame({"a": [[1, 2]], "b": [1]}).to_parquet(tmp_path / "nested.parquet")
    assert cells(read_text_table(tmp_path / "nested.parquet", columns=["b"])) == [["1"]]
    with pytest.raises(
        ValueError, match=r"column 'a' of '.*nested.parquet' has lists: give text or numbers"
    ):
        read_text_table(tmp_path / "nested.parquet")
    with pytest.raises(ValueError, match=r"cannot read '.*bad.parquet' as Parquet"):
        read_text_table(write(tmp_path, "a,b\n1,2\n", "bad.parquet"))


def test_excel_as_text(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in zip(*([name, *values] for name, values in NUMBERS.items()), strict=True):
        book.active.append(row)
        book.active.append([])
    book.save(tmp_path / "people.xlsx")
    read = columns(read_text_table(tmp_path / "people.xlsx"))
    assert list(read) == list(NUMBERS) and {name: read[name] for name in AS_TEXT} == AS_TEXT
    assert list(map(float, read["half"])) == NUMBERS["half"]
    assert cells(read_text_table(tmp_path / "people.xlsx", columns=["gap"])) == [
        ["1"],
        [None],
        ["3"],
    ]
    with pytest.raises(
        ValueError, match=r"cannot read '.*bad.xlsx' as .xlsx .*: save it again, without a password"
    ):
        read_text_table(write(tmp_path, b"PK\x03\x04", "bad.xlsx"))
    (tmp_path / "people.xlsx").rename(tmp_path / "excel.csv")
    with pytest.raises(ValueError, match=r"excel.csv' is an Excel file: name it .xlsx"):
        read_text_table(tmp_path / "excel.csv")
    openpyxl.Workbook().save(tmp_path / "empty.xlsx")
    with pytest.raises(ValueError, match=r"the table '.*empty.xlsx' is empty"):
        read_text_table(tmp_path / "empty.xlsx")


def test_what_excel_needs_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(
        ImportError, match=r"people.xlsx' needs openpyxl: pip install 'who-pays\[audit\]'"
    ):
        read_text_table(write(tmp_path, b"PK\x03\x04", "people.xlsx"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "people.csv' is empty: it must have a header and at least one row"),
        (b"\xef\xbb\xbf\r\n\r\n", "people.csv' is empty"),
        (b"a,b\n", "people.csv' is empty"),
        (b"a, a\n1,2\n", "people.csv' names a column twice: a, a"),
        (
            b"a,b\n1,2\n1,2,3\n",
            "row 2 of '.*people.csv' has 3 cells, the header has 2: put a text with ',' or a line",
        ),
        (b"a,b\n\n1,2\n\n1\n", "row 2 of '.*people.csv' has 1 cells, the header has 2"),
        (
            b'a,b\n1,2\n1,"2\n3,4\n',
            "row 2 of '.*people.csv' cannot be read as CSV .*: close every double quote",
        ),
        (
            b'a,b\n1,2\n"1,2\n3,4\n',
            "row 2 of '.*people.csv' cannot be read as CSV .*: close every double quote",
        ),
        (
            b'a,b\n1,2\n1,"2"3\n',
            "row 2 of '.*people.csv' cannot be read as CSV .*: close every double quote",
        ),
        (
            b"a,b\n1,2\n" + b"x" * 131_073 + b",2\n",
            "row 2 of .* cannot be read as CSV .*limit .131072",
        ),
        (
            b'a,b\n1,"2\n' + b"x,y\n" * 100_000 + b'",2\n',
            "row 1 of .*people.csv' cannot be read as CSV",
        ),
        (b'a,"b\n1,2\n', "the header of '.*people.csv' cannot be read as CSV .*every double quote"),
        (
            b"a,b\n1,2\n3,\x81\n",
            "line 3 of '.*people.csv' is text neither in UTF-8 .*: save it as 'CSV UTF-8'",
        ),
        ("a,b\n1,2\n".encode("utf-16-le"), "line 1 of '.*people.csv' is text neither"),
        ("a,b\n1,2".encode("utf-16")[:-1], "line 2 of '.*people.csv' is text neither"),
        (b"PK\x03\x04\xb5\xff", "people.csv' is an Excel file: name it .xlsx"),
        (
            b"\xd0\xcf\x11\xe0\xa1",
            "people.csv' is an old or an encrypted Excel file: save it as .xlsx",
        ),
        (b"PAR1\x15", "people.csv' is a Parquet file: name it .parquet"),
    ],
)
def test_what_is_no_table_is_named_with_its_place_and_what_to_do(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        read_text_table(write(tmp_path, content))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(
        FileNotFoundError,
        match=r"no table '.*none.csv': it must be a CSV, an .xlsx or a .parquet file",
    ):
        read_text_table(tmp_path / "none.csv")


def test_cells_survive_a_large_file(tmp_path):
    """The reader of pandas agrees."""
    number = np.arange(40_000)
    frame = pd.DataFrame(
        {"number": number, "text": np.where(number % 3, "a,b", "c"), "half": number / 2}
    )
    path = tmp_path / "large.csv"
    frame.to_csv(path, index=False)
    assert (
        read_text_table(path).to_numpy().tolist()
        == pd.read_csv(path, dtype=str).to_numpy().tolist()
    )
    with open(path, "a", encoding="utf-8") as file:
        file.write("1,2\n")
    with pytest.raises(ValueError, match=r"row 40001 of .* has 2 cells, the header has 3"):
        read_text_table(path)


def test_it_needs_no_torch():
    code = "import sys; import fairlib._tables; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
