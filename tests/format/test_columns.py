import numpy as np
import pytest

from make_episodes import BOX_SPEC, DISCRETE_SPEC, STOCHASTIC_SPEC, make_episode, same
from pbvf_datasets.format.columns import (
    columns_to_image,
    image_to_columns,
    pack_columns,
    unpack_columns,
)
from pbvf_datasets.format.spaces import OBS_DTYPES
from pbvf_offline.errors import DamagedError, UsageError

KINDS = {
    "box": {"spec": BOX_SPEC},
    "survive": {"spec": BOX_SPEC, "survive": True, "obs_dtype": "float64"},
    "discrete": {"spec": DISCRETE_SPEC, "seed": False},
    "stochastic": {"spec": STOCHASTIC_SPEC, "terminated": True},
}


def episodes(kind, lengths=(1, 1, 3, 7)):
    spec = KINDS[kind]["spec"]
    rest = {k: v for k, v in KINDS[kind].items() if k != "spec"}
    return [make_episode(spec, i, n, **rest) for i, n in enumerate(lengths)]


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip_bit_for_bit(kind):
    given = [
        *episodes(kind),
    ]
    image = columns_to_image(pack_columns(given), {"first": 3})
    columns, meta = image_to_columns(image, "x")
    found = unpack_columns(columns, "x")
    assert meta == {"first": 3}
    assert len(found) == len(given)
    assert all(same(a, b) for a, b in zip(given, found, strict=True))


@pytest.mark.parametrize("dtype", OBS_DTYPES)
def test_every_observation_dtype_survives(dtype):
    given = [make_episode(BOX_SPEC, i, obs_dtype=dtype) for i in range(2)]
    columns, _ = image_to_columns(columns_to_image(pack_columns(given), {}), "x")
    assert columns["observations"].dtype == dtype
    assert same(unpack_columns(columns, "x")[1], given[1])


def test_nan_payloads_and_negative_zero_survive():
    episode = make_episode(BOX_SPEC, 0)
    episode.rewards[:2] = np.array([0x7FF8DEADBEEF0001, 1 << 63], np.uint64).view(np.float64)
    columns, _ = image_to_columns(columns_to_image(pack_columns([episode]), {}), "x")
    assert columns["rewards"].tobytes() == episode.rewards.tobytes()


def test_equal_episodes_give_equal_bytes():
    one = columns_to_image(pack_columns(episodes("survive")), {"b": 1, "a": 2})
    other = columns_to_image(pack_columns(episodes("survive")), {"a": 2, "b": 1})
    assert one == other


def test_cut_is_kept():
    given = [make_episode(BOX_SPEC, 0, cut=True), make_episode(BOX_SPEC, 1)]
    assert [e.cut for e in unpack_columns(pack_columns(given), "x")] == ["budget", "none"]


def test_pack_refuses_nothing_and_mixtures():
    with pytest.raises(UsageError, match="no episodes"):
        pack_columns([])
    with pytest.raises(UsageError, match="infos/reward_survive"):
        pack_columns([make_episode(BOX_SPEC, 0, survive=True), make_episode(BOX_SPEC, 1)])
    with pytest.raises(UsageError, match="dtype"):
        pack_columns([make_episode(BOX_SPEC, 0), make_episode(BOX_SPEC, 1, obs_dtype="float64")])


def damaged(change):
    columns = pack_columns(episodes("box"))
    change(columns)
    return columns


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda c: c.pop("rewards"), "rewards"),
        (lambda c: c.update(odd=np.zeros(3)), "odd"),
        (lambda c: c.update(rewards=c["rewards"][1:]), "rewards"),
        (lambda c: c.update(cut=c["cut"][1:]), "disagree"),
        (lambda c: c.update(length=c["length"] * 0), "empty"),
        (lambda c: c.update(length=c["length"] * 1.0), "column length is float64 of shape"),
        (lambda c: c.update(seed=c["seed"].astype(np.uint64)), "column seed is uint64"),
        (lambda c: c.update(cut=c["cut"].astype(np.uint8)), "column cut is uint8"),
        (lambda c: c.update(length=c["length"][0]), r"column length is int64 of shape \(\)"),
        (lambda c: c.update(segments=c["segments"][:, None]), r"shape \(4, 1\)"),
        (lambda c: c.update({k: v[:0] for k, v in c.items()}), "no episode"),
    ],
)
def test_unpack_refuses_what_does_not_add_up(change, why):
    with pytest.raises(DamagedError, match=why) as error:
        unpack_columns(damaged(change), "shard-7")
    assert error.value.where == "shard-7"


def test_image_refuses_what_is_no_image():
    image = columns_to_image(pack_columns(episodes("box")), {})
    from safetensors.numpy import save

    for bad in (
        b"",
        b"x" * 50,
        image[:-1],
        image[: len(image) // 2],
        save({"a": np.zeros(2)}),
        save({"a": np.zeros(2)}, metadata={"pbvf": "[1]"}),
        save({"a": np.zeros(2)}, metadata={"pbvf": "{"}),
    ):
        with pytest.raises(DamagedError):
            image_to_columns(bad, "x")
