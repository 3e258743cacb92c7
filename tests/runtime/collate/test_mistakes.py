"""What collators make of samples that are not as they should be: the same in any order, or told."""

from __future__ import annotations

import warnings
from collections import UserDict
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import UsageError
from dataprep.runtime.collate import columns, ragged
from dataprep.runtime.collate.audio import Audio
from dataprep.runtime.collate.fallback import Default
from dataprep.runtime.collate.images import Normalize, Vision, VisionText
from dataprep.runtime.collate.masked_lm import MaskedLM
from dataprep.runtime.collate.padded import Padded
from dataprep.runtime.collate.preference import GRPO, KTO
from dataprep.runtime.collate.schema import FieldSchema, OutputSchema
from dataprep.runtime.collate.text import CausalLM, Classification, Seq2Seq
from dataprep.runtime.errors import SampleError
from dataprep.runtime.external.map_dataset import Collated
from dataprep.runtime.sample_numbers import PADDING
from dataprep.runtime.types import Collate
from tests.scenes.padded_rows import pad_rows
from tests.support import examples


def ids(*rows: list[int], **fields: list[Any]) -> list[dict[str, Any]]:
    names = list(fields)
    others = zip(*fields.values(), strict=True) if fields else [()] * len(rows)
    return [
        {"input_ids": row, **dict(zip(names, values, strict=True))}
        for row, values in zip(rows, others, strict=True)
    ]


@pytest.mark.parametrize("options", [{}, {"max_length": 4}])
def test_labels_of_their_own_lengths_are_not_masked_by_the_ids(options: Any) -> None:
    """Also where both happen to be equally wide, as they always are under max_length."""
    batch = Padded(**options)(ids([1, 2, 3], [1], labels=[[7], [7, 8, 9]]))
    more = [-100] * (batch["labels"].shape[1] - 3)
    assert batch["labels"].tolist() == [[7, -100, -100, *more], [7, 8, 9, *more]]


@pytest.mark.parametrize(
    ("collate", "name"), [(Padded(), "labels"), (Padded(), "more"), (Default(report=False), "more")]
)
def test_a_row_that_is_missing_is_told_in_any_order(collate: Collate, name: str) -> None:
    """The first sample does not decide alone what a column is."""
    samples = ids([1], [1], **{name: [[5], None]})
    for row, order in ((1, samples), (0, samples[::-1])):
        with pytest.raises(SampleError, match=f"row {row} .*'{name}': a NoneType is no row"):
            collate(order)


def test_an_empty_list_tells_nothing() -> None:
    """Texts stay texts where the first sample has none, and lists of rows lists."""
    tags: list[list[Any]] = [[], ["a", "b"]]
    assert Padded()(ids([1], [1], tags=tags))["tags"] == tags
    assert Padded()(ids([1], [1], tags=tags[::-1]))["tags"] == tags[::-1]
    ragged_rows: list[list[Any]] = [[], [[1, 2], [3]]]
    assert Padded()(ids([1], [1], rows=ragged_rows))["rows"] == ragged_rows
    assert Padded()(ids([1], [1], numbers=[[], [0.5]]))["numbers"].tolist() == [[0], [0.5]]


@pytest.mark.parametrize("side", ["left", "right"])
def test_scores_stand_beside_their_answers(side: Any) -> None:
    """Tokens are padded at either side, a group that is smaller at its end."""
    samples = [
        {"input_ids": [1], "responses": [[5, 6], [7]], "scores": [1.0, 2.0]},
        {"input_ids": [1], "responses": [[8]], "scores": [3.0]},
    ]
    batch = GRPO(padding_side=side)(samples)
    assert batch["scores"].tolist() == [[1, 2], [3, 0]]
    assert batch["responses_attention_mask"].sum(-1).tolist() == [[2, 1], [1, 0]]


@pytest.mark.parametrize("answers", [[[5, 6], [7, 8]], [[5], [6]]])
def test_groups_may_be_arrays(answers: list[list[int]]) -> None:
    """As preprocessing makes them, where all answers of a group are equally long."""
    scores = [1.0, 2.0]
    plain = GRPO()([{"input_ids": [1], "responses": answers, "scores": scores}])
    for kind in (np.array, torch.tensor):
        sample = {"input_ids": [1], "responses": kind(answers), "scores": kind(scores)}
        assert {k: v.tolist() for k, v in GRPO()([sample]).items()} == {
            k: v.tolist() for k, v in plain.items()
        }


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ([[5], [6], [7, "a"]], "response 2 a list is no row of numbers"),
        ([[5], [6], [0.5]], "response 2 is float64, not whole numbers"),
        ([[5], [6], [1] * 9], "response 2 has 9 elements, max_length is 8"),
    ],
)
def test_a_wrong_answer_is_named_with_its_sample(bad: list[Any], problem: str) -> None:
    """And not with its place among all answers of the batch, or in its group."""
    samples = Collated(
        [{"input_ids": [1], "responses": answers} for answers in ([[5], [6], [7]], bad)],
        GRPO(max_length=8, truncate="error"),
    )
    with pytest.raises(SampleError, match=f"sample 1, field 'responses': {problem}"):
        samples.batch([0, 1])


@pytest.mark.parametrize(
    "tag", [None, 2, "yes", [1], np.array([1]), np.array([1, 1]), float("nan")]
)
def test_tags_that_are_neither_true_nor_false(tag: Any) -> None:
    """Of whatever type."""
    with pytest.raises(SampleError, match=r"row 1 .*'tag': is .*, neither true nor false"):
        KTO()(ids([1], [2], tag=[1, tag]))
    assert KTO()(ids([1], [2], tag=[np.float32(1), torch.tensor(0)]))["tag"].tolist() == [
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("collate", "samples", "problem"),
    [
        (Classification(kind="regression"), ids([1], [1], label=[1, None]), "row 1 .* is None"),
        (Classification(kind="regression"), ids([1], label=["3"]), "row 0 .* is '3', not a number"),
        (Classification(kind="token"), ids([1], [1], labels=[[1], [0.5]]), "row 1 .* is float64"),
        (CausalLM(), ids([1], [1], labels=[[1], [0.5]]), "row 1 .*'labels': is float64, not whole"),
        (Padded(), [{1: 0, "a": 0}, {"b": 0}], "row 1 .*: lacks 1, 'a' and has 'b' more"),
        (Padded(), ids([1], h=[[1 << 63]]), "'h': holds 9223372036854775808, which int64 cannot"),
        (
            Padded(),
            ids([1], [1], h=[[1], np.array([1 << 63], np.uint64)]),
            "row 1 .*'h': holds 9223372036854775808, which int64 cannot",
        ),
        (
            Audio(schema=OutputSchema.from_dict({"labels": "int8"})),
            [{"audio": [0.5], "labels": [300]}],
            "'labels': holds 300, which int8 cannot",
        ),
        (
            Audio(schema=OutputSchema.from_dict({"audio": "int16"})),
            [{"audio": [0.5]}],
            "'audio': holds float64, int16 is asked for",
        ),
        (
            MaskedLM(mask_id=1, vocab_size=9, whole_words=True),
            ids([2], [3], word_ids=[[0], None]),
            "row 1 .*'word_ids': are no numbers of words",
        ),
    ],
)  # fmt: skip
def test_values_that_do_not_fit_are_named(collate: Any, samples: Any, problem: str) -> None:
    """Neither wrapped around, cut off nor left to a traceback."""
    with pytest.raises(SampleError, match=problem):
        collate(samples)


def test_unsigned_and_signed_ids_go_together() -> None:
    """numpy's common type of the two is a fraction."""
    batch = Padded()([{"input_ids": np.array([1, 2], np.uint64)}, {"input_ids": [3]}])
    assert batch["input_ids"].tolist() == [[1, 2], [3, 0]]
    assert batch["input_ids"].dtype == torch.int64


def test_one_dict_is_not_a_list_of_samples() -> None:
    """A batch in columns, as Hugging Face datasets give by a slice."""
    with pytest.raises(UsageError, match="samples: are a mapping of input_ids, not a list"):
        Padded()({"input_ids": [[1], [2]]})  # type: ignore[arg-type]


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    """As `np.percentile` of lengths gives, made one."""
    collate = Padded(pad_id=np.int64(9), max_length=np.int32(2))  # type: ignore[arg-type]
    assert collate(ids([1]))["input_ids"].tolist() == [[1, 9]]


def test_rows_of_images_hold_no_padding_of_their_size() -> None:
    """What padding is copied from is one number, however much lies behind the first axis."""
    rows = [np.ones((n, 64, 64), np.uint8) for n in (1, 3)]
    ragged._constant.cache_clear()
    padded = pad_rows(rows, value=7)
    assert (padded[0, 1:] == 7).all() and padded.shape == (2, 3, 64, 64)
    assert ragged._constant.cache_info().currsize <= 1
    assert ragged._constant(7, np.dtype(np.int64), 256).nbytes == 2048


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: FieldSchema(dtype=np.int32), "dtype: must be one of bool, uint8"),  # type: ignore
        (lambda: FieldSchema(pad_value="0"), "pad_value: must be a number, got '0'"),  # type: ignore
        (lambda: FieldSchema(along=3), "along: must be the name of a field, got 3"),  # type: ignore
        (lambda: OutputSchema.from_dict(["labels"]), "schema: must be a mapping"),  # type: ignore
        (lambda: OutputSchema(["labels"]), "schema: must be a mapping of fields"),  # type: ignore
        (lambda: Normalize(mean="a", std=1), "mean: is 'a'"),  # type: ignore
        (lambda: Normalize(mean=None, std=None), "mean: is None"),  # type: ignore
        (
            lambda: Vision(schema=OutputSchema.from_dict({"pixel_values": "uint8"})),
            "schema: pixel_values are fractions",
        ),
        (lambda: Seq2Seq(decoder_start_id=None), "decoder_start_id: must be a whole number"),  # type: ignore
        (lambda: VisionText()(ids([1])), "vision: samples have no field .*, there is input_ids"),
        (lambda: Vision(scale=0), "scale: must be a number other than 0, got 0"),
        (lambda: Vision(scale="2"), "scale: must be a number other than 0, got '2'"),  # type: ignore
        (lambda: Vision(channels="3"), "channels: must be a whole number, got '3'"),  # type: ignore
        (lambda: MaskedLM(mask_id=None, vocab_size=9), "mask_id: must be a whole number"),  # type: ignore
        (lambda: MaskedLM(mask_id=1, vocab_size=9.5), "vocab_size: must be a whole number"),  # type: ignore
        (lambda: MaskedLM(mask_id=1, vocab_size=9, seed=0.5), "seed: must be a whole"),  # type: ignore
        (lambda: MaskedLM(mask_id=1, vocab_size=9, probability="a"), "probability: must be"),  # type: ignore
        (lambda: MaskedLM(mask_id=1, vocab_size=9, continuations=(9,)), "continuations: .9."),
    ],
)  # fmt: skip
def test_options_of_a_wrong_type(make: Any, problem: str) -> None:
    """Told when the collator is made, by the name of the option."""
    with pytest.raises(UsageError, match=problem):
        make()


def test_a_mask_of_sound_goes_along_with_it() -> None:
    """It was padded by itself, to another width than the sound."""
    samples = [
        {"input_values": [0.1, 0.2, 0.3], "attention_mask": [1, 0, 1], "lengths": 3},
        {"input_values": [0.1], "attention_mask": [1], "lengths": 1},
    ]
    batch = Audio(max_length=2, multiple=4)(samples)
    assert batch["input_values"].shape == batch["attention_mask"].shape == (2, 4)
    assert batch["attention_mask"].tolist() == [[1, 0, 0, 0], [1, 0, 0, 0]]
    assert batch["lengths"].tolist() == [2, 1]
    with pytest.raises(SampleError, match=r"row 0 .*'attention_mask': has 1 numbers for 2 tokens"):
        Audio()([{"input_values": [0.1, 0.2], "attention_mask": [1]}])


def test_sound_as_hugging_face_datasets_have_it() -> None:
    """A dict with the array and its rate, which must be one."""
    sounds = [{"array": np.ones(n), "sampling_rate": 16_000} for n in (1, 2)]
    batch = Audio()([{"audio": sound} for sound in sounds])
    assert batch["audio"].tolist() == [[1, 0], [1, 1]]
    sounds[1]["sampling_rate"] = 8_000
    with pytest.raises(SampleError, match=r"row 1 .*'audio': has the sampling rate 8000, row 0 16"):
        Audio()([{"audio": sound} for sound in sounds])


def test_pictures_with_a_palette_are_refused() -> None:
    """Their pixels are no brightness; a picture of one axis less was taken for a grey one."""

    class Picture:
        """As one of PIL is: converted by numpy, of a mode."""

        mode = "P"

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return np.zeros((2, 2), np.uint8)

    with pytest.raises(SampleError, match=r"row 0 .* mode 'P', .* image.convert\('RGB'\)"):
        Vision(normalize="mnist")([{"image": Picture(), "label": 1}])


@pytest.mark.parametrize("kind", [dict, UserDict])
def test_filling_rows_leave_the_samples_alone(kind: Any) -> None:
    """A collate function may give views of the data, or a mapping that is no dict."""
    data = torch.tensor([[3], [4]])

    def collate(samples: list[torch.Tensor]) -> Any:
        return kind(labels=data[: len(samples)])

    batch = Collated(data, collate, sample_mask=True).batch([0, PADDING])
    assert batch["labels"].tolist() == [[3], [-100]]
    assert batch["sample_mask"].tolist() == [True, False]
    assert data.tolist() == [[3], [4]]


_WHOLE = st.integers(-3, 3) | st.sampled_from([255, 1 << 31, -(1 << 63), 1 << 63, 1 << 70])


@examples(200)
@given(
    values=st.lists(_WHOLE, min_size=1, max_size=4)
    | st.lists(st.booleans(), min_size=1, max_size=4)
    | st.lists(st.floats(), min_size=1, max_size=4)
    | st.lists(_WHOLE | st.booleans() | st.floats() | st.none(), min_size=1, max_size=4),
    dtype=st.sampled_from(
        [None, "int64", "uint8", "int32", "bool", "float32", "float64", "float16"]
    ),
)
def test_single_numbers_equal_the_reference(values: list[Any], dtype: str | None) -> None:
    """All at once as one by one: the same numbers of the same dtype, or the same error."""
    schema = OutputSchema.from_dict({} if dtype is None else {"x": dtype})

    def found() -> Any:
        with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
            try:
                array = columns.scalars("x", values, schema)
            except SampleError as error:
                return str(error)
        return None if array is None else (array.dtype, array.tobytes())

    at_once = found()
    with mock.patch.object(columns, "_TYPES", {}):
        assert found() == at_once


@pytest.mark.parametrize("name", ["pad_id", "label_pad_id"])
@pytest.mark.parametrize("value", [1.5, True, "0", None])
def test_what_fills_rows_is_a_whole_number(name: str, value: Any) -> None:
    """A fraction would be cut, and True is a mistake."""
    with pytest.raises(UsageError, match=f"{name}: must be a whole number, got"):
        Padded(**{name: value})
