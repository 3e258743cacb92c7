"""Functions that turn reports and estimates of builds into text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from .output import one_line

if TYPE_CHECKING:
    from dataprep.formats.manifest.arrays import ArrayManifest
    from dataprep.formats.manifest.tokens import Manifest
    from dataprep.pipeline.report import BuildReport

__all__ = [
    "array_lines",
    "build_lines",
    "bytes_text",
    "count_text",
    "duration_text",
    "estimate_lines",
    "profile_lines",
    "speed_text",
    "token_counts",
    "token_lines",
]

EXAMPLE = 120  # characters, about one line of a terminal

_DTYPES = {"<u2": "uint16", "<u4": "uint32"}


def bytes_text(count: float) -> str:
    """Return a number of bytes as text, in powers of 1,000.

    >>> bytes_text(999), bytes_text(1_500_000)
    ('999 B', '1.5 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration_text(seconds: float) -> str:
    """Return a number of seconds as text.

    >>> duration_text(0.25), duration_text(75), duration_text(7_300)
    ('0.2 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def count_text(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> count_text(1, "record"), count_text(2_000, "record")
    ('1 record', '2,000 records')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def build_lines(report: BuildReport[Any], content: Sequence[str], speed: str = "") -> list[str]:
    """Return the lines that summarize a build.

    The lines `content` describe the dataset, and the phrase `speed` follows the duration.
    """
    if report.reused:
        return [
            f"{report.path} already holds this build ({report.recipe_id[:12]}): nothing to do "
            f"(bytes not checked: dataprep verify {report.path}).",
        ]
    lines = [f"{report.path}: built in {duration_text(report.seconds)}{speed}", *content]
    if report.resumed_units:
        units = count_text(report.units, "unit")
        lines.append(f"  resumed    {report.resumed_units} of {units} were there")
    lines += [f"  note       {one_line(note)}" for note in report.notes]
    if report.example:
        lines.append(f"  example    {one_line(report.example[:EXAMPLE])}")
    return [*lines, f"Check it: dataprep verify {report.path}"]


def array_lines(manifest: ArrayManifest) -> list[str]:
    """Return the lines about the splits and arrays of a dataset, and about its rejected records."""
    sizes = {entry.name: entry.bytes for entry in manifest.files}
    lines = [f"  {name:10} {split.rows:>12,} rows" for name, split in manifest.splits.items()]
    for name, entry in manifest.arrays.items():
        shape = " x ".join(f"{size:,}" for size in (entry.rows, *entry.row))
        size = bytes_text(sum(sizes[shard.file] for shard in entry.shards))
        lines.append(f"  {name:26} {entry.dtype:9} {shape:>18}  {size}")
    if rejected := manifest.records.rejected:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in rejected.items())
        records = count_text(sum(rejected.values()), "record")
        lines.append(f"  rejected   {records} in rejects.jsonl: {reasons}")
    return lines


def profile_lines(report: BuildReport[Any]) -> list[str]:
    """Return lines with the time line of a build, its phases, and the stages in the phase `units`.

    If the build has no units, the phases are left out. If it was reused, there are no lines.
    """
    from dataprep.pipeline.progress import MOMENTS, STAGES

    profile = report.profile
    total = sum(profile.stages.values())
    stages = [
        f"    {name:9}{profile.stages[name]:8.3f} s {profile.stages[name] / total:5.1%}  {what}"
        for name, what in STAGES.items()
        if name in profile.stages
    ]
    if report.reused:
        return []
    moments = sorted(profile.timeline.items(), key=itemgetter(1))
    line = [f"  {seconds:7.3f} s  {MOMENTS[moment]}" for moment, seconds in moments]
    line = ["when, from the start of the process", *line]
    if not report.units:
        return [*line, "where the time went", *stages]
    workers = count_text(report.workers, "worker")
    return [
        *line,
        "where the time went",
        f"  prepare    {profile.prepare:8.3f} s  inputs, tokenizer, plan",
        f"  units      {profile.units:8.3f} s  {workers}, {total:.3f} s with their start:",
        *stages,
        f"  commit     {profile.commit:8.3f} s  shards, index, disk",
    ]


def speed_text(report: BuildReport[Manifest]) -> str:
    """Return a phrase with the speed of a token build, or "" if the build was small or resumed.

    The phrase is also "" if the size of the text is unknown.
    """
    text = _text_bytes(report.manifest)
    if text is None or text < 1_000_000 or report.resumed_units:
        return ""
    speed = text / max(report.seconds, 1e-9) / 1e6
    return f", {speed:.1f} MB of text per second, {count_text(report.workers, 'worker')}"


def _text_bytes(manifest: Manifest) -> int | None:
    """Return the number of bytes of text in all splits, or None if it is unknown for a split."""
    sizes = [split.text_bytes for split in manifest.splits.values()]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def token_lines(manifest: Manifest) -> list[str]:
    """Return the lines about the splits, tokenizer and rejected records of a token dataset."""
    tokens = sum(split.tokens for split in manifest.splits.values())
    text = _text_bytes(manifest)
    each = "" if text is None else f", {text / max(tokens, 1):.2f} bytes of text each"
    dtype = _DTYPES.get(manifest.tokens.dtype, manifest.tokens.dtype)
    tokenizer = manifest.tokenizer
    lines = [
        *(
            f"  {name:10} {split.documents:>12,} documents  {split.tokens:>15,} tokens"
            for name, split in manifest.splits.items()
        ),
        f"  tokens     {dtype}{each}",
        f"  tokenizer  {manifest.tokens.vocab_size:,} ids, by {tokenizer.engine}"
        f" ({one_line(tokenizer.engine_reason)})",
    ]
    if found := sum(tokenizer.special_text_found.values()):
        spelled = count_text(found, "special token")
        lines.append(f"  special    {spelled} spelled in the text, {_treatment(manifest)}")
    if rejected := manifest.records.rejected:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in rejected.items())
        records = count_text(sum(rejected.values()), "record")
        lines.append(f"  rejected   {records} in rejects.jsonl: {reasons}")
    return lines


def _treatment(manifest: Manifest) -> str:
    literal = manifest.options["special_text"] == "literal"
    return "kept as text" if literal else "read as tokens"


def token_counts(found: Mapping[str, Any]) -> list[str]:
    """Return the lines of an estimate that describe documents, tokens and the tokenizer."""
    return [
        f"  documents  about {found['documents']:,.0f}",
        f"  tokens     about {found['tokens']:,.0f}, {found['bytes_per_token']:.2f} bytes each",
        f"  tokenizer  {found['tokenizer']}, by {found['engine']} ({found['engine_reason']})",
    ]


def estimate_lines(found: Mapping[str, Any], counts: Sequence[str]) -> list[str]:
    """Return the lines that describe an estimate.

    `found` is `Estimate.as_dict()` with the key `fits` added. The lines `counts` describe the
    records.
    """
    return [
        f"  inputs     {found['inputs']:,}, {bytes_text(found['input_bytes'])}",
        *counts,
        f"  output     about {bytes_text(found['output_bytes'])}",
        f"  disk       {bytes_text(found['peak_disk_bytes'])} at most needed, "
        f"{bytes_text(found['free_bytes'])} free{'' if found['fits'] else ': NOT ENOUGH'}",
        *([f"  time       about {duration_text(found['seconds'])}"] if "seconds" in found else []),
        *(f"  note       {one_line(note)}" for note in found.get("notes", ())),
        f"Nothing was built{': run it without --dry-run' if found['fits'] else ''}.",
    ]
