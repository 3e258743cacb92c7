"""A place in which builds are killed, and what must hold of it afterwards.

`Place.killed` and `Place.finished` are the promises: nothing, the old dataset or the whole new one
stands there after a kill; and the same command run again ends in the bytes of an undisturbed build,
with finished units taken over, and leaves nothing beside them.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from dataprep.formats.verify.verify import verify
from tests.faults.forked_builds import Ended, ForkedBuilds, Order
from tests.scenes.corpora import MESSY, STORIES, digests
from tests.support import REPOSITORY

__all__ = ["UNITS", "Place"]

UNITS = 4
_KEY_LENGTH = 16  # what is longer is a directory on its way out, of no use to anybody
_TOKENIZER = REPOSITORY / "data_fixtures/golden/v1/narrow/tokenizer.json"  # small: quick to load
_ARGUMENTS = (
    "build", "--input", str(STORIES), "--input", str(MESSY), "--tokenizer", str(_TOKENIZER),
    "--on-error", "skip", "--split", "train=0.8,val=0.2", "--json",
)  # fmt: skip


class Place:
    """A folder with an output directory; with `overwrite`, an older dataset is there to replace."""

    def __init__(self, builds: ForkedBuilds, root: Path, *, overwrite: bool = False) -> None:
        self.root = root
        self.out = root / "out"
        self._builds = builds
        self.overwrite = overwrite
        self._old = root.with_name(f"{root.name}-old")
        self._finished = root.with_name(f"{root.name}-finished")
        self.before: Mapping[str, str] | None = None
        if overwrite:
            old = self.order(out=self._old, overwrite=False, seed=1)
            assert builds.run(old).code == 0
            assert verify(self._old).findings == ()
            self.before = digests(self._old)
        self.reset()
        ended = builds.run(self.order())
        assert ended.code == 0, (ended.code, ended.talk)
        assert ended.report()["units"] == UNITS
        assert verify(self.out).findings == ()
        self.changes = ended.changes
        self.new = digests(self.out)
        assert self.new != self.before
        self._units = self._whole_units()

    def order(
        self,
        *,
        at: int | None = None,
        after: bool = False,
        workers: int = 1,
        inside: bool = True,
        no_exchange: bool = False,
        overwrite: bool | None = None,
        out: Path | None = None,
        seed: int = 0,
    ) -> Order:
        """An order for a build here."""
        more = ["--overwrite"] if (self.overwrite if overwrite is None else overwrite) else []
        return Order(
            arguments=(
                *_ARGUMENTS, "--out", str(out or self.out), "--workers", str(workers),
                "--seed", str(seed), *more,
            ),
            scope=str(self.root), at=at, after=after, inside=inside, no_exchange=no_exchange,
        )  # fmt: skip

    def reset(self) -> None:
        """As before any build, but for the older dataset."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir()
        if self.overwrite:
            shutil.copytree(self._old, self.out)

    def _whole_units(self) -> dict[str, dict[str, str]]:
        """The files of each unit, as they are when all are finished and nothing is published."""
        published = next(i for i, c in enumerate(self.changes, 1) if c.endswith(" /out"))
        self.reset()
        assert self._builds.run(self.order(at=published)).killed
        units = {path.name: digests(path) for path in self.units()}
        assert len(units) == UNITS
        shutil.copytree(self.root, self._finished)
        return units

    def all_units_finished(self) -> None:
        """As after a kill just before anything is published."""
        shutil.rmtree(self.root)
        shutil.copytree(self._finished, self.root)

    def units(self) -> list[Path]:
        """The directories of finished units."""
        return sorted(self.root.glob(f".out.building-{'?' * _KEY_LENGTH}/units/unit-*"))

    def whole_units(self) -> int:
        """How many of them have every byte."""
        return sum(digests(path) == self._units[path.name] for path in self.units())

    def killed(self, *, may_be_gone: bool = False) -> str:
        """What stands there after a kill: "nothing", "old" or "new", each of them whole."""
        if not self.out.exists():
            assert self.before is None or may_be_gone, "the old dataset is gone"
            return "nothing"
        found = digests(self.out)
        if found == self.new:
            return "new"
        assert found == self.before, "half a dataset is published"
        return "old"

    def resume(self, order: Order | None = None, *, alone: bool = True) -> Ended:
        """Run the build again, to its end, and check all that is promised of it.

        `alone`: no worker of the killed build lives on, to finish a unit that is not expected.
        """
        published = self.killed(may_be_gone=True) == "new" and not self.overwrite
        whole = self.whole_units()
        ended = self.run_again(order)
        report = ended.report()
        assert report["reused"] == published
        expected = 0 if published else whole
        taken = report["resumed_units"]
        assert taken == expected or (taken > expected and not alone), f"{taken}, not {expected}"
        return ended

    def run_again(self, order: Order | None = None) -> Ended:
        """Run the build to its end, and check what it leaves."""
        ended = self._builds.run(order or self.order())
        assert ended.code == 0, (ended.code, ended.talk)
        self.finished()
        return ended

    def finished(self) -> None:
        """The output is that of an undisturbed build, and nothing is left beside it."""
        assert digests(self.out) == self.new, "other bytes than an undisturbed build"
        left = sorted(path.name for path in self.root.iterdir())
        assert left == ["out"], left
