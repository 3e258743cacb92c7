"""Images against plain numpy, MNIST among them."""

from __future__ import annotations

import gzip
from typing import Any

import numpy as np
import pytest
import torch

from dataprep.formats.errors import UsageError
from dataprep.runtime.collate.images import NORMALIZE, ChannelsAt, Normalize, Vision, VisionText
from dataprep.runtime.collate.schema import OutputSchema
from dataprep.runtime.collate.text import Classification
from dataprep.runtime.errors import SampleError
from tests.support import SHARED_DATA, needs_shared_data


class Picture:
    """What numpy sees of a picture of PIL: channels last."""

    def __init__(self, pixels: Any) -> None:
        self.__array_interface__ = pixels.__array_interface__
        self.pixels = pixels


def pixels(channels: int, rows: int = 3, seed: int = 0) -> list[Any]:
    """Images [channels, 4, 5], uint8."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, (channels, 4, 5), np.uint8) for _ in range(rows)]


def reference(image: Any, normal: Normalize | None) -> Any:
    """float64, one channel at a time."""
    scaled = image.astype(np.float64) / (255 if image.dtype == np.uint8 else 1)
    if normal is None:
        return scaled
    return np.stack([(c - m) / s for c, m, s in zip(scaled, normal.mean, normal.std, strict=True)])


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("name", [*NORMALIZE, "own", None])
def test_normalisation_equals_the_reference(name: str | None, layout: ChannelsAt) -> None:
    """Items 17, 18, 19: every preset, a custom one of five channels, and none; either layout."""
    own = Normalize(mean=(0.1, 0.2, 0.3, 0.4, 0.5), std=(0.5, 0.4, 0.3, 0.2, 0.1))
    normal = own if name == "own" else NORMALIZE.get(name or "")
    images = pixels(len(normal.mean) if normal else 3)
    collate = Vision(normalize=own if name == "own" else name, layout=layout)
    laid = [image.transpose(1, 2, 0) if layout == "HWC" else image for image in images]
    for kind in (np.asarray, torch.from_numpy):
        batch = collate([{"pixel_values": kind(np.ascontiguousarray(i)), "label": 1} for i in laid])
        expected = np.stack([reference(image, normal) for image in images])
        assert batch["pixel_values"].dtype == torch.float32
        assert batch["pixel_values"].is_contiguous()
        np.testing.assert_allclose(batch["pixel_values"], expected, atol=2e-6)
    floats = [{"pixel_values": (image / 255).astype(np.float32)} for image in laid]
    np.testing.assert_allclose(collate(floats)["pixel_values"], expected, atol=2e-6)


def test_the_samples_stay_what_they_are() -> None:
    """Item 17: normalising is done in memory of the batch's own, for one sample too."""
    image = torch.full((3, 2, 2), 0.5)
    batch = Vision()([{"pixel_values": image}])
    assert torch.equal(image, torch.full((3, 2, 2), 0.5))
    assert not torch.equal(batch["pixel_values"][0], image)
    assert torch.equal(Vision(normalize=None)([{"pixel_values": image}])["pixel_values"][0], image)


def test_pictures_and_grey_images() -> None:
    """Item 19: PIL's have channels last whatever the layout; two axes are one channel."""
    (image,) = pixels(3, rows=1)
    picture = Picture(np.ascontiguousarray(image.transpose(1, 2, 0)))
    found = Vision(normalize=None)([{"image": picture}])["pixel_values"][0]
    np.testing.assert_allclose(found, image / 255, atol=1e-6)
    grey = Vision(normalize="mnist")([(image[0], 3), (image[1], 4)])
    assert grey["pixel_values"].shape == (2, 1, 4, 5)
    assert grey["labels"].tolist() == [3, 4]


@pytest.mark.parametrize(
    ("options", "image", "message"),
    [
        ({}, np.zeros((1, 4, 4), np.uint8), "has 1 channels, 3 are expected. Convert the image"),
        ({}, np.zeros((4, 4, 3), np.uint8), "has 4 channels, 3 are expected. .*layout='HWC'"),
        ({}, np.zeros((4, 4), np.uint8), "has 1 channels, 3 are expected"),
        ({"normalize": None}, np.zeros((3, 4, 5), np.uint8), r"has the shape \[3, 4, 5\], row 0"),
        ({"normalize": None, "channels": 3}, np.zeros((2, 4, 4), np.uint8), "has 2 channels"),
        ({}, np.zeros((3, 4, 4, 2), np.uint8), "is no image"),
        ({}, "cat.png", "a str of shape .* is no image"),
        ({}, np.full((3, 4, 4), 255.0, np.float32), "row 0 .*is float32, row 0 uint8|row 1 .*"),
    ],
)
def test_images_that_do_not_fit(options: dict[str, Any], image: Any, message: str) -> None:
    """Item 19: channels, sizes and kinds that differ are named with their row."""
    good = np.zeros((3, 4, 4), np.uint8)
    with pytest.raises(SampleError, match=f"row 1 .*{message}"):
        Vision(**options)([{"image": good}, {"image": image}])


def test_whole_numbers_become_fractions_first() -> None:
    """Item 20: by the largest of their type; of wide types up to 255; others are refused."""

    def one(value: Any, dtype: Any, **options: Any) -> float:
        image = np.full((1, 2, 2), value, dtype)
        return float(
            Vision(normalize=None, **options)([{"image": image}])["pixel_values"][0, 0, 0, 0]
        )

    assert one(255, np.uint8) == one(65535, np.uint16) == one(255, np.int64) == 1.0
    assert one(True, np.bool_) == 1.0
    assert one(1000, np.int64, scale=1e-3) == pytest.approx(1.0)
    with pytest.raises(SampleError, match=r"row 0 .*values from 0 to 1000, outside 0 \.\. 255"):
        one(1000, np.int64)
    good = np.zeros((3, 2, 2), np.float32)
    for wrong in (255.0, float("nan"), -17.0, [-1.0, 255.0], [-1.0, float("nan")]):
        image = np.full((3, 2, 2), wrong, np.float32)
        with pytest.raises(SampleError, match=r"row 1 .*outside 0 \.\. 1. Give uint8 or values"):
            Vision()([{"image": good}, {"image": image}])


def test_images_around_0_are_normalised_with_a_warning() -> None:
    """Item 124: as images from `torch.randn` are; nothing is said where nothing is normalised."""
    images = [{"image": torch.randn(3, 4, 4)} for _ in range(3)]
    stacked = torch.stack([image["image"] for image in images])
    with pytest.warns(UserWarning, match="use normalize=None"):
        pixels = Vision(normalize="half")(images)["pixel_values"]
    assert torch.allclose(pixels, (stacked - 0.5) / 0.5)
    assert torch.equal(Vision(normalize=None)(images)["pixel_values"], stacked)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Normalize(mean=(0.5,), std=(0,)), "std: must be more than 0"),
        (lambda: Normalize(mean=(0.5,), std=(0.1, 0.1)), "std: has 2 channels, mean has 1"),
        (lambda: Normalize(mean=(float("nan"),), std=(1,)), r"mean: is \(nan,\)"),
        (lambda: Normalize(mean=(), std=()), "mean: is"),
        (lambda: Vision(normalize="imagnet"), "normalize: must be one of imagenet, cifar10"),
        (lambda: Vision(layout="WHC"), "layout: must be one of"),  # type: ignore[arg-type]
        (lambda: Vision(channels=1), "channels: is 1, the normalisation is for another"),
    ],
)
def test_normalisations_that_make_no_sense(make: Any, message: str) -> None:
    """Items 18, 20: a deviation of 0 is refused, and so is a preset that does not exist."""
    with pytest.raises(UsageError, match=message):
        make()


def test_labels() -> None:
    """Item 21: none, one class, fractions, and multi-label targets that stay fractions."""
    image = np.zeros((3, 2, 2), np.uint8)

    def labels(*values: Any) -> torch.Tensor:
        found: torch.Tensor = Vision()([{"image": image, "label": v} for v in values])["labels"]
        return found

    assert "labels" not in Vision()([{"image": image}])
    assert (labels(1, 2).dtype, labels(1, 2).tolist()) == (torch.int64, [1, 2])
    assert labels(0.5, 1.0).dtype == torch.float32
    multi = labels(np.array([0, 0.5, 1], np.float32), np.array([1, 0, 0], np.float32))
    assert (multi.dtype, multi.tolist()) == (torch.float32, [[0, 0.5, 1], [1, 0, 0]])
    assert labels([0.25, 1.0], [1.0, 0.0]).tolist() == [[0.25, 1], [1, 0]]
    both = Vision()([{"image": image, "label": 1, "labels": 2}])
    assert (both["labels"].tolist(), both["label"].tolist()) == ([2], [1])
    kept = Vision()([{"image": image, "label": 1, "name": "a", "size": 3}])
    assert (kept["name"], kept["size"].tolist()) == (["a"], [3])


def test_dtype_by_the_schema() -> None:
    """Item 72: half precision for images, too."""
    schema = OutputSchema.from_dict({"pixel_values": "bfloat16", "labels": "int32"})
    batch = Vision(schema=schema)([(np.zeros((3, 2, 2), np.uint8), 1)])
    assert (batch["pixel_values"].dtype, batch["labels"].dtype) == (torch.bfloat16, torch.int32)


def test_image_and_text_together() -> None:
    """Item 46: each part is what its own collator makes."""
    samples = [
        {"image": image, "input_ids": ids, "label": 1}
        for image, ids in zip(pixels(3, 2), ([1, 2], [3]), strict=True)
    ]
    batch = VisionText(text=Classification(pad_id=9))(samples)
    assert batch["pixel_values"].shape == (2, 3, 4, 5)
    assert batch["input_ids"].tolist() == [[1, 2], [3, 9]]
    assert batch["labels"].tolist() == [1, 1]
    assert batch["attention_mask"].tolist() == [[1, 1], [1, 0]]


@needs_shared_data
def test_mnist() -> None:
    """Items 17, 19: real images of one channel come out with the mean and deviation they should."""
    folder = SHARED_DATA / "vision"
    images, labels = (next(folder.rglob(f"*{kind}*.gz")) for kind in ("images", "labels"))
    rows = np.frombuffer(gzip.decompress(images.read_bytes())[16:], np.uint8).reshape(-1, 28, 28)
    classes = np.frombuffer(gzip.decompress(labels.read_bytes())[8:], np.uint8)
    batch = Vision(normalize="mnist")(list(zip(rows[:2000], classes[:2000], strict=True)))
    assert batch["pixel_values"].shape == (2000, 1, 28, 28)
    assert abs(float(batch["pixel_values"].mean())) < 0.05
    assert abs(float(batch["pixel_values"].std()) - 1) < 0.05
    assert batch["labels"].tolist() == classes[:2000].tolist()
