"""Built-in collators of a registry, made from a task, a tokenizer and options.

Options of the call override the task's `preprocessing_config`, and both override the settings of
the tokenizer. Entries of `preprocessing_config` that are not options of the collator are ignored,
because they are for other steps of the preprocessing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from typing import Any, Protocol

from dataprep.formats.errors import UsageError

from ..errors import SampleError
from .audio import Audio
from .fallback import Default
from .images import Normalize, Vision, VisionText
from .masked_lm import MaskedLM
from .padded import Padded
from .preference import GRPO, KTO, Preference
from .schema import OutputSchema
from .text import CausalLM, Classification, Seq2Seq
from .tokenizer_ids import continuations, token_ids

__all__ = ["TEXT_TASKS", "LabelsFrom", "register_builtin"]

TEXT_TASKS: dict[str, tuple[type[Padded], dict[str, Any]]] = {
    "causal_lm": (CausalLM, {}),
    "masked_lm": (MaskedLM, {}),
    "seq2seq": (Seq2Seq, {}),
    "classification": (Classification, {}),
    "token_classification": (Classification, {"kind": "token"}),
    "multi_label": (Classification, {"kind": "multi"}),
    "regression": (Classification, {"kind": "regression"}),
    "preference": (Preference, {}),
    "kto": (KTO, {}),
    "grpo": (GRPO, {}),
    "padded": (Padded, {}),
}
"""Collators of text by task type, with their fixed options; also registered by these names."""

_LABEL_NAMES = ("labels", "label", "label_ids", "fine_label")
"""Field names under which collators find labels without being told."""

_OTHER_NAMES = {
    "lm": "causal_lm", "clm": "causal_lm", "language_modeling": "causal_lm",
    "mlm": "masked_lm", "text_classification": "classification", "cls": "classification",
    "sequence_classification": "classification", "ner": "token_classification",
    "translation": "seq2seq", "summarization": "seq2seq", "dpo": "preference",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class LabelsFrom:
    """Collate function that renames `field` to `labels` in all samples, then calls `collate`.

    Raises `SampleError` if a sample has both fields.
    """

    collate: Any
    field: str

    def __call__(self, samples: Sequence[Any]) -> Any:
        """Return the batch that `collate` makes from the samples with the renamed field."""
        return self.collate([self._renamed(row, sample) for row, sample in enumerate(samples)])

    def _renamed(self, row: int, sample: Any) -> Any:
        if not isinstance(sample, Mapping) or self.field not in sample:
            return sample
        if "labels" in sample:
            raise SampleError(
                "has labels, too", row=row, field=self.field,
                remedy="Leave one of them out, or name the other as target_field of the task.",
            )  # fmt: skip
        return {"labels" if name == self.field else name: v for name, v in sample.items()}


class _Registers(Protocol):
    def register(
        self,
        name: str,
        *,
        modality: str | None = ...,
        description: str = ...,
        precedence: int = ...,
    ) -> Any: ...


def register_builtin(registry: _Registers) -> None:
    """Register the built-in collators in `registry`.

    For equal modality and precedence, the collator that was registered first is preferred, so a
    built-in collator comes before a user's. The exception is ``waveform``: its precedence is -1, so
    a user's collator for audio comes first.
    """
    by_type, waveform = "by the task's task_type", "sound, padded, with lengths"
    registry.register("text", modality="text", description=by_type)(_with_target_field(_text))
    registry.register("vision", modality="vision", description="images, normalised")(
        _with_target_field(_vision)
    )
    registry.register("waveform", modality="audio", description=waveform, precedence=-1)(
        _with_target_field(partial(_plain, Audio))
    )
    registry.register(
        "vision_text", modality="multimodal", description="an image and a text in each sample"
    )(_with_target_field(_vision_text))
    registry.register("default", description="stacks, pads nothing")(partial(_plain, Default))
    for name, (kind, options) in TEXT_TASKS.items():
        about = (kind.__doc__ or "").partition("\n")[0]
        registry.register(name, description=about)(
            _with_target_field(partial(_of_text, kind, options))
        )


def _with_target_field(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrapper of `make` whose collators use the task's `target_field` as labels.

    The wrapper calls `make`. The collator that it returns renames the field to `labels` in the
    samples. Nothing is renamed if the task has no `target_field`, if collators know the field under
    its own name (such as ``label``), or if the collator makes labels by masking tokens.
    """

    @wraps(make)
    def made(task_spec: Any = None, **options: Any) -> Any:
        collate, field = make(task_spec=task_spec, **options), getattr(task_spec, "target_field", 0)
        if not isinstance(field, str) or field in (*_LABEL_NAMES, getattr(collate, "tag", None)):
            return collate
        return collate if hasattr(collate, "at_epoch") else LabelsFrom(collate, field)

    return made


def _text(task_spec: Any = None, tokenizer: Any = None, **options: Any) -> Padded:
    """Return the collator of a text task; raise `UsageError` for an unknown task type."""
    task_type = getattr(task_spec, "task_type", None) or "causal_lm"
    name = _OTHER_NAMES.get(task_type, task_type)
    if name not in TEXT_TASKS:
        raise UsageError(
            f"no collator is known for the task_type {task_type!r}", where="task_spec",
            remedy=f"Use one of {', '.join(TEXT_TASKS)}, or name a collator.",
        )  # fmt: skip
    kind, own = TEXT_TASKS[name]
    return _of_text(kind, own, task_spec=task_spec, tokenizer=tokenizer, **options)


def _of_text(
    kind: type[Padded],
    own: Mapping[str, Any],
    task_spec: Any = None,
    tokenizer: Any = None,
    tokenizer_pads: bool = False,
    **options: Any,
) -> Padded:
    """Return a collator of the class `kind`, with the fixed options `own`.

    If `tokenizer_pads` is True, the fields that the model reads are padded by the tokenizer's
    method `pad`. Raise `UsageError` if neither a tokenizer nor the option `pad_id` is given.
    """
    if tokenizer is None and "pad_id" not in {**_configured(kind, task_spec), **options}:
        raise UsageError(
            "a text task needs a tokenizer, to know what to pad with", where="tokenizer",
            code="E_NO_TOKENIZER", remedy="Pass tokenizer=...; for samples that have ids, the "
            "option pad_id is enough (of a data module: collator_options={'pad_id': ...}).",
        )  # fmt: skip
    known = dict(own)
    if tokenizer is not None:
        known["tokenizer"] = tokenizer if tokenizer_pads else None
        known |= _from_tokenizer(kind, tokenizer, whole_words=bool(options.get("whole_words")))
    chosen = {**known, **_configured(kind, task_spec), **options}
    made: Padded = _built(kind, task_spec, chosen)
    return made


def _from_tokenizer(kind: type[Padded], tokenizer: Any, *, whole_words: bool) -> dict[str, Any]:
    """Return the options of `kind` that depend on the tokenizer."""
    ids = token_ids(tokenizer)
    found: dict[str, Any] = {"pad_id": ids.pad_id}
    if ids.padding_side is not None:
        found["padding_side"] = ids.padding_side
    if kind is MaskedLM:
        if ids.mask_id is not None:
            found["mask_id"] = ids.mask_id
        found |= {"special_ids": ids.special_ids, "vocab_size": ids.vocab_size}
        if whole_words:
            found["continuations"] = continuations(tokenizer)
    if kind is Seq2Seq:  # T5 and models like it start with the pad token
        start = getattr(tokenizer, "decoder_start_token_id", None)
        found["decoder_start_id"] = ids.pad_id if start is None else start
    return found


def _vision(task_spec: Any = None, tokenizer: Any = None, **options: Any) -> Vision:
    """Return a collator of images.

    The options `mean` and `std` together define a `Normalize`. The option `normalize` may also be
    True, which means ``"imagenet"``, or False, which means None. Raise `UsageError` if the three
    options contradict each other.
    """
    chosen = {**_configured(Vision, task_spec, "mean", "std"), **options}
    mean, std = chosen.pop("mean", None), chosen.pop("std", None)
    wanted = chosen.get("normalize", True)
    if (mean is None) != (std is None):
        raise UsageError("mean and std are given together or not at all", where="normalize")
    if mean is not None and not isinstance(options.get("normalize", True), bool):
        raise UsageError(
            f"is {options['normalize']!r}, and mean and std are given", where="normalize",
            remedy="Give one or the other.",
        )  # fmt: skip
    if wanted is False:
        chosen["normalize"] = None
    elif mean is not None:
        chosen["normalize"] = Normalize(mean=mean, std=std)
    elif wanted is True:
        chosen["normalize"] = "imagenet"
    return Vision(**_checked(Vision, chosen, task_spec))


def _vision_text(
    task_spec: Any = None,
    tokenizer: Any = None,
    vision: Mapping[str, Any] | None = None,
    **options: Any,
) -> VisionText:
    """Return a collator of images with texts.

    The mapping `vision` holds the options for images. All other options are for the text.
    """
    text = _of_text(CausalLM, {}, task_spec=task_spec, tokenizer=tokenizer, **options)
    return VisionText(vision=_vision(task_spec=task_spec, **(vision or {})), text=text)


def _plain(kind: type[Any], task_spec: Any = None, tokenizer: Any = None, **options: Any) -> Any:
    """Return a collator of the class `kind`, which does not use the tokenizer."""
    return _built(kind, task_spec, options)


def _built(kind: type[Any], task_spec: Any, options: dict[str, Any]) -> Any:
    """Return a collator of the class `kind`; `options` override the task's configuration."""
    return kind(**_checked(kind, {**_configured(kind, task_spec), **options}, task_spec))


def _configured(kind: type[Any], task_spec: Any, *more: str) -> dict[str, Any]:
    """Return the entries of the task's `preprocessing_config` that are options of the class `kind`.

    An entry is an option if `kind` has a field of the same name, or if its name is in `more`.
    """
    config = getattr(task_spec, "preprocessing_config", None) or {}
    return {k: v for k, v in config.items() if k in (*_fields(kind), *more)}


def _checked(kind: type[Any], options: dict[str, Any], task_spec: Any) -> dict[str, Any]:
    """Return `options`, with the output schema of the task added if they contain no schema.

    Raise `UsageError` if an option is not a field of the class `kind`, or if a required field is
    missing.
    """
    unknown = sorted(set(options) - set(_fields(kind)))
    required = [f.name for f in dataclasses.fields(kind) if f.init and _needed(f)]
    missing = [name for name in required if name not in options]
    if unknown or missing:
        what = f"no such option: {', '.join(unknown)}" if unknown else f"lacks {', '.join(missing)}"
        remedy = f"It takes {', '.join(_fields(kind))}."
        if not unknown:
            named = ", ".join(f"'{name}': ..." for name in missing)
            remedy = (
                "Pass a tokenizer=... that has them, or each as an option (of a data module: "
                f"collator_options={{{named}}}). {remedy}"
            )
        raise UsageError(what, where=kind.__name__, code="E_OPTIONS", remedy=remedy)
    schema = options.get("schema", getattr(task_spec, "output_schema", None))
    if isinstance(schema, Mapping):
        schema = OutputSchema.from_dict(schema)
    return {**options, "schema": schema} if isinstance(schema, OutputSchema) else options


def _needed(field: dataclasses.Field[Any]) -> bool:
    """Return whether a field has no default."""
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _fields(kind: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind) if field.init]
