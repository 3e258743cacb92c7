"""Collators of tokens against plain Python, item by item of the checklist."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dataprep.formats.errors import UsageError
from dataprep.runtime.collate.audio import Audio
from dataprep.runtime.collate.compatibility import (
    create_causal_lm_collate,
    create_collate_fn,
    create_seq2seq_collate,
)
from dataprep.runtime.collate.fallback import Default
from dataprep.runtime.collate.images import Vision, VisionText
from dataprep.runtime.collate.masked_lm import MaskedLM
from dataprep.runtime.collate.padded import Padded
from dataprep.runtime.collate.preference import GRPO, KTO, Preference
from dataprep.runtime.collate.schema import FieldSchema, OutputSchema
from dataprep.runtime.collate.text import CausalLM, Classification, Seq2Seq
from dataprep.runtime.errors import SampleError
from dataprep.runtime.padding import Side
from tests.support import examples

EVERY = [
    Padded(), CausalLM(), CausalLM(shift=True), Classification(), Seq2Seq(decoder_start_id=1),
    MaskedLM(mask_id=9, vocab_size=10, continuations=(3,)), Preference(), KTO(), GRPO(), Vision(),
    Audio(), VisionText(), Default(report=False), create_collate_fn(max_length=4),
    create_causal_lm_collate(), create_seq2seq_collate(),
]  # fmt: skip
IDS = st.lists(st.integers(1, 99), min_size=1, max_size=9)


def ids(*rows: list[Any], **fields: list[Any]) -> list[dict[str, Any]]:
    """Samples of `input_ids`, and of other fields a value for each."""
    return [
        {"input_ids": row, **{name: values[i] for name, values in fields.items()}}
        for i, row in enumerate(rows)
    ]


def lists(batch: dict[str, Any]) -> dict[str, Any]:
    return {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in batch.items()}


def reference_causal(
    samples: list[dict[str, Any]], side: Side, max_length: int | None, shift: bool, pad_id: int
) -> dict[str, Any]:
    """`CausalLM`, one token at a time."""
    rows = []
    for sample in samples:
        count = len(sample["input_ids"])
        mask = sample.get("attention_mask", [1] * count)
        labels = sample.get("labels", sample["input_ids"])
        tokens = list(zip(sample["input_ids"], mask, labels, strict=True))
        if max_length is not None:
            tokens = tokens[:max_length] if side == "right" else tokens[-max_length:]
        rows.append(tokens)
    width = max_length or max(map(len, rows))
    found: dict[str, Any] = {"input_ids": [], "attention_mask": [], "labels": []}
    for tokens in rows:
        out = []
        for place, (_, real, label) in enumerate(tokens):
            following = tokens[place + 1] if place + 1 < len(tokens) else (0, 0, -100)
            predicted = following[2] if following[1] else -100
            out.append((predicted if shift else label) if real else -100)
        fill = width - len(tokens)
        columns = ([t[0] for t in tokens], [t[1] for t in tokens], out)
        for name, values, pad in zip(found, columns, (pad_id, 0, -100), strict=True):
            filling = [pad] * fill
            found[name].append(filling + values if side == "left" else values + filling)
    return found


@examples(150)
@given(
    rows=st.lists(IDS, min_size=1, max_size=5),
    side=st.sampled_from(get_args(Side)),
    max_length=st.none() | st.integers(1, 10),
    shift=st.booleans(),
    masked=st.booleans(),
    labelled=st.booleans(),
    data=st.data(),
)
def test_causal_lm_equals_the_reference(
    rows: list[list[int]],
    side: Side,
    max_length: int | None,
    shift: bool,
    masked: bool,
    labelled: bool,
    data: st.DataObject,
) -> None:
    """Items 12, 71, 75: sides, lengths, masks and labels of their own, and the one shift."""
    samples = ids(*rows)
    for sample in samples:
        count = len(sample["input_ids"])
        if masked:
            sample["attention_mask"] = data.draw(
                st.lists(st.integers(0, 1), min_size=count, max_size=count)
            )
        if labelled:
            one = st.sampled_from([-100, 7])
            sample["labels"] = data.draw(st.lists(one, min_size=count, max_size=count))
    collate = CausalLM(pad_id=3, padding_side=side, max_length=max_length, shift=shift)
    expected = reference_causal(samples, side, max_length, shift, 3)
    assert lists(collate(samples)) == expected
    assert lists(replace(collate, tensors=False)(samples)) == expected


class TestPadding:
    """What stands where there is no token."""

    def test_padding_never_contributes_to_labels(self) -> None:
        """Item 13: labels are -100 in padding, also where the pad id is a token of the text."""
        batch = CausalLM(pad_id=5)(ids([5, 6, 5], [5]))
        assert batch["labels"].tolist() == [[5, 6, 5], [5, -100, -100]]

    def test_the_mask_comes_from_lengths(self) -> None:
        """Item 15: a token equal to the pad id is a token."""
        batch = Padded(pad_id=5)(ids([5, 5, 5], [5]))
        assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]

    def test_options_of_document_002(self) -> None:
        """Item 69: pad ids, side, length, schema, and lists in place of tensors."""
        schema = {"input_ids": "int32", "labels": {"dtype": "int16", "pad_value": -1}}
        collate = create_collate_fn(
            pad_token_id=9, label_pad_token_id=-7, padding_side="left", max_length=3,
            output_schema=schema,
        )  # fmt: skip
        batch = collate(ids([1, 2, 3, 4], [5], labels=[[1, 2, 3, 4], [5]]))
        assert batch["input_ids"].tolist() == [[2, 3, 4], [9, 9, 5]]
        assert batch["labels"].tolist() == [[2, 3, 4], [-1, -1, 5]]
        assert (batch["input_ids"].dtype, batch["labels"].dtype) == (torch.int32, torch.int16)
        without = create_collate_fn(label_pad_token_id=-7)(ids([1, 2], [5], labels=[[1, 2], [5]]))
        assert without["labels"].tolist() == [[1, 2], [5, -7]]
        as_lists = create_collate_fn(return_tensors=False)(ids([1, 2], [5]))
        assert as_lists == {"input_ids": [[1, 2], [5, 0]], "attention_mask": [[1, 1], [1, 0]]}

    def test_pad_to_longest_with_a_limit_and_a_multiple(self) -> None:
        """Item 70: `pad_to` tells a limit from a fixed length; widths are rounded up."""
        collate = Padded(max_length=6, pad_to="longest", multiple=4)
        assert collate(ids([1], [1, 2]))["input_ids"].shape == (2, 4)
        assert collate(ids([1] * 9, [1, 2]))["attention_mask"].sum(1).tolist() == [6, 2]

    def test_labels_follow_the_mask_under_every_prefix(self) -> None:
        """Item 71: chosen_labels are masked by chosen_attention_mask, as labels are."""
        sample = {
            "input_ids": [1, 2], "attention_mask": [0, 1], "labels": [1, 2],
            "chosen_input_ids": [3, 4, 5], "chosen_attention_mask": [1, 1, 0],
            "chosen_labels": [3, 4, 5], "loss_mask": [1, 1],
        }  # fmt: skip
        batch = lists(Padded()([sample]))
        assert batch["labels"] == [[-100, 2]]
        assert batch["chosen_labels"] == [[3, 4, -100]]

    def test_a_loss_mask_speaks_of_what_is_predicted(self) -> None:
        """A prompt is not trained on, but its last token predicts the first of the answer."""
        samples = ids([1, 2, 3, 4], loss_mask=[[0, 0, 1, 1]])
        assert CausalLM()(samples)["labels"].tolist() == [[-100, -100, 3, 4]]
        assert CausalLM(shift=True)(samples)["labels"].tolist() == [[-100, 3, 4, -100]]

    def test_every_dtype_and_pad_value_follows_the_schema(self) -> None:
        """Item 72: also of masks, extra fields and fields that go along with the ids."""
        schema = OutputSchema({
            "attention_mask": FieldSchema(dtype=torch.bool),
            "token_type_ids": FieldSchema(pad_value=3),
            "bbox": FieldSchema(dtype="float32", pad_value=-1, along="input_ids"),
            "weight": FieldSchema(dtype=torch.bfloat16),
            "chosen_input_ids": FieldSchema(dtype="int32"),
        })  # fmt: skip
        batch = Padded(schema=schema)(
            ids(
                [1, 2], [3], token_type_ids=[[0, 1], [1]], weight=[0.5, 2],
                bbox=[[[1, 2], [3, 4]], [[5, 6]]], chosen_input_ids=[[1], [2]],
            )
        )  # fmt: skip
        assert batch["attention_mask"].tolist() == [[True, True], [True, False]]
        assert batch["token_type_ids"].tolist() == [[0, 1], [1, 3]]
        assert batch["bbox"].tolist() == [[[1, 2], [3, 4]], [[5, 6], [-1, -1]]]
        assert batch["weight"].dtype == torch.bfloat16
        assert batch["chosen_input_ids"].dtype == torch.int32
        assert OutputSchema.from_dict(schema.to_dict()) == schema

    def test_a_pad_value_that_does_not_fit_is_refused(self) -> None:
        """Item 72: -100 is no uint8, and half is no whole number."""
        with pytest.raises(UsageError, match="'labels': the pad value -100 does not fit"):
            CausalLM(schema=OutputSchema({"labels": FieldSchema(dtype="uint8")}))(ids([1]))
        with pytest.raises(UsageError, match=r"the pad value 0\.5 does not fit"):
            Padded(schema=OutputSchema({"input_ids": FieldSchema(pad_value=0.5)}))(ids([1]))
        with pytest.raises(SampleError, match=r"row 1 .*'input_ids': holds 70000, which int16"):
            Padded(schema=OutputSchema.from_dict({"input_ids": "int16"}))(ids([1], [70000]))
        with pytest.raises(UsageError, match="dtype: must be one of"):
            FieldSchema(dtype="int12")

    def test_extra_fields(self) -> None:
        """Item 73: numbers, rows, text, objects and tensors without an axis."""
        batch = Padded()(
            ids(
                [1, 2], [3], id=["a", "b"], score=[torch.tensor(0.5), 1], n=[np.int16(3), 4],
                ok=[True, False], row=[[1.5], [2.5, 3.5]], meta=[{"x": 1}, None],
                tags=[["u"], []], nested=[[[1], [2, 3]], [[4]]], same=[np.arange(2), np.arange(2)],
            )
        )  # fmt: skip
        assert batch["id"] == ["a", "b"]
        assert batch["score"].tolist() == [0.5, 1.0]
        assert (batch["n"].tolist(), batch["n"].dtype) == ([3, 4], torch.int64)
        assert (batch["ok"].tolist(), batch["ok"].dtype) == ([True, False], torch.bool)
        assert batch["row"].tolist() == [[1.5, 0.0], [2.5, 3.5]]
        assert batch["meta"] == [{"x": 1}, None]
        assert batch["tags"] == [["u"], []]
        assert batch["nested"] == [[[1], [2, 3]], [[4]]]
        assert batch["same"].tolist() == [[0, 1], [0, 1]]

    @pytest.mark.parametrize(
        ("samples", "message"),
        [
            ([{"input_ids": [1]}, {"ids": [1]}], "row 1 .*lacks 'input_ids' and has 'ids' more"),
            (
                [*ids([1]), {"input_ids": [1], "x": 1}],
                "row 1 of the batch: has 'x' more than row 0",
            ),
            ([{"input_ids": [1], "x": 1}, *ids([1])], "row 1 .*: lacks 'x', which row 0 has"),
            ([*ids([1]), [1]], "row 1 of the batch: is a list, and row 0 a dict"),
            (ids([1], []), "row 1 .*'input_ids': has no tokens. Leave the sample out"),
            (ids([1], [0.5]), "row 1 .*'input_ids': is float64, not whole numbers"),
            (ids([1], 3), "row 1 .*'input_ids': a int is no row of numbers"),  # type: ignore
            (ids([1, 2], position_ids=[[0]]), "'position_ids': has 1 numbers for 2 tokens"),
            (ids([1, 2], attention_mask=[1]), "row 0 .*'attention_mask': has 1 for 2 tokens"),
            (ids([1], [2], score=[0.5, "x"]), "row 1 .*'score': is a str, others are numbers"),
        ],
    )
    def test_bad_samples_are_named(self, samples: list[Any], message: str) -> None:
        """Item 74: inconsistent keys, and everything else that cannot be a batch."""
        with pytest.raises(SampleError, match=message):
            Padded()(samples)

    def test_an_empty_batch_and_an_unknown_side(self) -> None:
        """Item 74: both are errors, where others gave {} and padded on the right."""
        with pytest.raises(UsageError, match="samples: there are no samples"):
            Padded()([])
        with pytest.raises(UsageError, match="padding_side: must be one of right, left"):
            Padded(padding_side="active")  # type: ignore[arg-type]


class Boxes:
    """A tokenizer with a way of its own to pad: by 77, and boxes, too."""

    model_input_names = ("input_ids", "boxes")

    def pad(self, fields: dict[str, Any], **options: Any) -> dict[str, Any]:
        assert (options["padding"], options["return_tensors"]) == ("max_length", "np")
        width, left = options["max_length"], options["padding_side"] == "left"
        found: dict[str, Any] = {"attention_mask": [], **{name: [] for name in fields}}
        for row in fields["input_ids"]:
            fill = [0] * (width - len(row))
            found["attention_mask"].append(fill + [1] * len(row) if left else [1] * len(row) + fill)
        for name, rows in fields.items():
            for row in rows:
                one: Any = 77 if name == "input_ids" else [-1]
                fill = [one] * (width - len(row))
                found[name].append(fill + row if left else row + fill)
        return {name: np.array(rows) for name, rows in found.items()}


class TestText:
    """Tasks on text."""

    @pytest.mark.parametrize("side", get_args(Side))
    def test_a_tokenizer_may_pad(self, side: Side) -> None:
        """Item 12: tokenizer.pad is used if it is given; cutting and labels stay ours."""
        samples = ids([1, 2, 3, 4], [5], boxes=[[[1], [2], [3], [4]], [[5]]])
        collate = CausalLM(tokenizer=Boxes(), padding_side=side, max_length=3)
        right = side == "right"
        assert lists(collate(samples)) == {
            "input_ids": [[1, 2, 3] if right else [2, 3, 4], [5, 77, 77] if right else [77, 77, 5]],
            "attention_mask": [[1, 1, 1], [1, 0, 0] if right else [0, 0, 1]],
            "boxes": [
                [[1], [2], [3]] if right else [[2], [3], [4]],
                [[5], [-1], [-1]] if right else [[-1], [-1], [5]],
            ],
            "labels": [[1, 2, 3], [5, -100, -100]] if right else [[2, 3, 4], [-100, -100, 5]],
        }
        with pytest.raises(UsageError, match="tokenizer: has no method pad"):
            CausalLM(tokenizer=object())

    def test_labels_of_other_tasks_survive_the_text_collator(self) -> None:
        """Item 14: a class stays a class, and a target of other length keeps its length."""
        assert Padded()(ids([1, 2], [3], labels=[4, 5]))["labels"].tolist() == [4, 5]
        target = Padded()(ids([1], [2], labels=[[7, 8, 9], [6]]))["labels"]
        assert target.tolist() == [[7, 8, 9], [6, -100, -100]]
        assert target.dtype == torch.int64

    def test_causal_labels_are_the_inputs_unless_shifted(self) -> None:
        """Item 75: one convention, said by one argument, also with padding on the left."""
        samples = ids([1, 2, 3], [4])
        assert CausalLM()(samples)["labels"].tolist() == [[1, 2, 3], [4, -100, -100]]
        left = CausalLM(shift=True, padding_side="left")(samples)
        assert left["labels"].tolist() == [[2, 3, -100], [-100, -100, -100]]
        made = create_causal_lm_collate(shift=True)(samples)["labels"]
        assert made.tolist() == [[2, 3, -100], [-100, -100, -100]]
        bare = [torch.tensor([1, 2, 3]), torch.tensor([4])]
        assert lists(CausalLM()(bare)) == lists(CausalLM()(samples))

    @pytest.mark.parametrize("labels", [[[1], [2]], [1, 2]])
    def test_causal_labels_are_one_for_each_token(self, labels: list[Any]) -> None:
        """Item 75: labels that cannot be aligned are refused, with their row."""
        with pytest.raises(SampleError, match=r"row 0 .*'labels': has (1 numbers|1) for 2 tokens"):
            CausalLM()(ids([1, 2], [3], labels=labels))

    def test_classification(self) -> None:
        """Item 14: single, multi-label, regression and token labels, and none."""
        two = ([1, 2], [3])
        assert Classification()(ids(*two, label=[1, 0]))["labels"].tolist() == [1, 0]
        multi = Classification(kind="multi")(ids(*two, labels=[[1, 0, 1], [0, 0, 1]]))["labels"]
        assert (multi.tolist(), multi.dtype) == ([[1, 0, 1], [0, 0, 1]], torch.float32)
        floats = Classification(kind="regression")(ids(*two, label=[1, 0.5]))["labels"]
        assert (floats.tolist(), floats.dtype) == ([1, 0.5], torch.float32)
        token = Classification(kind="token")(ids(*two, labels=[[1, 0], [2]]))["labels"]
        assert token.tolist() == [[1, 0], [2, -100]]
        assert "labels" not in Classification()(ids(*two))

    @pytest.mark.parametrize(
        ("kind", "labels", "message"),
        [
            ("single", [1, [2]], "row 1 .*is not a label of kind 'single'"),
            ("single", [0.5, 1.5], "is 0.5, not the number of a class"),
            ("single", ["pos", "neg"], "is 'pos', not the number of a class"),
            ("multi", [[1, 0], [1]], r"row 1 .*has the shape \[1\], row 0 \[2\]"),
            ("token", [[1, 0], [2, 2]], "row 1 .*has 2 numbers for 1 tokens"),
        ],
    )
    def test_labels_of_another_kind(self, kind: Any, labels: list[Any], message: str) -> None:
        """Item 14: what the labels are is said, not guessed from the first batch."""
        with pytest.raises(SampleError, match=message):
            Classification(kind=kind)(ids([1, 2], [3], labels=labels))

    @pytest.mark.parametrize("side", get_args(Side))
    def test_seq2seq(self, side: Side) -> None:
        """Item 76: start token, own lengths, own masks, labels -100, on either side."""
        collate = Seq2Seq(
            decoder_start_id=1, pad_id=0, max_length=4, pad_to="longest", max_target_length=3,
            target_side=side, truncate="right",
        )  # fmt: skip
        batch = lists(collate(ids([5] * 6, [6], labels=[[7, 8], [9, 9, 9, 9]])))
        assert np.shape(batch["input_ids"]) == (2, 4)
        right = side == "right"
        assert batch["labels"] == [[7, 8, -100] if right else [-100, 7, 8], [9, 9, 9]]
        shown = [[1, 7, 0] if right else [0, 1, 7], [1, 9, 9]]
        assert batch["decoder_input_ids"] == shown
        assert batch["decoder_attention_mask"] == [[1, 1, 0] if right else [0, 1, 1], [1, 1, 1]]

    def test_seq2seq_with_a_decoder_of_its_own(self) -> None:
        """Item 76: ids and masks of the samples are used, and labels masked by them."""
        sample = {
            "input_ids": [5], "labels": [7, 8], "decoder_input_ids": [2, 7],
            "decoder_attention_mask": [1, 0],
        }  # fmt: skip
        batch = lists(Seq2Seq(decoder_start_id=1)([sample]))
        assert batch["decoder_input_ids"] == [[2, 7]]
        assert batch["labels"] == [[7, -100]]
        with pytest.raises(SampleError, match="has 1 numbers, its target has 2 labels"):
            Seq2Seq(decoder_start_id=1)([sample | {"decoder_input_ids": [2]}])
        with pytest.raises(UsageError, match="samples have no 'labels', there is 'input_ids'"):
            Seq2Seq(decoder_start_id=1)(ids([1]))

    def test_tokens_that_are_not_trained_on_are_not_shown_as_such(self) -> None:
        """Item 76: a label of -100 inside a target is the pad id for the decoder."""
        batch = create_seq2seq_collate(decoder_start_token_id=1)(ids([5], labels=[[7, -100, 8]]))
        assert batch["decoder_input_ids"].tolist() == [[1, 7, 0]]


class TestPreference:
    """Item 77: fields of DPO, KTO and GRPO survive."""

    def test_pairs(self) -> None:
        """Item 77: both answers with masks and labels, the prompt, and numbers of the pair."""
        pair = {
            "prompt_input_ids": [1], "chosen_input_ids": [1, 2, 3], "chosen_labels": [-100, 2, 3],
            "rejected_input_ids": [1, 4], "rejected_labels": [-100, 4], "margin": 0.5, "id": "p",
        }  # fmt: skip
        batch = lists(Preference(equal_widths=True)([pair, pair]))
        assert batch["rejected_input_ids"] == [[1, 4, 0]] * 2
        assert batch["rejected_attention_mask"] == [[1, 1, 0]] * 2
        assert batch["rejected_labels"] == [[-100, 4, -100]] * 2
        assert batch["prompt_attention_mask"] == [[1]] * 2
        assert (batch["margin"], batch["id"]) == ([0.5, 0.5], ["p", "p"])
        assert np.shape(lists(Preference()([pair]))["rejected_input_ids"]) == (1, 2)
        with pytest.raises(UsageError, match="samples have no 'rejected_input_ids'"):
            Preference()([{"chosen_input_ids": [1]}])

    def test_kto(self) -> None:
        """Item 77: the tag is a bool and the weight a fraction, also where both are whole."""
        batch = KTO()(ids([1, 2], [3], tag=[1, 0], weight=[1, 2]))
        assert (batch["tag"].tolist(), batch["tag"].dtype) == ([True, False], torch.bool)
        assert (batch["weight"].tolist(), batch["weight"].dtype) == ([1, 2], torch.float32)
        for tags in ([1, 2], ["good", "bad"]):
            with pytest.raises(SampleError, match=r"'tag': is .*neither true nor false"):
                KTO()(ids([1], [2], tag=tags))

    def test_grpo(self) -> None:
        """Item 77: groups of other sizes and answers of other lengths, each with its score."""
        samples = ids([1], [2, 3], responses=[[[5, 6], [7]], [[8]]], scores=[[1, 0], [0.5]])
        batch = GRPO()(samples)
        assert batch["responses"].tolist() == [[[5, 6], [7, 0]], [[8, 0], [0, 0]]]
        assert batch["responses_attention_mask"].tolist() == [[[1, 1], [1, 0]], [[1, 0], [0, 0]]]
        assert batch["scores"].tolist() == [[1, 0], [0.5, 0]]
        assert batch["scores"].dtype == torch.float32
        text = GRPO()(ids([1], responses=[["yes", "no"]], scores=[[1, 0]]))
        assert text["responses"] == [["yes", "no"]]
        for scores, message in (([1], "has 1 scores for 2"), (1, "has 1 for 2")):
            with pytest.raises(SampleError, match=f"'scores': {message} responses"):
                GRPO()(ids([1], responses=[[[5], [6]]], scores=[scores]))
        nothing: tuple[Any, Any] = (None, [])
        for none in nothing:
            with pytest.raises(
                SampleError, match=r"row 1 .*'responses': is .*, not a list of resp"
            ):
                GRPO()(ids([1], [2], responses=[[[5]], none]))
        with pytest.raises(SampleError, match=r"row 1 .*'responses': is not a list of rows of ids"):
            GRPO()(ids([1], [2], responses=[[[5]], ["text"]]))


@pytest.mark.parametrize("collate", EVERY, ids=lambda collate: type(collate).__name__)
def test_every_collator_can_be_pickled(collate: Any) -> None:
    """Item 78: equal after a round trip, as a spawned worker makes it."""
    assert pickle.loads(pickle.dumps(collate)) == collate


def test_batches_do_not_share_memory() -> None:
    """A batch stays what it was when the next one is made, and with it its samples."""
    rows = [np.arange(1, 2049), np.arange(1, 100)]
    collate = CausalLM()
    first = collate([{"input_ids": row} for row in rows])
    kept = {name: tensor.clone() for name, tensor in first.items()}
    second = collate([{"input_ids": row + 1} for row in rows])
    assert all(torch.equal(first[name], kept[name]) for name in kept)
    second["input_ids"].zero_()
    assert int(second["labels"].max()) == 2049
    assert rows[0][0] == 1


class TestAudio:
    """Sound of different lengths."""

    def test_waveforms(self) -> None:
        """Padded with a mask of time, lengths and labels; PCM becomes -1 .. 1."""
        pcm = np.array([16384, -32768], np.int16)
        batch = Audio(multiple=4)([{"input_values": pcm, "labels": [1, 2]},
                                   {"input_values": pcm[:1], "labels": [3]}])  # fmt: skip
        assert batch["input_values"].tolist() == [[0.5, -1, 0, 0], [0.5, 0, 0, 0]]
        assert batch["attention_mask"].tolist() == [[1, 1, 0, 0], [1, 0, 0, 0]]
        assert batch["lengths"].tolist() == [2, 1]
        assert batch["labels"].tolist() == [[1, 2], [3, -100]]

    @pytest.mark.parametrize("time_axis", [0, -1])
    def test_spectrograms(self, time_axis: int) -> None:
        """Either axis can be time; the other must agree."""
        sounds = [np.ones((3, 5), np.float32), np.ones((3, 2), np.float32)]
        if time_axis == 0:
            sounds = [sound.T for sound in sounds]
        batch = Audio(time_axis=time_axis)([{"input_features": sound} for sound in sounds])
        shape = (2, 3, 5) if time_axis == -1 else (2, 5, 3)
        assert batch["input_features"].shape == shape
        assert float(batch["input_features"].sum()) == 21
        assert batch["attention_mask"].sum(1).tolist() == [5, 2]
        with pytest.raises(SampleError, match=r"row 1 .*only the first axis may differ"):
            Audio()([{"audio": np.ones((2, 4))}, {"audio": np.ones((3, 4))}])
        with pytest.raises(SampleError, match=r"row 1 .*'audio': has the shape \[0\]"):
            Audio()([{"audio": np.ones(2)}, {"audio": []}])
        with pytest.raises(SampleError, match=r"row 1 .*no row of numbers"):
            Audio()([{"audio": np.ones(2)}, {"audio": np.float32(1)}])


def test_a_number_for_each_token_may_be_a_fraction() -> None:
    """Fields that go along with the ids are padded as they are; only ids must be whole."""
    schema = OutputSchema({"weights": FieldSchema(along="input_ids", pad_value=-1)})
    batch = Padded(schema=schema)(ids([1, 2, 3], [4], weights=[[0.5, 1.25, 0.0], [0.75]]))
    assert batch["weights"].tolist() == [[0.5, 1.25, 0.0], [0.75, -1, -1]]
    assert batch["weights"].dtype == torch.float32
