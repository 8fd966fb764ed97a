from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.errors import InputError
from predictor.hardware.links import default_link, link_class, link_family
from predictor.timing.calibration import shape_keys


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    target = tmp_path / "mine"
    shutil.copytree(catalog.calibration_dir("kernels-only"), target)
    return target


def test_a_calibration_loads_from_its_folder(copy: Path) -> None:
    assert load(copy).kernels.keys() == load("kernels-only").kernels.keys()


def test_another_schema_version_is_refused(copy: Path) -> None:
    path = copy / "calibration.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "schema_version": 99}))
    with pytest.raises(InputError, match="schema version 99, this reckon reads 6"):
        load(copy)


@pytest.mark.parametrize("name", ["calibration.json", "arrays.npy", "shapes.npy"])
def test_a_truncated_file_is_refused(copy: Path, name: str) -> None:
    path = copy / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(InputError) as caught:
        load(copy)
    assert "\n" not in str(caught.value)


def test_a_pickle_is_never_loaded(copy: Path, tmp_path: Path) -> None:
    marker = tmp_path / "ran"

    class Evil:
        def __reduce__(self) -> tuple:
            return (marker.write_text, ("x",))

    np.save(copy / "arrays.npy", np.array([Evil()], dtype=object), allow_pickle=True)
    with pytest.raises(InputError):
        load(copy)
    assert not marker.exists()


def test_unknown_names_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'kernels-only'"):
        load("kernel-only")
    with pytest.raises(InputError, match=r"holds no calibration\.json"):
        load(tmp_path)


def test_none_is_the_roofline() -> None:
    assert not load("none").kernels


def test_shipped_calibrations_say_where_they_come_from() -> None:
    for name in ("kernels-only", "default"):
        found = load(name)
        assert found.provenance["sources"]
        assert all({"origin", "licence"} <= set(s) for s in found.provenance["sources"])
    assert not load("kernels-only").fitted_points, "fitted to kernels and collectives alone"
    assert len(load("default").fitted_points) > 700, "run parameters are fitted to published runs"
    assert load("default").run.factors.keys() > {"*", "nemo", "torchtitan"}


def test_efficiency_stays_within_zero_and_one() -> None:
    rng = np.random.default_rng(0)
    for model in load("kernels-only").kernels.values():
        spread = model.high - model.low + 1.0
        features = model.low + spread * rng.uniform(-1, 2, (50, model.low.size))
        y = model.inefficiency(features)
        assert (y >= 0).all()
        assert (y <= model.limit).all()


def test_features_inside_the_box_are_at_no_distance() -> None:
    model = load("kernels-only").kernels[("gemm", "bf16", "A100-SXM4-80GB")]
    middle = (model.low + model.high)[None] / 2
    assert model.distance(middle)[0] == 0
    assert model.distance(model.high[None] + model.scale)[0] == pytest.approx(1.0)


def test_links_fall_back_to_their_family() -> None:
    assert (link_family("nvlink4"), link_family("infiniband-ndr")) == ("nvlink", "infiniband")
    assert [link_class(x) for x in ("nvlink9", "efa", "gloo")] == ["scale-up", "scale-out", "host"]
    known = load("kernels-only")
    assert known.link("allreduce", "nvlink9").pedigree == "transferred"
    assert known.link("allreduce", "nvlink3").pedigree == "interpolated"
    assert default_link("p2p", "efa").pedigree == "roofline"


def test_shape_keys_tell_shapes_apart() -> None:
    sizes = np.array([1, 2, 3, 64, 128, 4096, 4097], float)
    m, n, k = (x.ravel() for x in np.meshgrid(sizes, sizes, sizes))
    assert np.unique(shape_keys(m, n, k, np.ones_like(m))).size == m.size


def test_a_relatives_efficiency_is_trusted_less() -> None:
    found, known = load("kernels-only"), catalog.accelerator("H100-SXM5-80GB")
    relative = catalog.accelerator("H20-96GB")
    own, other = (found.resolve("gemm", "bf16", a) for a in (known, relative))
    assert (own.pedigree, other.pedigree) == ("interpolated", "transferred")
    assert other.sigma == found.transfer_sigma["gemm/architecture"] > own.sigma


def test_a_kernel_by_name_comes_from_the_architecture_before_a_newer_one() -> None:
    """FlashAttention-2 was measured on GH200; an H100 runs it as that one does, not as its own
    newest kernel. Nobody measured it on Blackwell, which has its own attention only."""
    found = load("kernels-only")
    for kind in ("attention_prefill", "attention_backward"):
        hopper, blackwell = (
            found.resolve(f"{kind}.flash2", "bf16", catalog.accelerator(name)).model
            for name in ("H100-SXM5-80GB", "B200-SXM-180GB")
        )
        assert hopper is not None
        assert (hopper.kind, hopper.accelerator) == (f"{kind}.flash2", "*hopper")
        assert blackwell is not None
        assert (blackwell.kind, blackwell.accelerator) == (kind, "B200-SXM-180GB")


@pytest.mark.parametrize(
    ("link", "kind"),
    [
        ("nvlink4", "scale-up"),
        ("pcie4", "scale-up"),
        ("xgmi3", "scale-up"),
        ("infiniband-ndr", "scale-out"),
        ("roce", "scale-out"),
        ("gloo", "host"),
    ],
)
def test_links_have_a_class(link: str, kind: str) -> None:
    assert link_class(link) == kind
