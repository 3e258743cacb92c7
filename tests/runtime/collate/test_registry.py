"""The registry of collators, item by item of the checklist."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models

from dataprep.formats.errors import UsageError
from dataprep.runtime.collate import fallback as collate_default
from dataprep.runtime.collate.audio import Audio
from dataprep.runtime.collate.builtin import TEXT_TASKS
from dataprep.runtime.collate.fallback import Default
from dataprep.runtime.collate.images import Normalize, Vision, VisionText
from dataprep.runtime.collate.masked_lm import MaskedLM
from dataprep.runtime.collate.registry import CollatorRegistry
from dataprep.runtime.collate.schema import FieldSchema, OutputSchema
from dataprep.runtime.collate.text import CausalLM, Classification, Seq2Seq
from dataprep.runtime.collate.tokenizer_ids import continuations, token_ids
from dataprep.runtime.errors import SampleError
from dataprep.runtime.external.map_dataset import Collated, collated_order
from dataprep.runtime.loader.serve import serve

WORDS = {
    "[PAD]": 7,
    "[CLS]": 1,
    "[MASK]": 2,
    "un": 3,
    "##able": 4,
    "able": 5,
    "[SEP]": 6,
    "un##": 0,
}


@dataclass
class Task:
    """What the registry looks at of a task."""

    modality: str | None = "text"
    task_type: str | None = None
    preprocessing_config: dict[str, Any] = field(default_factory=dict)
    output_schema: Any = None


class Foreign:
    """A tokenizer in the way of transformers."""

    pad_token_id = 7
    mask_token_id = 2
    eos_token_id = 6
    padding_side = "left"
    all_special_ids = (1, 2, 6, 7)

    def get_vocab(self) -> dict[str, int]:
        return WORDS


@pytest.fixture
def mine() -> CollatorRegistry:
    return CollatorRegistry()


@pytest.fixture(autouse=True)
def _told_nothing() -> Iterator[None]:
    collate_default._REPORTED.clear()
    yield


class TestRegistering:
    """Names."""

    def test_decorator_with_name_modality_and_description(self, mine: CollatorRegistry) -> None:
        """Item 3: what is decorated stays what it is, and is found with all that was said."""

        @mine.register("graph", modality="graph", description="nodes and edges")
        def make(task_spec: Any = None) -> Any:
            """Something else."""
            return list

        assert make() is list
        assert mine.get_collator("graph") is list
        (info,) = mine.list_collators("graph")
        assert (info.name, info.modality, info.description) == ("graph", "graph", "nodes and edges")

    def test_listing_reset_and_isolation(self, mine: CollatorRegistry) -> None:
        """Item 4: instances share nothing; the shared one is one, and can be reset."""
        shared = CollatorRegistry.get_instance()
        before = [info.name for info in shared.list_collators()]
        assert {"text", "vision", "waveform", "vision_text", "default", *TEXT_TASKS} == set(before)
        mine.register("x")(lambda: list)
        copied = mine.copy()
        mine.unregister("x")
        assert "x" in copied and "x" not in mine and "x" not in shared
        shared.register("y", description="shared")(lambda: list)
        assert "y" in CollatorRegistry.get_instance()
        shared.reset()
        assert [info.name for info in shared.list_collators()] == before
        assert len(CollatorRegistry(builtin=False)) == 0

    def test_a_taken_name_is_refused(self, mine: CollatorRegistry) -> None:
        """Item 5: unless overwriting is said."""
        with pytest.raises(UsageError, match=r"'text': is registered already .*overwrite=True"):
            mine.register("text")(lambda: list)
        mine.register("text", overwrite=True)(lambda: list)
        assert mine.get_collator("text") is list

    def test_a_name_beats_the_modality_and_the_task_is_passed_on(
        self, mine: CollatorRegistry
    ) -> None:
        """Item 6: the maker of the named collator sees the task, and the tokenizer."""
        seen = []

        @mine.register("named", modality="vision")
        def make(task_spec: Any, tokenizer: Any, size: int) -> Any:
            seen.append((task_spec, tokenizer, size))
            return list

        task = Task()
        assert mine.get_collator("named", task_spec=task, tokenizer="t", size=3) is list
        assert seen == [(task, "t", 3)]
        vision = mine.get_collator("vision", task_spec=Task("text", None, {"normalize": "mnist"}))
        assert vision == Vision(normalize="mnist")

    def test_one_of_several_is_chosen_by_rule(self, mine: CollatorRegistry) -> None:
        """Item 7: highest precedence, then first registered; whatever came in between."""
        makers: dict[str, Any] = {name: type(name, (list,), {}) for name in "abcd"}
        for name, precedence in (("a", 0), ("b", 1), ("c", 1), ("d", 0)):
            mine.register(name, modality="m", precedence=precedence)(lambda n=name: makers[n])
        assert mine.get_collator(modality="m") is makers["b"]
        assert [info.name for info in mine.list_collators("m")] == ["b", "c", "a", "d"]
        mine.unregister("b")
        assert mine.get_collator(modality="m") is makers["c"]
        mine.register("later", modality="vision")(lambda: list)
        assert isinstance(mine.get_collator(modality="vision"), Vision)  # the first

    @pytest.mark.parametrize("error", [ValueError, TypeError, KeyError, ImportError])
    def test_errors_of_makers_surface(self, mine: CollatorRegistry, error: Any) -> None:
        """Item 8: as they are, and never as another collator."""

        @mine.register("broken", modality="broken")
        def make() -> Any:
            raise error("no codec")

        for ask in ({"modality": "broken"}, {"collator_name": "broken"}):
            with pytest.raises(error, match="no codec"):
                mine.get_collator(**ask)
        mine.register("nothing")(lambda: None)
        with pytest.raises(UsageError, match="gave a NoneType, not a collate function"):
            mine.get_collator("nothing")

    def test_text_without_a_tokenizer(self, mine: CollatorRegistry) -> None:
        """Item 9: says so, and that a pad id alone will do."""
        with pytest.raises(UsageError, match=r"needs a tokenizer.*the option pad_id is enough"):
            mine.get_collator(task_spec=Task())
        assert mine.get_collator(task_spec=Task(), pad_id=3) == CausalLM(pad_id=3)

    def test_neither_task_nor_name(self, mine: CollatorRegistry) -> None:
        """Item 10: an error that lists the names."""
        for task in (None, Task(modality=None)):
            with pytest.raises(UsageError, match=r"neither a name, nor .* text, vision, waveform"):
                mine.get_collator(task_spec=task)
        with pytest.raises(UsageError, match=r"there is no collator 'txt'. There are: text,"):
            mine.get_collator("txt")

    def test_an_unsupported_modality_is_reported(self, mine: CollatorRegistry) -> None:
        """Item 11: the fallback warns when it is chosen, and says what it stacked when it works."""
        with pytest.warns(UserWarning, match="no collator is registered for the modality 'graph'"):
            collate = mine.get_collator(task_spec=Task("graph"))
        samples = [{"x": [1, 2], "name": "a"}, {"x": [3, 4], "name": "b"}]
        with pytest.warns(UserWarning, match="stacked the fields x, and left as lists: name; name"):
            batch = collate(samples)
        assert batch["x"].tolist() == [[1, 2], [3, 4]]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            collate(samples)  # once
        with pytest.warns(UserWarning), pytest.raises(UsageError, match="pad_id: no such option"):
            mine.get_collator(modality="graph", pad_id=3)


class TestDefault:
    """Samples of which nothing is known."""

    def test_shapes_of_samples(self) -> None:
        """Item 11: dicts, tuples and tensors come out as what they were."""
        collate = Default(report=False)
        pairs = collate([(torch.ones(2), 1), (torch.zeros(2), 0)])
        assert [value.tolist() for value in pairs] == [[[1, 1], [0, 0]], [1, 0]]
        assert collate([torch.ones(2), torch.zeros(2)]).tolist() == [[1, 1], [0, 0]]
        assert collate([1, 2]).tolist() == [1, 2]

    @pytest.mark.parametrize(
        ("samples", "message"),
        [
            ([torch.ones(2), torch.ones(3)], r"row 1 .*has the shape \[3\], row 0 \[2\]"),
            ([(1, 2), (1,)], "row 1 .*has 1 values, not 2"),
            ([{"a": 1}, {"a": "x"}], "row 1 .*'a': is a str, others are numbers"),
        ],
    )
    def test_what_cannot_be_stacked(self, samples: list[Any], message: str) -> None:
        """Nothing is padded behind one's back."""
        with pytest.raises(SampleError, match=message):
            Default(report=False)(samples)


class TestBuiltIn:
    """What tasks get."""

    @pytest.mark.parametrize(
        ("task_type", "kind"),
        [
            ("lm", CausalLM), ("causal_lm", CausalLM), (None, CausalLM), ("mlm", MaskedLM),
            ("masked_lm", MaskedLM), ("classification", Classification), ("seq2seq", Seq2Seq),
        ],
    )  # fmt: skip
    def test_by_task_type(self, mine: CollatorRegistry, task_type: str, kind: Any) -> None:
        """Item 16: masked language models are reachable, as are all tasks of text."""
        made = mine.get_collator(task_spec=Task(task_type=task_type), tokenizer=Foreign())
        assert isinstance(made, kind)
        assert (made.pad_id, made.padding_side) == (7, "left")
        with pytest.raises(UsageError, match="no collator is known for the task_type 'chess'"):
            mine.get_collator(task_spec=Task(task_type="chess"), tokenizer=Foreign())

    def test_masked_lm_options(self, mine: CollatorRegistry) -> None:
        """Item 16: ids by the tokenizer, the probability by the call, words by the vocabulary."""
        made = mine.get_collator(
            "masked_lm", tokenizer=Foreign(), probability=0.3, seed=4, whole_words=True
        )
        assert made == MaskedLM(
            mask_id=2, vocab_size=8, special_ids=(1, 2, 6, 7), pad_id=7, padding_side="left",
            probability=0.3, seed=4, whole_words=True, continuations=(4,),
        )  # fmt: skip

    def test_tokenizers_of_every_kind(self) -> None:
        """Item 12: what a tokenizer says of padding is what is done."""
        ours = token_ids(Foreign())
        assert (ours.pad_id, ours.mask_id, ours.vocab_size, ours.padding_side) == (7, 2, 8, "left")
        other = Tokenizer(models.WordPiece(WORDS, unk_token="un"))
        other.add_special_tokens(["[CLS]", "[SEP]"])
        assert token_ids(other).special_ids == (1, 2, 6, 7)
        assert token_ids(other).padding_side is None
        other.enable_padding(direction="left", pad_id=5, pad_token="able")
        assert (token_ids(other).pad_id, token_ids(other).padding_side) == (5, "left")
        assert continuations(other) == (4,)
        byte_level = Tokenizer(models.BPE({"Ġa": 0, "b": 1, "Ġc": 2, "###": 3}, []))
        assert continuations(byte_level) == (1, 3)
        with pytest.raises(UsageError, match="does not say where words begin"):
            continuations(Tokenizer(models.BPE({"a": 0}, [])))
        with pytest.raises(UsageError, match=r"tokenizer: a str has no get_vocab\(\)"):
            token_ids("gpt2")

    def test_a_tokenizer_that_pads(self, mine: CollatorRegistry) -> None:
        """Item 12: its own method is used on request, and asked for where it has none."""

        class Pads(Foreign):
            def pad(self, fields: Any, **options: Any) -> Any:
                raise NotImplementedError

        tokenizer = Pads()
        made: Any = mine.get_collator("causal_lm", tokenizer=tokenizer, tokenizer_pads=True)
        assert made.tokenizer is tokenizer
        assert mine.get_collator("causal_lm", tokenizer=tokenizer) == CausalLM(
            pad_id=7, padding_side="left"
        )
        with pytest.raises(UsageError, match="tokenizer: has no method pad"):
            mine.get_collator("causal_lm", tokenizer=Foreign(), tokenizer_pads=True)

    def test_the_task_s_configuration(self, mine: CollatorRegistry) -> None:
        """Items 18, 47: options of the call beat the task's, which beat the tokenizer's."""
        config = {"padding_side": "right", "max_length": 5, "image_size": 224}
        task = Task("text", "lm", config, {"input_ids": "int32"})
        made = mine.get_collator(task_spec=task, tokenizer=Foreign(), max_length=6)
        schema = OutputSchema({"input_ids": FieldSchema(dtype="int32")})
        assert made == CausalLM(pad_id=7, max_length=6, schema=schema)
        seen = Task("vision", None, {"mean": [0.5], "std": [0.25]})
        own = Normalize(mean=(0.5,), std=(0.25,))
        assert mine.get_collator(task_spec=seen) == Vision(normalize=own)
        assert mine.get_collator(task_spec=seen, normalize=False) == Vision(normalize=None)
        assert mine.get_collator("vision", normalize="cifar10") == Vision(normalize="cifar10")
        with pytest.raises(UsageError, match="mean and std are given together"):
            mine.get_collator("vision", mean=[0.5])

    def test_options_reach_the_maker(self, mine: CollatorRegistry) -> None:
        """Item 47: one that it does not take is an error, not ignored."""
        assert mine.get_collator("causal_lm", pad_id=1, shift=True) == CausalLM(
            pad_id=1, shift=True
        )
        with pytest.raises(UsageError, match=r"no such option: shfit\. It takes pad_id, "):
            mine.get_collator("causal_lm", pad_id=1, shfit=True)
        with pytest.raises(UsageError, match="MaskedLM: lacks mask_id, vocab_size"):
            mine.get_collator("masked_lm", pad_id=1)
        mine.register("few")(lambda size=1: list)
        with pytest.raises(UsageError, match=r"'few'.* unexpected keyword argument 'n'.*: size"):
            mine.get_collator("few", n=2)

    def test_image_and_text_are_selectable(self, mine: CollatorRegistry) -> None:
        """Item 46: by name, and as a modality."""
        expected = VisionText(vision=Vision(normalize="mnist"), text=CausalLM(pad_id=7))
        for ask in ({"collator_name": "vision_text"}, {"task_spec": Task("multimodal")}):
            made = mine.get_collator(pad_id=7, vision={"normalize": "mnist"}, **ask)
            assert made == expected

    def test_the_audio_example_of_the_guide(self, mine: CollatorRegistry) -> None:
        """Item 45: a maker without a tokenizer argument, chosen by modality, with its options."""

        @mine.register("audio", modality="audio", description="Audio collator with spectrogram")
        def create_audio_collator(
            task_spec: Any = None, sample_rate: int = 16000, n_fft: int = 512
        ) -> Any:
            class AudioCollator:
                rate = sample_rate

                def __call__(self, batch: list[Any]) -> dict[str, torch.Tensor]:
                    waves = torch.stack([item["waveform"] for item in batch])
                    window = torch.hann_window(n_fft)
                    found = torch.stft(waves, n_fft, window=window, return_complex=True)
                    labels = torch.tensor([item["label"] for item in batch])
                    return {"spectrograms": found.abs(), "labels": labels}

            return AudioCollator()

        task = Task("audio", "classification")
        collate: Any = mine.get_collator(task_spec=task, tokenizer=Foreign(), sample_rate=22050)
        assert collate.rate == 22050
        tones = [
            {"waveform": torch.sin(torch.arange(2048) * math.tau / 16), "label": i} for i in (0, 1)
        ]
        data = Collated(tones, collate)
        order, definition = collated_order(data, seed=0)
        (batch,) = serve(data, 2, order=order, definition=definition)
        assert batch["spectrograms"].shape == (2, 257, 17)
        assert int(batch["spectrograms"][0, :, 8].argmax()) == 512 // 16
        assert isinstance(CollatorRegistry().get_collator(task_spec=task), Audio)


def test_any_function_will_do_for_a_loader() -> None:
    """Item 48: a collate function of one's own, with and without workers."""
    data = Collated(np.arange(8), _halve)
    for workers in (0, 1):
        order, definition = collated_order(data, seed=0, shuffle=False)
        loader = serve(data, 4, order=order, definition=definition, num_workers=workers)
        assert [batch["half"].tolist() for batch in loader] == [[0, 0.5, 1, 1.5], [2, 2.5, 3, 3.5]]


def _halve(samples: list[Any]) -> dict[str, torch.Tensor]:
    return {"half": torch.tensor(samples) / 2}
