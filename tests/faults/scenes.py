"""A disk on which builds are stopped, and what must hold of it afterwards."""

from __future__ import annotations

from typing import Any

from dataprep.formats.verify.verify import verify
from tests.faults.mounts import FileSystem
from tests.faults.stopped_build import Outcome, Run, StoppedBuilds
from tests.scenes.corpora import MESSY, STORIES, digests
from tests.support import REPOSITORY

__all__ = ["END", "NEW", "NOTHING", "OLD", "TOKENIZER", "Scene"]

TOKENIZER = REPOSITORY / "data_fixtures/golden/v1/narrow/tokenizer.json"  # small: quick to load
END = 1 << 30
"""A change that no build comes to: what shall happen there happens after its end."""
OLD, NOTHING, NEW = "old", "nothing", "new"
_TIDYING_STRIDE = 6


class Scene:
    """A disk with an output directory on it; with `overwrite`, an older dataset is there."""

    def __init__(self, builds: StoppedBuilds, disk: FileSystem, *, overwrite: bool) -> None:
        self.disk = disk
        self.out = disk.place / "out"
        self._builds = builds
        self._overwrite = overwrite
        disk.mount()
        if overwrite:
            assert builds.run(self.order(seed=1, overwrite=False)).code == 0
        self.before = digests(self.out) if overwrite else None
        self._beside = {path.name for path in disk.place.iterdir()} | {"out"}
        disk.save()
        disk.mount()
        done = builds.run(self.order())
        assert done.code == 0, done.talk
        assert verify(self.out).findings == ()
        self.new = digests(self.out)
        self.changes = len(done.changes)
        self.syncs = [n for n, change in enumerate(done.changes, 1) if change.startswith("fsync ")]
        (published,) = (n for n, change in enumerate(done.changes, 1) if change.endswith(" /out"))
        self._published = published

    def order(
        self,
        at: int | None = None,
        cut: int | None = None,
        *,
        seed: int = 0,
        overwrite: bool | None = None,
        **what: Any,
    ) -> Run:
        """A build here; `what` are further fields of `Run`."""
        more = ["--overwrite"] if (self._overwrite if overwrite is None else overwrite) else []
        return Run(
            arguments=(
                "build", "--input", str(STORIES), "--input", str(MESSY), "--on-error", "skip",
                "--tokenizer", str(TOKENIZER), "--split", "train=0.8,val=0.2", "--workers", "1",
                "--seed", str(seed), "--out", str(self.out), *more,
            ),
            scope=str(self.disk.place), at=at, cut=cut, **what,
        )  # fmt: skip

    def points(self, stride: int = 1, offset: int = 0) -> list[int]:
        """Changes to stop before: all those around the publishing, few of the tidying after it."""
        tidying = self._published + _TIDYING_STRIDE
        chosen = {
            *range(1 + offset % stride, tidying, stride),
            *range(self._published - 2, tidying),
            *range(tidying + offset, self.changes + 1, stride * _TIDYING_STRIDE),
        }
        return [*sorted(chosen), END]

    def reset(self) -> None:
        """As before the build."""
        self.disk.restore()
        self.disk.mount()

    def cut(self, run: Run) -> tuple[Outcome, str]:
        """Do `run` from the start, mount the disk again; returns what stands there."""
        self.reset()
        outcome = self._builds.run(run)
        self.disk.remount()
        return outcome, self.state()

    def state(self) -> str:
        """What stands there: "nothing", "old", "new"; or something else, which must not be."""
        if not self.out.exists():
            return NOTHING if self.before is None else "the old dataset is gone"
        found = digests(self.out)
        if found in (self.before, self.new):
            return NEW if found == self.new else OLD
        return "half a dataset"

    def resume(self) -> None:
        """Run it again: the bytes of an undisturbed build, and nothing beside them."""
        done = self._builds.run(self.order())
        assert done.code == 0, done.talk
        assert digests(self.out) == self.new
        assert {path.name for path in self.disk.place.iterdir()} == self._beside

    def allowed(self, outcome: Outcome) -> set[str]:
        """What may stand there after `outcome`: after a success the new dataset, and only that."""
        if outcome.code == 0:
            return {NEW}
        return {NOTHING if self.before is None else OLD, NEW}
