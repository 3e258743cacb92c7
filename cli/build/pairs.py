"""The command `dataprep build --kind pairs`, with an option for each field of `PairOptions`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dataprep.pipeline.pairs.options import PairOptions

from ..command import EPILOG_START, output_options
from ..options import OptionHelp, options_of
from ..summary import array_lines, duration_text
from . import running as building
from .kinds import KindCommand
from .shared import RUNNING, shared

if TYPE_CHECKING:
    from dataprep.formats.manifest.arrays import ArrayManifest
    from dataprep.pipeline.report import BuildReport

__all__ = ["OPTIONS", "command"]

_INPUT, _ROWS, _VECTORS = "Input", "Rows", "Vectors"
_CLUSTERS, _NEGATIVES, _SERVED = "Clusters", "Negatives", "Splits and curriculum"

OPTIONS: dict[str, OptionHelp] = {
    "input": OptionHelp(
        section=_INPUT, metavar="PATH",
        help="CSV, TSV, JSONL or Parquet with a question and a source text in each row. "
        "Repeatable.",
    ),
    "split_input": OptionHelp(
        section=_INPUT, metavar="NAME=PATH",
        help="In the place of --input: all questions of the file are in the split NAME. "
        "Repeatable.",
    ),
    **shared("out"),
    "columns": OptionHelp(
        section=_ROWS, metavar="WHAT=NAME,...", default="by their usual names",
        help="Which column is what: question, source, relevance, keywords, cluster, split, answer.",
    ),
    "keyword_separator": OptionHelp(
        section=_ROWS, metavar="TEXT", help="Between the keywords of a cell that is a text."
    ),
    "keywords": OptionHelp(section=_ROWS, help="ignore: build as if there were none."),
    "on_error": OptionHelp(
        section=_ROWS,
        help="A bad row stops the build, or is written to rejects.jsonl and counted.",
    ),
    "max_rejects": OptionHelp(
        section=_ROWS, metavar="N", default="no limit",
        help="With --on-error skip: stop when more than N rows are bad.",
    ),
    **shared("excerpts", section=_ROWS),
    "inspection": OptionHelp(
        section=_ROWS, help="Also write pairs.jsonl: texts, keywords, cluster, split of each pair."
    ),
    "question_embs": OptionHelp(
        section=_VECTORS, metavar="FILE", default="from the encoder",
        help=".npy with a row for each distinct question in order of appearance, or Parquet with a "
        "column of texts and one of vectors.",
    ),
    "source_embs": OptionHelp(
        section=_VECTORS, metavar="FILE", default="from the encoder",
        help="The same for the source texts.",
    ),
    "keyword_embs": OptionHelp(
        section=_VECTORS, metavar="FILE", default="from the encoder",
        help="The same for the keywords.",
    ),
    "embedding_columns": OptionHelp(
        section=_VECTORS, metavar="TEXT,VECTOR", help="The two columns of Parquet files of vectors."
    ),
    "encoder": OptionHelp(
        section=_VECTORS, metavar="MODEL", help="Name or folder of a sentence-transformers model."
    ),
    "batch_size": OptionHelp(
        section=_VECTORS, metavar="N", help="Texts that the model is given at once."
    ),
    "dim": OptionHelp(
        section=_VECTORS, metavar="N", help="Numbers in a vector.", default="as the questions have"
    ),
    "dtype": OptionHelp(section=_VECTORS, help="How vectors are stored."),
    "normalise": OptionHelp(section=_VECTORS, help="Store vectors divided by their length."),
    "clusters": OptionHelp(
        section=_CLUSTERS,
        help="Where the cluster of a pair comes from. auto: its column, else its keywords if "
        "--keyword-clusters is given, else k-means if --n-clusters is, else none.",
    ),
    "keyword_clusters": OptionHelp(
        section=_CLUSTERS, metavar="FILE", help="JSON: the cluster of each keyword."
    ),
    "n_clusters": OptionHelp(
        section=_CLUSTERS, metavar="N", help="Of k-means.", default="by the number of vectors"
    ),
    "cluster_fallback": OptionHelp(
        section=_CLUSTERS, help="What pairs get that have no cluster by any of these ways."
    ),
    "n_neg": OptionHelp(section=_NEGATIVES, metavar="N", help="Hard negatives of each pair."),
    "tier_proportions": OptionHelp(
        section=_NEGATIVES, metavar="A,B,C,D",
        help="Shares of: same cluster, nearest clusters, most similar outside, random outside.",
    ),
    "near_clusters": OptionHelp(
        section=_NEGATIVES, metavar="N", help="How many nearest clusters there are."
    ),
    "search": OptionHelp(
        section=_NEGATIVES,
        help="exact compares every source. auto: exact up to a million sources, then faiss if it "
        "is installed.",
    ),
    "split": OptionHelp(
        section=_SERVED, metavar="NAME=SHARE,...", default="train=0.8,val=0.1,test=0.1",
        help="Ratios that add up to 1, or `column`. All pairs of a question are in one split.",
    ),
    "curriculum": OptionHelp(
        section=_SERVED, metavar="NAME|JSON",
        help="fixed, linear, cosine, or a JSON object: shares of the steering variants by epoch.",
    ),
    "seed": OptionHelp(
        section=RUNNING, metavar="N", help="Of splits, negatives, k-means and random fallbacks."
    ),
    "workers": OptionHelp(
        section=RUNNING, metavar="N", default="one per core",
        help="Threads of the search. The output is the same for any number.",
    ),
    **shared("overwrite"),
}  # fmt: skip


@output_options
@click.option("--dry-run", is_flag=True, help="Read the tables, print an estimate and stop.")
@click.option(
    "--profile", is_flag=True, help="Print a time line, and where the time went, step by step."
)
def _command(*, as_json: bool, quiet: bool, dry_run: bool, profile: bool, **values: Any) -> None:
    """Turn questions and the texts that answer them into a dataset of embedding pairs.

    Merges and cleans the rows, embeds the texts or reads their vectors, computes clusters, finds
    hard negatives in four tiers, and splits by question. After an interruption, the same command
    reuses the vectors and negatives that are finished.
    """
    options = PairOptions(**values)
    if dry_run:
        from dataprep.pipeline.build import estimate_pairs

        found = estimate_pairs(options).as_dict()
        counts = [
            f"  pairs      {found['rows']:,} of {found['questions']:,} questions and "
            f"{found['sources']:,} sources; {found['keywords']:,} keywords",
            f"  vectors    of {found['dim']:,} numbers; {found['encoded']:,} texts to encode",
            f"  negatives  by {found['search']} search",
        ]
        building.show_estimate(found, options.out, counts=counts, as_json=as_json, quiet=quiet)
        return
    building.run(
        options, "pairs", as_json=as_json, quiet=quiet,
        profile=profile, counts="steps", content=_content_lines,
    )  # fmt: skip


def _content_lines(report: BuildReport[ArrayManifest]) -> list[str]:
    steps = (f"{name} {duration_text(s)}" for name, s in report.content["steps"].items())
    lines = [*array_lines(report.manifest), f"  steps      {', '.join(steps)}"]
    if report.content["resumed"]:
        lines.append(f"  resumed    {report.content['resumed']} arrays were there")
    return lines


command = click.command(
    "build",
    cls=KindCommand,
    kind="pairs",
    sections={name: entry.section for name, entry in OPTIONS.items()}
    | {"dry_run": RUNNING, "profile": RUNNING},
    epilog=f"""{EPILOG_START}
  dataprep build --kind pairs --input pairs.csv --encoder all-MiniLM-L6-v2 --out pairs
  dataprep build --kind pairs --input pairs.jsonl --question-embs q.npy --source-embs s.npy \\
      --n-clusters 50 --n-neg 12 --curriculum linear --out pairs
  dataprep build --kind pairs --split-input train=train.csv --split-input val=val.csv \\
      --encoder ./model --out pairs""",
)(_command)
command.params[:0] = options_of(PairOptions, OPTIONS)
