"""Reading and cleaning of tables of pairs, each rule by itself and all against a plain way."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import DataprepError, InputError, RecordError
from dataprep.pipeline.pairs.columns import parse_columns
from dataprep.pipeline.pairs.merge import MergedPairs, Merger, RowRules, ordered_labels
from dataprep.pipeline.pairs.read import read_rows
from dataprep.pipeline.pairs.splits import given_splits
from dataprep.pipeline.pairs.table import find_tables
from tests.support import examples

Row = dict[str, Any]


def write(path: Path, rows: list[Row]) -> Path:
    """The same rows as CSV, TSV, JSONL or Parquet, by the name."""
    if path.suffix in (".jsonl", ".gz"):
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    elif path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        names = list(dict.fromkeys(name for row in rows for name in row))
        with path.open("w", newline="", encoding="utf-8") as stream:
            delimiter = "\t" if path.suffix == ".tsv" else ","
            table = csv.DictWriter(stream, names, delimiter=delimiter)
            table.writeheader()
            table.writerows(rows)
    return path


def merge(*paths: Path, columns: str = "", **cleaning: Any) -> tuple[MergedPairs, Merger]:
    """All rows of the files, cleaned."""
    merger = Merger(RowRules(**cleaning))
    for _, source in find_tables([str(path) for path in paths]):
        merger.start_input()
        for rows in read_rows(source, parse_columns(columns)):
            merger.add(rows, source)
    return merger.finish(), merger


def words(pairs: MergedPairs, pair: int) -> set[str]:
    """The keywords of a pair."""
    return {pairs.keywords[n] for n in pairs.keyword_sets.of(pair).tolist()}


ROWS: list[Row] = [
    {"query": " Who? ", "context": "A man", "relevance": ".4", "keywords": "Law,art", "topic": "7"},
    {"query": "Who?", "context": "A man\n", "relevance": "0.9", "keywords": "LAW;x", "topic": ""},
    {"query": "Why?", "context": "Because, \"so\"\nit is", "relevance": "", "keywords": ""},
    {"query": "Why?", "context": "A man", "relevance": "7", "keywords": "art", "topic": "10"},
]  # fmt: skip


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_item_110_rules_of_merging_in_every_format(tmp_path: Path, name: str) -> None:
    """Item 110: aliases, stripped texts, max relevance, union of keywords, counts, order."""
    pairs, merger = merge(write(tmp_path / name, ROWS))
    assert pairs.questions == ["Who?", "Why?"]
    assert pairs.sources == ["A man", 'Because, "so"\nit is']
    assert pairs.question.tolist() == [0, 1, 1]
    assert pairs.source.tolist() == [0, 1, 0]
    assert pairs.relevance.tolist() == pytest.approx([0.9, 1.0, 1.0])
    assert [words(pairs, n) for n in range(3)] == [{"law", "art", "law;x"}, set(), {"art"}]
    assert pairs.cluster_names == ["7", "10"]
    assert pairs.cluster.tolist() == [0, -1, 1]
    assert pairs.counts == {"merged": 1, "relevance_clipped": 1, "relevance_missing": 1}
    assert merger.read == [4]
    assert pairs.provenance[:, 0].tolist() == [0, 0, 0]
    if "jsonl" not in name:
        assert pairs.provenance[:, 1].tolist() == [0, 2, 3]


def test_provenance_of_jsonl_is_the_byte_of_the_line(tmp_path: Path) -> None:
    """Blank lines and a byte order mark count."""
    lines = ["", json.dumps(ROWS[0]), "  ", json.dumps(ROWS[2])]
    data = b"\xef\xbb\xbf" + "\n".join(lines).encode()
    (tmp_path / "a.jsonl").write_bytes(data)
    pairs, _ = merge(tmp_path / "a.jsonl")
    for place, text in zip(pairs.provenance[:, 1].tolist(), (lines[1], lines[3]), strict=True):
        assert data[place:].startswith(text.encode())


def test_item_110_longest_answer_and_several_inputs(tmp_path: Path) -> None:
    """Item 110: pairs of all files are one table; the longest answer stays."""
    first = write(tmp_path / "a.jsonl", [{"question": "q", "source": "s", "answer": "yes"}])
    second = write(
        tmp_path / "b.csv",
        [
            {"question": "q", "source": "s", "answer": "yes, it is"},
            {"question": "q", "source": "s", "answer": "no"},
            {"question": "p", "source": "s", "answer": ""},
        ],
    )
    pairs, merger = merge(first, second)
    assert pairs.answers == {0: "yes, it is"}
    assert merger.read == [1, 3]
    assert pairs.provenance.tolist() == [[0, 0], [1, 2]]


@examples(40)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["q", "Q ", " p"]), st.sampled_from(["s", "t"]),
            st.one_of(st.none(), st.floats(-1, 2)),
            st.lists(st.sampled_from(["a", "A", "ß", "SS", " "]), max_size=3),
            st.sampled_from([None, "x", 3, -1, "3"]),
        ),
        min_size=1, max_size=20,
    )
)  # fmt: skip
def test_item_110_merging_as_the_plain_way(rows: list[tuple[Any, ...]]) -> None:
    """Item 110: equal to a dictionary by pair."""
    import tempfile

    names = ("question", "source", "relevance", "keywords", "cluster")
    with tempfile.TemporaryDirectory() as folder:
        made = [dict(zip(names, row, strict=True)) for row in rows]
        pairs, _ = merge(write(Path(folder) / "a.jsonl", made))
    expected: dict[tuple[str, str], tuple[list[float], set[str], list[str]]] = {}
    for question, source, relevance, keywords, cluster in rows:
        found = expected.setdefault((question.strip(), source.strip()), ([], set(), []))
        found[0].append(1.0 if relevance is None else min(max(relevance, 0.0), 1.0))
        found[1].update(word.strip().casefold() for word in keywords if word.strip())
        found[2].extend([str(cluster)] if cluster not in (None, -1) else [])
    assert len(pairs) == len(expected)
    for pair, (key, (relevances, keywords, clusters)) in enumerate(expected.items()):
        assert key == (pairs.questions[pairs.question[pair]], pairs.sources[pairs.source[pair]])
        assert pairs.relevance[pair] == np.float32(max(relevances))
        assert words(pairs, pair) == keywords
        number = int(pairs.cluster[pair])
        assert (pairs.cluster_names[number] if number >= 0 else None) == next(iter(clusters), None)


BAD = [
    ({"question": "  "}, "empty_question", "the question is empty"),
    ({"source": ""}, "empty_source", "the source is empty"),
    ({"source": None}, "missing_source", "there is no source"),
    ({"question": 3}, "not_a_string", "the question is int"),
    ({"relevance": "high"}, "bad_relevance", "'high' is no number"),
    ({"relevance": True}, "bad_relevance", "True is no number"),
    ({"keywords": {"a": 1}}, "bad_keywords", "are no list of strings"),
    ({"keywords": "[a, b]"}, "bad_keywords", "are no list of strings"),
    ({"keywords": ["a", 1]}, "bad_keywords", "are no list of strings"),
    ({"keywords": "[{[]: 1}]"}, "bad_keywords", "are no list of strings"),
    ({"cluster": 1.5}, "bad_cluster", "1.5 is no text and no integer"),
]


@pytest.mark.parametrize(("change", "reason", "detail"), BAD)
def test_item_110_bad_rows_have_line_and_reason(
    tmp_path: Path, change: Row, reason: str, detail: str
) -> None:
    """Item 110: the first stops the build with file and line, or all go to the list."""
    good = {"question": "q", "source": "s"}
    path = write(tmp_path / "a.jsonl", [good, {**good, **change}])
    with pytest.raises(RecordError, match=detail) as caught:
        merge(path)
    assert caught.value.where == "a.jsonl:2"
    assert caught.value.code == f"E_{reason.upper()}"
    pairs, merger = merge(path, skip=True)
    assert len(pairs) == 1
    assert [(bad["line"], bad["reason"]) for bad in merger.rejects] == [(2, reason)]


def test_csv_lines_count_with_line_ends_in_cells(tmp_path: Path) -> None:
    """The line at which the bad row begins, as an editor counts."""
    text = 'question,source\n"a\nb",s\n\nq,\n"x\ny\nz",\n'
    (tmp_path / "a.csv").write_text(text, newline="")
    _, merger = merge(tmp_path / "a.csv", skip=True)
    assert [bad["line"] for bad in merger.rejects] == [5, 6]
    assert (merger.read, merger.blank_lines) == ([3], 1)


def test_broken_rows_of_each_format(tmp_path: Path) -> None:
    """Too many cells, broken JSON, bytes that are not UTF-8."""
    (tmp_path / "a.csv").write_bytes(b"question,source\nq,s,more\n\xff,s\nq,s\n")
    (tmp_path / "b.jsonl").write_bytes(b'{"question": \n[1]\n{"question":"q","source":"t"}\n')
    pairs, merger = merge(tmp_path / "a.csv", tmp_path / "b.jsonl", skip=True)
    names = ("record", "input", "line", "reason")
    assert [tuple(bad[name] for name in names) for bad in merger.rejects] == [
        (0, 0, 2, "bad_row"), (1, 0, 3, "invalid_utf8"),
        (3, 1, 1, "bad_json"), (4, 1, 2, "bad_json"),
    ]  # fmt: skip
    assert pairs.sources == ["s", "t"]
    assert merger.read == [3, 3]
    with pytest.raises(InputError, match="more than 3 rows"):
        merge(tmp_path / "a.csv", tmp_path / "b.jsonl", skip=True, max_rejects=3)


@pytest.mark.parametrize(
    ("header", "columns", "problem"),
    [
        ("question,query,source", "", "'question' and 'query' could both be the question"),
        ("q,source", "", "no column question or .* for the question, only q, source"),
        ("q,source", "question=p", "there is no column p for the question"),
        ("q,q,source", "question=q", "could both be the question"),
        ("question,source", "topic=x", "does not say which column is what"),
        ("question,source", "cluster=c", "there is no column c for the cluster"),
    ],
)
def test_item_110_columns_that_cannot_be_told(
    tmp_path: Path, header: str, columns: str, problem: str
) -> None:
    """Item 110: two candidates, none, or a wrong name: refused with the remedy."""
    (tmp_path / "a.csv").write_text(f"{header}\n")
    with pytest.raises(DataprepError, match=problem) as caught:
        merge(tmp_path / "a.csv", columns=columns)
    assert "--columns" in str(caught.value)


def test_chosen_columns_and_aliases_do_not_quarrel(tmp_path: Path) -> None:
    """A column that was named as one thing is not taken for another by its name."""
    rows = [{"topic": "q", "text": "s", "cluster_id": 4, "query": "x"}]
    path = write(tmp_path / "a.jsonl", rows)
    pairs, _ = merge(path, columns="question=topic,source=text")
    assert (pairs.questions, pairs.sources, pairs.cluster_names) == (["q"], ["s"], ["4"])


def test_names_of_clusters_in_order() -> None:
    """As numbers, as long as Python makes numbers of them."""
    assert ordered_labels(["10", "-3", "9"]) == ["-3", "9", "10"]
    assert ordered_labels(["9" * 5000, "10"]) == ["10", "9" * 5000]


def test_item_111_keywords_match_whatever_their_case(tmp_path: Path) -> None:
    """Item 111: one number for all spellings, lists as JSON, Python or Arrow have them."""
    rows = [
        {"question": "a", "source": "s", "keywords": "Straße| LAW"},
        {"question": "b", "source": "s", "keywords": '["STRASSE", "law", ""]'},
        {"question": "c", "source": "s", "keywords": "['Law', 'law ']"},
    ]
    pairs, _ = merge(write(tmp_path / "a.csv", rows), separator="|")
    assert pairs.keywords == ["strasse", "law"]
    assert [words(pairs, n) for n in range(3)] == [{"strasse", "law"}, {"strasse", "law"}, {"law"}]


def test_item_114_given_splits_are_checked(tmp_path: Path) -> None:
    """Item 114: a question in two splits, or in none, is named."""
    rows = [
        {"question": "who", "source": "s", "split": "train"},
        {"question": "why", "source": "s", "split": "val"},
        {"question": "who", "source": "t", "split": "train"},
    ]
    names, split = given_splits(merge(write(tmp_path / "a.csv", rows))[0])
    assert [names[n] for n in split.tolist()] == ["train", "val"]
    changes = [
        ({"split": "val"}, "'who' is in train and in val"),
        ({"question": "when", "split": ""}, "'when' is in no split"),
        ({"question": "when", "split": "Val"}, "names a split 'Val'"),
    ]
    for change, problem in changes:
        torn, _ = merge(write(tmp_path / "b.csv", [*rows[:2], {**rows[2], **change}]))
        with pytest.raises(DataprepError, match=problem):
            given_splits(torn)


def test_damaged_pages_and_other_encodings(tmp_path: Path) -> None:
    """What is wrong with the file is said of the file, and not of the disk."""
    rows = [{"question": f"q{n * 7919}", "source": f"s{n * 104729}"} for n in range(2000)]
    path = write(tmp_path / "a.parquet", rows)
    data = bytearray(path.read_bytes())
    data[200:4000] = b"\xa5" * 3800
    path.write_bytes(data)
    with pytest.raises(InputError, match="not a readable Parquet file") as caught:
        merge(path)
    assert caught.value.code == "E_PARQUET"
    (tmp_path / "a.csv").write_bytes("fråga,source\nq,s\n".encode("latin-1"))
    with pytest.raises(InputError, match="names of the columns are not UTF-8"):
        merge(tmp_path / "a.csv")


def test_inputs_that_cannot_be_read(tmp_path: Path) -> None:
    """Missing, of another kind, named twice, empty, damaged: each says what to do."""
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no")
    (tmp_path / "a.csv").write_text("question,source\n")
    (tmp_path / "b.csv").write_text('question,source\nq,"s\n')
    (tmp_path / "a.csv.gz").write_bytes(b"no")
    cases = [
        ("none.csv", "no such file"), ("a.txt", "is not read"), ("a.parquet", "Parquet"),
        ("a.csv", "none of the 0 rows"), ("b.csv", "not readable as CSV"), ("a.csv.gz", "gzip"),
    ]  # fmt: skip
    for name, problem in cases:
        with pytest.raises(InputError, match=problem):
            merge(tmp_path / name)
    with pytest.raises(DataprepError, match="named twice"):
        merge(tmp_path / "a.csv", tmp_path / "a.csv")
